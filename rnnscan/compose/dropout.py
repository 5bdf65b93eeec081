"""Dropout of outputs, inputs, recurrent states and weights."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array

from rnnscan._util.messages import listing, nearest
from rnnscan.compose.output import output_of, with_output
from rnnscan.compose.wrapper import Wrapper, check_rate
from rnnscan.naming import unnamed
from rnnscan.protocols import ComposableCell, check_cell
from rnnscan.randomness import RandomStep, drop, with_key


Site = Literal["output", "input", "recurrent"]
Draw = Literal["step", "sequence"]


@dataclass(frozen=True)
class Dropout(Wrapper):
    """A cell with dropout in training. Made by `dropout`."""

    rate: float
    on: Site = "output"
    each: Draw = "step"

    @property
    def output_part(self) -> int | None:
        """The part of the new carry that equals y. None if y is dropped."""
        return None if self.on == "output" else super().output_part

    def __call__(self, params: Any, carry: Any, x: Any) -> tuple[Any, Any]:
        """One step without dropout: `(params, carry, x) -> (carry, y)`."""
        return self.cell(params, carry, x)

    def with_key(self, key: Array, params: Any, x: Any) -> RandomStep:
        """Return the step with dropout."""
        own_key, inner_key = jax.random.split(key)
        if self.rate == 0:  # Nothing is random.
            return with_key(self.cell, inner_key, params, x)
        inner: Any = self.cell if self.on == "recurrent" else with_key(self.cell, inner_key, params, x)
        mask = self._mask(own_key, self._dropped_shape(params, x))

        def step(params: Any, carry: Any, scanned: tuple[Any, Any]) -> tuple[Any, Any]:
            x, index = scanned
            if self.on == "recurrent":
                return inner(params, carry, x, recurrent_mask=drop(jnp.ones((), x.dtype), mask(index), self.rate))
            if self.on == "input":
                return inner(params, carry, (drop(x, mask(index), self.rate), index))
            carry, y = inner(params, carry, scanned)
            return carry, with_output(y, drop(output_of(y), mask(index), self.rate))

        return step

    def _mask(self, key: Array, shape: tuple[Any, ...]) -> Callable[[Any], Array]:
        """Return the function from a step's index to its mask of kept units."""
        if self.each == "sequence":
            kept = jax.random.bernoulli(key, 1 - self.rate, shape)
            return lambda index: kept
        return lambda index: jax.random.bernoulli(jax.random.fold_in(key, index), 1 - self.rate, shape)

    def _dropped_shape(self, params: Any, x: Any) -> tuple[Any, ...]:
        if self.on == "input":
            return x.shape
        carry = jax.eval_shape(self.cell.initial_carry, x)
        if self.on == "recurrent":
            return carry[0].shape
        # Shape-only tracing must not record names.
        with unnamed():
            return output_of(jax.eval_shape(self.cell, params, carry, x)[1]).shape


