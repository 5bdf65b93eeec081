"""The types of a node's results for other types of its operands, as JAX infers them."""

from collections.abc import Sequence
from typing import Any

import jax

from rnnscan.graph.nodes.node import Node


def traced_types(node: Node, operands: Sequence[jax.ShapeDtypeStruct]) -> Sequence[Any] | None:
    """The types of a node's results, or None if the operation does not take these operands.

    Args:
        node: the node.
        operands: the types of what it reads.
    """
    try:
        return jax.make_jaxpr(node.evaluate_here)(*operands).out_avals
    except Exception:  # Operations raise different errors, and JAX 0.10 does not export its `ShardingTypeError`.
        return None
