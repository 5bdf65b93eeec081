"""Adaptive computation time: several steps of a cell for each input, as many as the cell itself decides."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from rnnscan._util.arguments import check_step_input
from rnnscan._util.dtypes import at_least_float32, promoted
from rnnscan._util.messages import describe, is_count, is_float, is_key, leaves_with_places, listing
from rnnscan._util.ranks import over_rows
from rnnscan._util.step_wrappers import select_rows
from rnnscan._util.varying import vary, varying
from rnnscan._util.zeros import zeros_sharded_like
from rnnscan.compose.output import extras_of, output_of
from rnnscan.compose.wrapper import Wrapper, check_rate
from rnnscan.control.while_net import while_net
from rnnscan.memory import Memory
from rnnscan.naming import unnamed
from rnnscan.protocols import ComposableCell, check_cell
from rnnscan.randomness import RandomStep, with_key


# `(params, carry, x, micro-step) -> (carry, y)`, for the inner cell.
MicroStep = Callable[[Any, Any, Array, Any], tuple[Any, Any]]


@dataclass(frozen=True)
class AdaptiveComputation(Wrapper):
    """A cell that decides how many steps another cell takes for each input. Made by `adaptive_computation`."""

    max_ponder: int
    epsilon: float

    @property
    def names(self) -> tuple[str, ...]:
        """None. The backward pass recomputes the micro-steps, so kept memory does not grow with `max_ponder`."""
        return ()

    @property
    def output_part(self) -> None:
        """None: y is not part of the carry."""
        return

    def init(self, key: Array, input_size: int) -> dict[str, Any]:
        """Make parameters: the inner cell's, for one more feature, and those of the halting unit, whose bias is 1."""
        params = self.cell.init(key, input_size + 1)
        dtypes = [leaf.dtype for leaf in jax.tree.leaves(params) if jnp.issubdtype(leaf.dtype, jnp.floating)]
        size, dtype = self.cell.output_size, dtypes[0] if dtypes else jnp.float32
        kernel = jax.nn.initializers.lecun_normal()(jax.random.fold_in(key, 1), (size, 1), dtype)
        return {"cell": params, "halting": {"kernel": kernel, "bias": jnp.ones(1, dtype)}}

    def initial_carry(self, x: Array) -> Any:
        """The inner cell's carry of zeros, typed like one step's input."""
        check_step_input("adaptive_computation", x)
        return self.cell.initial_carry(_flagged(x, False))

    def __call__(self, params: Any, carry: Any, x: Any) -> tuple[Any, Any]:
        """One step: `(params, carry, x) -> (carry, (output, ponder, *extras of the inner cell))`."""
        return self._ponder(lambda params, carry, x, micro: self.cell(params, carry, x), params, carry, x)

    def with_key(self, key: Array, params: Any, x: Any) -> RandomStep:
        """Bind the key to the inner cell, which draws new masks at each micro-step."""
        inner = with_key(self.cell, key, params["cell"], _flagged(x, False))

        def step(params: Any, carry: Any, scanned: tuple[Any, Any]) -> tuple[Any, Any]:
            x, index = scanned
            first = index * self.max_ponder

            def micro_step(params: Any, carry: Any, x: Any, micro: Any) -> tuple[Any, Any]:
                return inner(params, carry, (x, first + jnp.asarray(micro, jnp.result_type(first))))

            return self._ponder(micro_step, params, carry, x)

        return step

    def _ponder(self, cell: MicroStep, params: Any, carry: Any, x: Any) -> tuple[Any, Any]:
        self._check_params(params)
        # Devices halt at different micro-steps, so a micro-step must not add up gradients over them.
        params = vary(params, varying(jax.typeof(x)))
        with unnamed():
            _, y = types = jax.eval_shape(cell, params["cell"], carry, _flagged(x, True), 0)
            _check_rows(x, *types)
            state, _ = while_net(
                lambda params, state: state.running.any(),
                lambda params, state: self._advance(cell, params, x, state),
                _State.initial(carry, y, x),
                params=params,
                max_steps=self.max_ponder,
                memory=Memory(recompute="all"),
                on_limit="stop",
            )
        mean_carry, mean_y = jax.tree.map(_like, state.means, (carry, y))
        return mean_carry, (output_of(mean_y), state.ponder, *extras_of(mean_y))

    def _advance(self, cell: MicroStep, params: Any, x: Any, state: "_State") -> "_State":
        """One micro-step of the rows that have not halted."""
        carry, y = cell(params["cell"], state.carry, _flagged(x, state.micro == 0), state.micro)
        halting = _halting(params["halting"], output_of(y))
        ends = (state.total + halting >= 1 - self.epsilon) | (state.micro == self.max_ponder - 1)
        remainder = 1 - state.total
        weight = jnp.where(ends, remainder, halting)
        goes_on = state.running & ~ends
        return _State(
            # A row that has halted runs its last micro-step again, so its values stay finite.
            carry=select_rows(goes_on, carry, state.carry),
            means=jax.tree.map(partial(_add, state.running, weight), state.means, (carry, y)),
            total=jnp.where(goes_on, state.total + halting, state.total),
            running=goes_on,
            ponder=state.ponder + jnp.where(state.running, 1 + jnp.where(ends, remainder, 0), 0),
            micro=state.micro + 1,
        )

    def _check_params(self, params: Any) -> None:
        expected = f"a dictionary of 'cell' and 'halting', with 'kernel' ({self.output_size}, 1) and 'bias' (1,)"
        got = listing(params) if isinstance(params, Mapping) else describe(params)
        if isinstance(params, Mapping) and sorted(params) == ["cell", "halting"]:
            shapes = {key: jnp.shape(leaf) for key, leaf in dict(params["halting"]).items()}
            if shapes == {"kernel": (self.output_size, 1), "bias": (1,)}:
                return
            got = f"'halting' with {shapes}"
        raise ValueError(
            f"adaptive_computation: the parameters must be {expected}; got {got}. Make them with "
            "cell.init(key, input_size)."
        )