def dropout(cell: ComposableCell, rate: float, *, on: Site = "output", each: Draw = "step") -> Dropout:
    """Drop units of a cell in training: each is zero with probability `rate`, the others are scaled by 1 / (1 - rate).

    Masks are independent over rows and units. `each` chooses whether they are independent over steps.

    | `on` | `each` | known as |
    | --- | --- | --- |
    | "output" | "step" | dropout between layers (torch, Zaremba et al. 2014), outside the recurrent path |
    | "input" | "step" | dropout of a layer's input (DL4J) |
    | "input" or "output" | "sequence" | variational dropout; Keras' `dropout=` is "input" |
    | "recurrent" | "sequence" | variational dropout of the state; Keras' `recurrent_dropout=` |
    | "recurrent" | "step" | recurrent dropout as in Semeniuta et al. 2016, on the input of the recurrent product |

    "recurrent" masks h only in the recurrent product, not in the carry, so a GRU's state does not fade. The cell itself
    applies the mask, so this dropout must directly wrap a cell of `rnnscan.cells` with a recurrent product.

    If y is a tuple, as in an attention decoder, "output" drops units only of its first value.

    Args:
        cell: a cell.
        rate: the probability, at least 0 and below 1.
        on: "output", "input" or "recurrent".
        each: "step" for a new mask at each step, "sequence" for one mask.

    Returns:
        A cell, with the parameters and the carry of the inner cell. Without a key it applies no dropout: in training
        pass `key=` to `scan` or to its net.

    Raises:
        ValueError: if the rate is not a probability below 1, or `on` or `each` is unknown.
        TypeError: if `cell` is not a cell, or has no recurrent product to mask.

    Example:
        >>> import rnnscan as rs
        >>> import jax
        >>> cell = rs.dropout(rs.dropout(rs.cells.LSTM(8), 0.2, on="recurrent", each="sequence"), 0.1)
        >>> params, xs = cell.init(jax.random.key(0), input_size=3), jax.numpy.ones((6, 2, 3))
        >>> _, ys = rs.scan(cell, params, cell.initial_carry(xs[0]), xs, key=jax.random.key(1))
        >>> bool((ys == 0).any())
        True

    Source: Srivastava et al. 2014, "Dropout: A Simple Way to Prevent Neural Networks from Overfitting"; Zaremba et al.
    2014, "Recurrent Neural Network Regularization"; Gal and Ghahramani 2015, "A Theoretically Grounded Application of
    Dropout in Recurrent Neural Networks"; Semeniuta et al. 2016, "Recurrent Dropout without Memory Loss".
    """
    check_cell("dropout", cell)
    check_rate("dropout", "rate", rate)
    for argument, value, known in (("on", on, get_args(Site)), ("each", each, get_args(Draw))):
        if value not in known:
            raise ValueError(
                f"dropout: `{argument}` must be one of {known}; got {value!r}.{nearest(str(value), known)}"
            )
    if on == "recurrent" and not getattr(cell, "takes_recurrent_mask", False):
        raise TypeError(
            f"dropout: on='recurrent' must directly wrap a cell with a recurrent product; got {cell!r}. Put other "
            "dropout around this one. In your own cells, mask the state inside the recurrent product."
        )
    return Dropout(cell, rate, on, each)


def drop_weights(params: Any, key: Array, rate: float, *, names: Sequence[str] = ("recurrent_kernel",)) -> Any:
    """Drop single weights: each is zero with probability `rate`, the others are scaled by 1 / (1 - rate).

    Call it once per training step, on the parameters of a cell or net, and run the cell or net with the result. All
    steps and rows share the mask. Gradients flow to the original parameters.

    Args:
        params: a pytree of parameters.
        key: a PRNG key; each array derives its own from it.
        rate: the probability, at least 0 and below 1.
        names: the names of the parameters to drop from, at any depth of the pytree.

    Returns:
        Parameters of the same structure.

    Raises:
        ValueError: if the rate is not a probability below 1, or a name is unknown.

    Example:
        >>> import jax
        >>> import rnnscan as rs
        >>> params = rs.cells.LSTM(8).init(jax.random.key(0), input_size=3)
        >>> dropped = rs.drop_weights(params, jax.random.key(1), rate=0.5)
        >>> bool((dropped["recurrent_kernel"] == 0).any()), bool((dropped["kernel"] == 0).any())
        (True, False)

    Source: Wan et al. 2013, "Regularization of Neural Networks using DropConnect"; for recurrent kernels, Merity et al.
    2017, "Regularizing and Optimizing LSTM Language Models", section 2.
    """
    check_rate("drop_weights", "rate", rate)
    places = jax.tree_util.tree_flatten_with_path(params)[0]
    known = list(dict.fromkeys(_name(path) for path, _ in places))
    for name in names:
        if name not in known:
            raise ValueError(
                f"drop_weights: `names` must be names of parameters; got {name!r}. The names are {listing(known)}."
                f"{nearest(name, known)}"
            )
    leaves = [
        drop(leaf, jax.random.bernoulli(jax.random.fold_in(key, number), 1 - rate, leaf.shape), rate)
        if _name(path) in names
        else leaf
        for number, (path, leaf) in enumerate(places)
    ]
    return jax.tree.unflatten(jax.tree.structure(params), leaves)


def _name(path: Any) -> str:
    return str(getattr(path[-1], "key", path[-1])) if path else ""
