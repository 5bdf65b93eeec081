"""What nets share: the options of a call, and who of several gets which names of a memory choice."""

from dataclasses import dataclass, field, replace
from typing import Any

import jax
from jax import lax
from jaxtyping import Array, Bool, Integer

from rnnscan.memory import Memory
from rnnscan.messages import describe, listing, nearest
from rnnscan.sequence import Padding


class Net:
    """The base of nets, which tells them from cells.

    A net has `init(key, input_size)`, `initial_carry(xs)`, `names` and `output_size`, and is called as
    `net(params, xs, carry=None, *, key=None, ...) -> (carry, ys)`; the options are those of `Layer`.
    """

    @property
    def needs_whole(self) -> str | None:
        """Why the net needs the whole sequence, in one sentence; None where it runs in pieces."""
        return None

    @property
    def runs_in_pieces(self) -> bool:
        """Whether pieces of a sequence, with the carry handed on, equal the whole."""
        return self.needs_whole is None


@dataclass(frozen=True)
class Options:
    """The options of a call of a net; `Layer` says what each is."""

    first_step: Any = 0
    seq_lengths: Integer[Array, " batch"] | None = None
    mask: Bool[Array, "time batch"] | None = None
    reset: Bool[Array, "time batch"] | None = None
    padding: Padding = "zero"
    memory: Memory | None = field(default_factory=Memory)
    engine: str = "auto"

    def restricted_to(self, names: tuple[str, ...]) -> "Options":
        """The options for one of several nets: a memory choice speaks to it of the names that it has."""
        memory = self.memory
        if memory is None:
            return self
        recompute: Any = memory.recompute
        if recompute != "all":
            recompute = tuple(name for name in recompute if name in names)
        offload = tuple(name for name in memory.offload if name in names)
        return replace(self, memory=replace(memory, recompute=recompute, offload=offload))

    def check_names(self, net: str, names: tuple[str, ...]) -> None:
        """Refuse names that none of several nets has, because each would be told of its own only."""
        if self.memory is None:
            return
        asked = () if self.memory.recompute == "all" else self.memory.recompute
        for name in (*asked, *self.memory.offload):
            if name not in names:
                raise ValueError(
                    f"{net}: a memory choice must speak of names that the net has; got {name!r}, and there are "
                    f"{listing(names)}.{nearest(name, names)}"
                )


def one_step(xs: Any) -> Any:
    """What has the shape of one step's input. Its values do not matter, and there may be no step."""
    return jax.tree.map(lambda leaf: lax.full_like(leaf, 0, shape=leaf.shape[1:]), xs)


def check_parts(net: str, parts: tuple[str, ...], params: Any, carry: Any) -> None:
    """Refuse parameters and carries that have not one entry for each part of a net."""
    if not isinstance(params, dict) or sorted(params) != sorted(parts):
        got = listing(params) if isinstance(params, dict) else describe(params)
        raise ValueError(
            f"{net}: the parameters must be a dictionary with the entries {listing(parts)}; got {got}. "
            "Make them with net.init(key, input_size)."
        )
    if carry is not None and (not isinstance(carry, tuple) or len(carry) != len(parts)):
        raise TypeError(
            f"{net}: the carry must be a tuple with one carry for each of {listing(parts)}, or None; got "
            f"{jax.tree.structure(carry)}. Start from net.initial_carry(xs)."
        )
