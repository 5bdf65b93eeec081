"""The names of a file's inputs and outputs."""

import re
from collections.abc import Sequence
from itertools import chain, count
from typing import Any

import jax

from rnnscan.compose.wrapper import Wrapper
from rnnscan.export.common.specs import spec_of
from rnnscan.export.onnx.builder import Port
from rnnscan.nets import Bidirectional, Chain, Layer


def carry_names(net: Any, carry: Any, prefix: str) -> Any:
    """Names for the leaves of a carry, in its structure.

    The part of the net and the name of the state, such as `net_0_forward_hidden`.

    Args:
        net: a net or a cell.
        carry: its carry, or None.
        prefix: the beginning of each name, such as "initial".
    """
    if carry is None:
        return None
    if isinstance(net, Layer | Wrapper):
        return carry_names(net.cell, carry, prefix)
    parts: list[tuple[str, Any]] = []
    if isinstance(net, Chain):
        parts = [(f"net_{number}", part) for number, part in enumerate(net.nets)]
    elif isinstance(net, Bidirectional):
        parts = [("forward", net.forward), ("backward", net.backward)]
    elif hasattr(net, "cells"):
        parts = [(f"layer_{number}", cell) for number, cell in enumerate(net.cells)]
    elif hasattr(net, "carry_names"):
        parts = [(name, None) for name in net.carry_names]
    if isinstance(carry, tuple) and len(parts) == len(carry):
        pairs = zip(parts, carry, strict=True)
        return tuple(carry_names(part, of_part, f"{prefix}_{name}") for (name, part), of_part in pairs)
    return leaf_names(carry, prefix)


def leaf_names(tree: Any, root: str) -> Any:
    """Names for the leaves of a pytree, in its structure: the root and the path, such as `output_0_classes`."""
    return jax.tree_util.tree_map_with_path(
        lambda path, _: "_".join([root, *re.findall(r"\w+", jax.tree_util.keystr(path))]), tree
    )


def ports(names: Any, tree: Any, taken: Sequence[Port] = ()) -> list[Port]:
    """The inputs or outputs for the leaves of a pytree of types. A name that is taken gets a number."""
    used = {port.name for port in taken}
    new_ports = []
    for name, leaf in zip(jax.tree.leaves(names), jax.tree.leaves(tree), strict=True):
        distinct = next(
            candidate
            for candidate in chain([name], (f"{name}_{number}" for number in count(2)))
            if candidate not in used
        )
        used.add(distinct)
        new_ports.append(Port(distinct, spec_of(leaf)))
    return new_ports
