"""The state of a training run, as one pytree of arrays."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Int, Key

from rnnscan._util.messages import describe, leaves_with_places


class TrainState(NamedTuple):
    """The state of a training run. With the options and the data, it determines the rest of the run.

    Attributes:
        params: the model's parameters, any pytree.
        optimizer_state: optax's state.
        carry: other state that passes from step to step: the cells' carry after the last window, running statistics; or
            None.
        key: the key that each step's key is derived from.
        step: the number of steps so far, including skipped ones.
        skipped: the number of steps skipped because a value was not finite.
        skipped_in_a_row: the number of skipped steps since the last one that was not.
    """

    params: Any
    optimizer_state: Any
    carry: Any
    key: Key[Array, ""]
    step: Int[Array, ""]
    skipped: Int[Array, ""]
    skipped_in_a_row: Int[Array, ""]


def begin(
    params: Any, optimizer: optax.GradientTransformation | optax.MultiSteps, *, carry: Any = None, seed: int = 0
) -> TrainState:
    """The state before the first step.

    Args:
        params: the initial parameters: a pytree of floating-point arrays, such as `net.init(key, input_size)`,
            `module.init(key, xs)["params"]` of a Flax linen module, or the parameters of `nnx.split`.
        optimizer: the optimizer of `make_step`.
        carry: the first step's carry.
        seed: the seed of the steps' keys.

    Returns:
        The state. Its arrays are copies, so training does not change the given ones.

    Raises:
        TypeError: if a parameter is no floating-point array.

    Example:
        >>> import jax.numpy as jnp
        >>> import optax
        >>> state = begin({"w": jnp.ones(3)}, optax.sgd(0.1))
        >>> int(state.step), state.carry
        (0, None)
    """
    for place, leaf in leaves_with_places(params, "params"):
        if not jnp.issubdtype(jnp.result_type(leaf), jnp.inexact):
            raise TypeError(
                f"begin: the parameters must be floating-point arrays, of which a loss has gradients; got {place} "
                f"{describe(leaf)}. Cast it, or close over it."
            )
    params, carry = jax.tree.map(_own_array, (params, carry))
    # Some optimizers keep the parameters in their state, and an array cannot be donated twice.
    optimizer_state = jax.tree.map(_own_array, optimizer.init(params))
    zero = jnp.zeros((), jnp.int32)
    return TrainState(params, optimizer_state, carry, jax.random.key(seed), zero, zero, zero)


def _own_array(leaf: Any) -> Array:
    """A copy without a weak type, which a checkpoint would not preserve."""
    return jnp.array(leaf, jnp.asarray(leaf).dtype)
