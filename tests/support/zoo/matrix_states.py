"""Linear attention and selective state spaces, each cell in its forms."""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from rnnscan.cells.delta_net import DeltaNet
from rnnscan.cells.gla import GLA
from rnnscan.cells.linear_attention import LinearAttention
from rnnscan.cells.mamba2 import Mamba2
from rnnscan.cells.retnet import RetNet
from rnnscan.cells.s6 import S6
from zoo.case import Case


@dataclass(frozen=True)
class NormalizedCase(Case):
    """Linear attention, whose normalizer is a sum of positive keys."""

    def arguments(self, **options: Any) -> tuple[Any, Any, Any]:
        params, (state, normalizer), xs = super().arguments(**options)
        return params, (state, 1 + jnp.abs(normalizer)), xs


CASES = {
    "GLA": Case(GLA(4)),
    "GLA heads": Case(GLA(4, heads=2, key_size=3, decay_rank=2, temperature=2.0)),
    "RetNet": Case(RetNet(4)),
    "RetNet heads": Case(RetNet(4, heads=2, key_size=3, value_size=2)),
    "LinearAttention": NormalizedCase(LinearAttention(4)),
    "LinearAttention heads": NormalizedCase(LinearAttention(4, heads=2, value_size=3, use_bias=False)),
    # Four heads: the gradient of one head's scalar may cancel to less than bfloat16's rounding.
    "Mamba2": Case(Mamba2(4, heads=4, key_size=3)),
    "Mamba2 groups": Case(Mamba2(4, heads=4, key_size=3, value_size=2, groups=2, window=2)),
    "S6": Case(S6(4, state_size=3), features=(4,)),
    "S6 rank": Case(S6(4, state_size=2, rank=2), features=(4,)),
    "S6 euler": Case(S6(4, state_size=3, discretization="euler"), features=(4,)),
    "DeltaNet": Case(DeltaNet(4)),
    "DeltaNet heads": Case(DeltaNet(4, heads=2, key_size=3)),
}
