"""The options of scan at random."""

from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np

import rnnscan as rs


OPTION_FEATURES = (
    "no steps",
    "one step",
    "reverse",
    "unrolled",
    "truncated",
    "lengths",
    "mask",
    "reset",
    "padding zero",
    "padding hold",
    "padding drop",
    "chunk chosen",
    "chunk of one step",
    "chunk that divides",
    "chunk that does not divide",
    "chunk of all steps or more",
    "no segments",
    "segment that divides",
    "segment that does not divide",
    "segment of all steps or more",
    "segments of the square root",
    "nested segments",
    "names kept",
    "some names recomputed",
    "all recomputed",
)


def random_length(random: np.random.Generator) -> int:
    return int(random.choice([0, 1, random.integers(2, 7), random.integers(2, 14)], p=[0.04, 0.06, 0.6, 0.3]))


def random_rows(random: np.random.Generator, length: int, batch: int) -> dict[str, Any]:
    """What is said of rows: which steps are valid, and where rows start anew."""
    rows: dict[str, Any] = {}
    kind = random.choice(["all", "lengths", "mask"], p=[0.6, 0.2, 0.2])
    if kind == "lengths":
        # Lengths above the number of steps are an error where they are known.
        rows["seq_lengths"] = jnp.asarray(np.minimum(random.integers(0, length + 3, size=batch), length))
    if kind == "mask":
        rows["mask"] = jnp.asarray(random.random((length, batch)) < 0.6)
    if kind != "all":
        rows["padding"] = str(random.choice(["zero", "hold", "drop"]))
    if random.random() < 0.2:
        rows["reset"] = jnp.asarray(random.random((length, batch)) < 0.3)
    return rows


def random_order(random: np.random.Generator, length: int) -> dict[str, Any]:
    options: dict[str, Any] = {"reverse": bool(random.random() < 0.4)}
    if random.random() < 0.2:
        options["truncate"] = int(random.integers(1, length + 2))
    return options


def random_memory(random: np.random.Generator, length: int, names: list[str]) -> rs.Memory:
    recompute: Any = ()
    match random.integers(3):
        case 0:
            recompute = "all"
        case 1:
            recompute = tuple(name for name in names if random.random() < 0.5)
    segment: Any = None
    match random.integers(8):
        case 0 | 1:
            segment = int(random.integers(1, length + 3))
        case 2:
            segment = "sqrt"
        case 3:
            inner = int(random.integers(1, 4))
            segment = (inner + int(random.integers(1, 4)), inner)
    # More often few steps, because a chunk is no longer than its segment.
    most = length + 3 if random.random() < 0.3 else max(1, length // 2)
    chunk = None if random.random() < 0.25 else int(random.integers(1, most + 1))
    return rs.Memory(recompute=recompute, segment=segment, chunk=chunk)


def random_unroll(random: np.random.Generator, length: int, memory: rs.Memory) -> int | bool:
    unroll = [1, 2, 3, True][int(random.choice(4, p=[0.8, 0.08, 0.08, 0.04]))]
    leaves_no_loop = unroll is True or unroll >= length
    # scan warns of it, because nothing is saved then.
    return 1 if leaves_no_loop and memory.segment is None else unroll


def option_features(options: dict[str, Any], memory: rs.Memory, length: int) -> Iterator[str]:
    """What the options say, in words."""
    present = {
        "no steps": length == 0,
        "one step": length == 1,
        "reverse": options["reverse"],
        "unrolled": options["unroll"] != 1 or options["unroll"] is True,
        "truncated": "truncate" in options,
        "lengths": "seq_lengths" in options,
        "mask": "mask" in options,
        "reset": "reset" in options,
        "no segments": memory.segment is None,
        "segments of the square root": memory.segment == "sqrt",
        "nested segments": isinstance(memory.segment, tuple),
        "all recomputed": memory.recompute == "all",
        "some names recomputed": memory.recompute not in ("all", ()),
        "names kept": memory.recompute == (),
    }
    yield from (feature for feature, is_present in present.items() if is_present)
    if "padding" in options:
        yield f"padding {options['padding']}"
    if isinstance(memory.segment, int):
        yield _of_steps("segment", memory.segment, length)
    if memory.chunk is None:
        yield "chunk chosen"
    else:
        yield "chunk of one step" if memory.chunk == 1 else _of_steps("chunk", memory.chunk, length)


def _of_steps(what: str, size: int, length: int) -> str:
    if size >= length:
        return f"{what} of all steps or more"
    return f"{what} that divides" if length % size == 0 else f"{what} that does not divide"
