"""The update of the memory cell of long short-term memory, from gates however they were made."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from rnnscan.cells.activations import Activation, activate


def update_state(
    gates: Float[Array, "*batch gates"],
    state: Float[Array, "*batch hidden"],
    *,
    activation: Activation,
    gate_activation: Activation,
) -> tuple[Float[Array, "*batch hidden"], Float[Array, "*batch hidden"]]:
    """The new state, `c' = f * c + i * g`, and the output gate.

    Args:
        gates: what stands inside the activations, in the order i, f, g, o.
        state: c. It is summed up over the whole sequence, so it is updated in its own dtype, not in the gates'.
        activation: of g.
        gate_activation: of i, f and o.

    Returns:
        c' in the dtype of c, and o.
    """
    input_gate, forget_gate, candidate, output_gate = jnp.split(gates, 4, axis=-1)
    forget, write = activate(gate_activation, forget_gate), activate(gate_activation, input_gate)
    new_state = (forget * state + write * activate(activation, candidate)).astype(state.dtype)
    return new_state, activate(gate_activation, output_gate)
