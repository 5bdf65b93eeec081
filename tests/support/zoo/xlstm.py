"""The two cells of xLSTM, each in its forms."""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from rnnscan.cells.initializers import lecun_normal
from rnnscan.cells.mlstm import MLSTM
from rnnscan.cells.slstm import SLSTM
from zoo.case import Case


@dataclass(frozen=True)
class ScalarCase(Case):
    """An sLSTM, whose normalizer is a sum of exponentials: c / n is of no use where n passes through 0."""

    def arguments(self, **options: Any) -> tuple[Any, Any, Any]:
        params, (hidden, state, normalizer, stabilizer), xs = super().arguments(**options)
        return params, (hidden, state, 1 + jnp.abs(normalizer), stabilizer), xs


CASES = {
    "SLSTM": ScalarCase(SLSTM(4)),
    "SLSTM heads": ScalarCase(SLSTM(4, heads=2, use_bias=False)),
    "SLSTM exp": ScalarCase(SLSTM(4, forget_gate="exp")),
    "MLSTM": Case(MLSTM(4)),
    "MLSTM heads": Case(MLSTM(4, heads=2, use_bias=False)),
    "MLSTM exp": Case(MLSTM(4, heads=2, forget_gate="exp")),
    # A large epsilon, so that it shows. Of the initial parameters only this kernel is random.
    "MLSTM given": Case(
        MLSTM(4, heads=2, projections=False, epsilon=0.1, gate_kernel_init=lecun_normal), features=(12,)
    ),
}
