"""The scopes of an operation, read off the name that JAX gives it in a compiled program.

Such a name is `jit(loss)/transpose(jvp(LSTM))/while/body/gates/dot_general`: functions, transformations, named scopes,
loops, and last the primitive.
"""

import re
from typing import NamedTuple


# An inner `jax.jit` is no scope of a user, and neither is what transformations and loops are called.
_CALLS = re.compile(r"\b(?:jit|pjit)\([^()]*(?:\([^()]*\))*[^()]*\)")
_TRANSFORMS = re.compile(r"\b\w+\(|\)")
_STRUCTURE = frozenset(
    {"while", "body", "cond", "closed_call", "core_call", "checkpoint", "rematted_computation"}
    | {"custom_jvp_call", "custom_vjp_call", "eval_jaxpr", "shard_map", "pmap"}
)
_BRANCH = re.compile(r"branch_\d+_fun$")


class Scope(NamedTuple):
    """Where an operation comes from.

    Attributes:
        path: the named scopes around it: the cell or function of a scan, its parts, and the name that needs it.
        is_backward: whether it belongs to a backward pass, in which recomputed values are too.
    """

    path: tuple[str, ...] = ()
    is_backward: bool = False

    @property
    def direction(self) -> str:
        """The pass, in a word."""
        return "backward" if self.is_backward else "forward"


def scope_of(origin: str) -> Scope:
    """The scope of an operation.

    Args:
        origin: its name in the compiled program. The names of operations that XLA merged are joined by `;`.
    """
    first = origin.partition(";")[0]
    words = _TRANSFORMS.sub("", _CALLS.sub("", first)).split("/")[:-1]
    path = [word for word in words if word and word not in _STRUCTURE and not _BRANCH.match(word)]
    return Scope(tuple(path), "transpose(" in first)
