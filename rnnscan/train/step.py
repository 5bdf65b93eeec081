"""One training step: the gradient, clipping, the update, and skipping if a value is not finite."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool

from rnnscan._util.dtypes import at_least_float32
from rnnscan._util.messages import describe
from rnnscan.inside.nonfinite.find import first_nonfinite
from rnnscan.inside.nonfinite.report import Nonfinite
from rnnscan.nets.pieces import training_carry
from rnnscan.train.state import TrainState


Step: TypeAlias = Callable[[TrainState, Any], tuple[TrainState, dict[str, Array]]]
OWN_METRICS = ("step", "loss", "gradient_norm", "skipped")


def make_step(
    loss: Callable[..., tuple[Any, ...]],
    optimizer: optax.GradientTransformation | optax.MultiSteps,
    *,
    clip_norm: float | None = None,
) -> Step:
    """Make the compiled function that trains on one batch: `state, metrics = step(state, batch)`.

    A step is skipped if its loss, its update or the norm of its gradient is not finite, or its carry has a NaN: then
    parameters, optimizer state and carry do not change. `optax.apply_if_finite` leaves out the carry, and applies such
    an update in the end.

    Args:
        loss: `loss(params, carry, batch, key) -> (loss, carry)`, or `(loss, carry, metrics)` with a dictionary of
            scalars to log. The carry is any pytree with fixed shapes and dtypes. No gradient flows between steps:
            truncated backpropagation through time. A net that needs the whole sequence, such as a bidirectional one,
            must not start from this carry. Each step has its own key.
        optimizer: an optimizer of optax.
        clip_norm: the largest norm of the gradient; None: no clipping.

    Returns:
        The step. Its metrics are `"loss"`, `"gradient_norm"` before clipping, `"skipped"`, the number of steps skipped
        so far, and those of `loss`. It compiles for each shape of batch, so make it once. It donates the parameters and
        optimizer state of the given state. `step.first_nonfinite(state, batch)` says why a step is skipped, as
        `rnnscan.first_nonfinite` does.

    Raises:
        ValueError: if `clip_norm` is not above 0; while tracing, if a metric of `loss` has a reserved name, or a net
            that needs the whole sequence starts from the carry.
        TypeError: while tracing, if the carry changes its shapes or dtypes.

    Example:
        >>> import jax.numpy as jnp
        >>> import optax
        >>> from rnnscan.train import begin
        >>> def loss(params, carry, batch, key):
        ...     return jnp.sum((params["w"] - batch) ** 2), carry
        >>> optimizer = optax.sgd(0.25)
        >>> state, metrics = make_step(loss, optimizer)(begin({"w": jnp.zeros(2)}, optimizer), jnp.array([2.0, 4.0]))
        >>> state.params["w"].tolist(), float(metrics["loss"])
        ([1.0, 2.0], 20.0)
    """
    if not callable(loss) or not hasattr(optimizer, "update"):
        raise TypeError(
            "make_step: the arguments must be a function `loss(params, carry, batch, key)` and an optimizer of optax; "
            f"got {loss!r} and {optimizer!r}. Write make_step(loss, optax.adam(1e-3))."
        )
    if clip_norm is not None and not clip_norm > 0:
        raise ValueError(f"make_step: `clip_norm` must be above 0; got {clip_norm}. Pass None for no clipping.")
    # `optax.MultiSteps` is none of optax's types of optimizers, so that the wrapper would drop what it passes on.
    takes_extra_arguments = isinstance(optimizer, optax.MultiSteps)
    update = optimizer.update if takes_extra_arguments else optax.with_extra_args_support(optimizer).update

    def updated(
        params: Any, optimizer_state: Any, rest: TrainState, batch: Any
    ) -> tuple[Array, dict[str, Any], Array, Any, Any, Any]:
        key = jax.random.fold_in(rest.key, rest.step)

        def loss_of(params: Any) -> tuple[Array, tuple[Any, dict[str, Any]]]:
            # Copied, because a variable of nnx can change only in the trace that made it.
            carry = jax.tree.map(lambda leaf: leaf, rest.carry)
            with training_carry(carry):
                result = loss(params, carry, batch, key)
            _check_result(result)
            value, carry, *more = result
            return value, (carry, dict(more[0]) if more else {})

        (value, (carry, more)), gradient = jax.value_and_grad(loss_of, has_aux=True)(params)
        _check_names(more)
        _check_carry(rest.carry, carry)
        gradient, norm = _clip(gradient, clip_norm)
        updates, new_optimizer_state = update(
            gradient, optimizer_state, params, value=value, grad=gradient, value_fn=lambda params: loss_of(params)[0]
        )
        return value, more, norm, updates, new_optimizer_state, carry

    @partial(jax.jit, donate_argnames=("params", "optimizer_state"))
    def compiled(
        params: Any, optimizer_state: Any, rest: TrainState, batch: Any
    ) -> tuple[TrainState, dict[str, Array]]:
        value, more, norm, updates, new_optimizer_state, carry = updated(params, optimizer_state, rest, batch)
        finite = _all(jnp.isfinite, (value, norm, updates)) & _all(lambda leaf: ~jnp.isnan(leaf), carry)
        new = (optax.apply_updates(params, updates), new_optimizer_state, carry)
        old = (params, optimizer_state, rest.carry)
        new_params, new_optimizer_state, carry = jax.tree.map(partial(jnp.where, finite), new, old)
        skipped = rest.skipped + ~finite
        in_a_row = jnp.where(finite, 0, rest.skipped_in_a_row + 1)
        state = TrainState(new_params, new_optimizer_state, carry, rest.key, rest.step + 1, skipped, in_a_row)
        return state, {"loss": value, **more, "gradient_norm": norm, "skipped": skipped}

    return _OptimizerStep(compiled, updated)


class _OptimizerStep:
    """A training step that can say which value is not finite."""

    def __init__(self, compiled: Callable[..., Any], updated: Callable[..., Any]) -> None:
        self._compiled, self._updated = compiled, updated

    def __call__(self, state: TrainState, batch: Any) -> tuple[TrainState, dict[str, Array]]:
        """Train on one batch."""
        rest = state._replace(params=None, optimizer_state=None)
        state, metrics = self._compiled(state.params, state.optimizer_state, rest, batch)
        return state, {"loss": metrics.pop("loss"), **metrics}  # jit sorts by name

    def first_nonfinite(self, state: TrainState, batch: Any) -> Nonfinite | None:
        """The first value that is not finite and for which the step is skipped; None if it is not skipped."""

        @jax.jit
        def checked(state: TrainState, batch: Any) -> dict[str, Any]:
            rest = state._replace(params=None, optimizer_state=None)
            value, _, norm, updates, _, carry = self._updated(state.params, state.optimizer_state, rest, batch)
            carry = jax.tree.map(_without_infinities, carry)
            return {"loss": value, "gradient_norm": norm, "updates": updates, "carry": carry}

        return first_nonfinite(checked, state, batch)


def _without_infinities(leaf: Array) -> Array:
    """A leaf of the carry, which may have infinities, but no NaN."""
    return jnp.where(jnp.isinf(leaf), 0, leaf) if jnp.issubdtype(leaf.dtype, jnp.inexact) else leaf


def _clip(gradient: Any, clip_norm: float | None) -> tuple[Any, Array]:
    """The clipped gradient, and its norm before clipping."""
    # In float16 the square of 256 is infinite.
    wide = jax.tree.map(lambda leaf: leaf.astype(at_least_float32(leaf.dtype)), gradient)
    norm = optax.tree.norm(wide)
    if clip_norm is None:
        return gradient, norm
    clipped, _ = optax.clip_by_global_norm(clip_norm).update(wide, optax.EmptyState())
    return jax.tree.map(lambda leaf, original: leaf.astype(original.dtype), clipped, gradient), norm


def _all(check: Callable[[Array], Array], tree: Any) -> Bool[Array, ""]:
    """Whether all floating-point numbers in a tree pass a check."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    return jnp.all(jnp.array([check(leaf).all() for leaf in leaves], bool))


