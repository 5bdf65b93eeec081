"""All that the rest of a training run follows from, as one pytree of arrays."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Int, Key


class TrainState(NamedTuple):
    """All that the rest of a training run follows from, beside its options and its data.

    Attributes:
        params: the model's parameters, any pytree.
        optimizer_state: optax's state.
        carry: what goes from step to step beside them: the carry of the recurrent cells after the last window, running
            statistics; None where nothing does.
        key: what each step's key is made of.
        step: the number of steps made, those that were skipped among them. The next batch and key follow from it.
        skipped: how many of them were skipped, because something was not finite.
        skipped_in_a_row: how many of the last ones.
    """

    params: Any
    optimizer_state: Any
    carry: Any
    key: Key[Array, ""]
    step: Int[Array, ""]
    skipped: Int[Array, ""]
    skipped_in_a_row: Int[Array, ""]


def begin(params: Any, optimizer: optax.GradientTransformation, *, carry: Any = None, seed: int = 0) -> TrainState:
    """The state before the first step.

    Args:
        params: the parameters to begin with: a pytree of floating-point arrays, such as `net.init(key)`,
            `module.init(key, xs)["params"]` of a Flax linen module, or the parameters of `nnx.split`.
        optimizer: as given to `make_step`.
        carry: what the first step is given beside the parameters.
        seed: of the keys that the steps are given.

    Returns:
        The state. Its arrays are copies, so training leaves those given as they are.

    Example:
        >>> import jax.numpy as jnp
        >>> import optax
        >>> state = begin({"w": jnp.ones(3)}, optax.sgd(0.1))
        >>> int(state.step), state.carry
        (0, None)
    """
    params, carry = jax.tree.map(_own_array, (params, carry))
    # Some optimizers keep the parameters themselves in their state, and no array may be given away twice.
    optimizer_state = jax.tree.map(_own_array, optimizer.init(params))
    zero = jnp.zeros((), jnp.int32)
    return TrainState(params, optimizer_state, carry, jax.random.key(seed), zero, zero, zero)


def _own_array(leaf: Any) -> Array:
    """A copy, of a type that is not weak: a weak type would change when it is saved and read again."""
    return jnp.array(leaf, jnp.asarray(leaf).dtype)
