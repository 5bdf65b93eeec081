"""The base of cells with the memory of an LSTM."""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
from jaxtyping import Array

from rnnscan.cells.activations import Activation, activate, identity
from rnnscan.cells.base import Carry, Params
from rnnscan.cells.dense import KernelCell


@dataclass(frozen=True, repr=False)
class MemoryCell(KernelCell):
    """The base of cells with the gates i, f, g, o and the carry (h, c).

        c' = f * c + i * g
        h' = o * activation(c')

    Args:
        forget_bias: added by `init` to the last bias of the forget gate.
        activation: the activation of g and c'.
        gate_activation: the activation of i, f and o.
    """

    blocks: ClassVar[Any] = 4
    carry_names: ClassVar[tuple[str, ...]] = ("hidden", "cell")
    names: ClassVar[tuple[str, ...]] = ("gates",)

    _: KW_ONLY
    forget_bias: float = 1.0
    activation: Activation = "tanh"
    gate_activation: Activation = "sigmoid"

    @property
    def _forget_block(self) -> slice:
        return slice(self.hidden_size, 2 * self.hidden_size)

    def _add_forget_bias(self, params: Params) -> Params:
        last = "norm_bias" if "norm_bias" in params else "bias"
        if last not in params:
            return params
        return params | {last: params[last].at[self._forget_block].add(self.forget_bias)}

    def _update(
        self, gates: Array, carry: Carry, normalize: Callable[[Array], Array] = identity
    ) -> tuple[Carry, Array]:
        """The new carry and y, from the preactivations of i, f, g and o. `normalize` applies to c' in h'."""
        input_gate, forget_gate, candidate, output_gate = jnp.split(gates, 4, axis=-1)
        forget, write = activate(self.gate_activation, forget_gate), activate(self.gate_activation, input_gate)
        # The cell state accumulates over the whole sequence, so it is updated in its own dtype, not in the gates'.
        state = (forget * carry[1] + write * activate(self.activation, candidate)).astype(carry[1].dtype)
        output_gate = activate(self.gate_activation, output_gate)
        hidden = output_gate * activate(self.activation, normalize(state))
        return (hidden.astype(carry[0].dtype), state), hidden.astype(gates.dtype)