def _check_result(result: Any) -> None:
    if not isinstance(result, tuple) or len(result) not in (2, 3):
        raise TypeError(
            "make_step: `loss(params, carry, batch, key)` must return (loss, carry) or (loss, carry, metrics); got "
            f"{jax.tree.map(describe, result)}. A model without a carry returns the given one."
        )


def _check_names(metrics: Mapping[str, Any]) -> None:
    for name in metrics:
        if name in OWN_METRICS:
            raise ValueError(
                f"make_step: the metrics of `loss` must have names other than {', '.join(OWN_METRICS)}; got {name!r}. "
                "Rename it."
            )
        if jnp.shape(metrics[name]):
            raise ValueError(
                f"make_step: the metrics of `loss` must be scalars; got {name!r} {describe(metrics[name])}. Take its "
                "mean."
            )


def _check_carry(carry: Any, returned: Any) -> None:
    """Reject a carry whose structure, shapes or dtypes change."""
    expected: Any = jax.tree.structure(carry)
    actual: Any = jax.tree.structure(returned)
    if actual != expected:
        raise TypeError(
            "make_step: the carry that `loss` returns must have the structure of the given one; got "
            f"{actual} for {expected}. Return `(loss, carry)`, and pass an initial carry to `begin`."
        )
    for (path, before), after in zip(
        jax.tree_util.tree_leaves_with_path(carry), jax.tree.leaves(returned), strict=True
    ):
        if (before.shape, before.dtype) != (after.shape, after.dtype):
            raise TypeError(
                "make_step: the carry that `loss` returns must have the shapes and dtypes of the given one; got "
                f"{jax.typeof(after)} for {jax.typeof(before)} at carry{jax.tree_util.keystr(path)}. Cast it, or pass "
                "`begin` a carry of that type."
            )