class _State(NamedTuple):
    """The state of the loop over micro-steps.

    Attributes:
        carry: the inner cell's carry.
        means: the mean-field carry and y so far, in at least float32.
        total: the sum of the halting probabilities.
        running: which rows have not halted.
        ponder: N + R, once a row has halted.
        micro: the number of micro-steps that have run.
    """

    carry: Any
    means: tuple[Any, Any]
    total: Array
    running: Array
    ponder: Array
    micro: Array

    @classmethod
    def initial(cls, carry: Any, y: Any, x: Array) -> "_State":
        """The state before the first micro-step, for one step's input and the types of y."""
        rows = partial(zeros_sharded_like, x, x.shape[:-1])
        mean_carry = jax.tree.map(
            lambda leaf: zeros_sharded_like(leaf, leaf.shape, _wide(leaf.dtype)) if is_float(leaf) else leaf, carry
        )
        mean_y = jax.tree.map(lambda leaf: zeros_sharded_like(x, leaf.shape, _wide(leaf.dtype)), y)
        wide = _wide(output_of(y).dtype)
        return cls(carry, (mean_carry, mean_y), rows(wide), ~rows(bool), rows(wide), jnp.zeros((), jnp.int32))


def _like(mean: Any, leaf: Any) -> Any:
    return mean if is_key(leaf) else mean.astype(leaf.dtype)


def _wide(dtype: Any) -> Any:
    """The dtype of a sum: at least float32 for floats."""
    return at_least_float32(dtype) if jnp.issubdtype(dtype, jnp.inexact) else dtype


def _add(running: Array, weight: Array, mean: Any, value: Any) -> Any:
    """Add a weighted value to the mean of the rows that run. Integers and keys take the last value."""
    if not is_float(value):
        return select_rows(running, value, mean)
    weights = weight.reshape(weight.shape + (1,) * (value.ndim - weight.ndim)).astype(mean.dtype)
    return select_rows(running, mean + weights * value.astype(mean.dtype), mean)


def _halting(params: Any, output: Array) -> Array:
    """The halting probability of each row, in at least float32."""
    wide = _wide(promoted(output, params["kernel"]))
    products = jnp.matmul(output.astype(wide), params["kernel"].astype(wide))
    return jax.nn.sigmoid(products + over_rows(params["bias"].astype(wide), products))[..., 0]


def _flagged(x: Array, first: Any) -> Array:
    """The input with a feature that is 1 at the first micro-step, otherwise 0."""
    flag = zeros_sharded_like(x, (*x.shape[:-1], 1)) + jnp.asarray(first, x.dtype)
    return jnp.concatenate([x, flag], axis=-1)


def _check_rows(x: Any, carry: Any, y: Any) -> None:
    rows = x.shape[:-1]
    for where, leaf in [*leaves_with_places(carry, "carry"), *leaves_with_places(y, "y")]:
        if leaf.shape[: len(rows)] != rows:
            raise ValueError(
                f"adaptive_computation: every leaf of the inner cell's carry and y must have the rows of its input, "
                f"{describe(x)}, because rows halt independently; got {describe(leaf)} at {where}."
            )


def adaptive_computation(cell: ComposableCell, max_ponder: int, *, epsilon: float = 0.01) -> AdaptiveComputation:
    """Let a cell take several micro-steps for each input, until its halting unit says that it is enough.

        s^n, y^n = cell(s^(n-1), [x; n == 1])            s^0 is the carry of the step before
        h^n = sigmoid(y^n w + b)
        N = min(n such that h^1 + ... + h^n >= 1 - epsilon, max_ponder)
        R = 1 - (h^1 + ... + h^(N-1))
        p^n = h^n for n < N, and p^N = R
        s = sum_n p^n s^n,   y = sum_n p^n y^n,   ponder = N + R

    Rows of the batch halt independently. The loop over micro-steps ends once all rows have halted, forward and
    backward (`rnnscan.while_net`). Take second derivatives by `jax.hessian`, forward over reverse: reverse over reverse
    is an error, because JAX cannot reverse a loop that stops within a scan.

    The ponder cost is in y, `(N,)` per step. Add it to the loss, times a small factor:

        carry, (ys, ponder) = rs.scan(cell, params, carry, xs)
        loss = task_loss(ys) + 0.001 * ponder.sum(0).mean()

    It is not in the carry, where truncated gradients would lose it, resets would clear it, and windows of a sequence
    would count it twice. The number of micro-steps is `jnp.ceil(ponder) - 1`. As in the paper, the gradient of the
    ponder cost is that of R.

    The halting unit reads the inner cell's output, which is the state h of a GRU or an LSTM.

    The cell has no names for a memory choice: the backward pass recomputes the micro-steps of a step from its carry, so
    kept memory does not grow with `max_ponder`.

    Args:
        cell: a cell over features, without spatial axes.
        max_ponder: the largest number of micro-steps, at least 1.
        epsilon: the tolerance at which a row halts, at least 0 and below 1. Without it one micro-step would never be
            enough.

    Returns:
        A cell. Its carry is the inner cell's; integers and keys in it, which have no mean, take their value of the
        last micro-step. Its y is `(output, ponder, *extras of the inner y)`; ponder is in at least float32. A stack or
        chain passes on only the output of its lower layers, so put this cell around the stack, or last. Its parameters
        are `{"cell": the inner cell's for D + 1 features, "halting": {"kernel": (P, 1), "bias": (1,)}}`.

    Raises:
        ValueError: if `max_ponder` is not an integer of at least 1, `epsilon` is not at least 0 and below 1, or the
            cell has spatial axes; in a step, if the parameters do not fit or a leaf of the carry has no rows.
        TypeError: if `cell` is not a cell.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import rnnscan as rs
        >>> cell = rs.adaptive_computation(rs.cells.GRU(4), max_ponder=10)
        >>> xs = jnp.ones((5, 2, 3))
        >>> params = cell.init(jax.random.key(0), input_size=3)
        >>> carry, (ys, ponder) = rs.scan(cell, params, cell.initial_carry(xs[0]), xs)
        >>> ys.shape, ponder.shape, bool((ponder > 1).all())
        ((5, 2, 4), (5, 2), True)

    Source: Graves 2016, "Adaptive Computation Time for Recurrent Neural Networks" (arXiv:1603.08983), section 2.
    """
    check_cell("adaptive_computation", cell)
    if getattr(cell, "input_axes", ()):
        raise ValueError(f"adaptive_computation: the cell must have no spatial axes; got {cell!r}.")
    if not is_count(max_ponder):
        raise ValueError(
            f"adaptive_computation: `max_ponder` must be a number of micro-steps of at least 1; got {max_ponder!r}."
        )
    check_rate("adaptive_computation", "epsilon", epsilon)
    return AdaptiveComputation(cell, max_ponder, epsilon)
