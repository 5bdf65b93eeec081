"""What pays to do for many steps at once, and for how many: by backend, in one place, each with its measurement."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from rnnscan.engine.fission.program import TRANSCENDENTAL, Equation, Value, nominal_size, values_of


# What would have to run for all steps at once too, to feed an equation. A function, because few equations are asked.
Feeding: TypeAlias = Callable[[], Sequence[Equation]]
# Whether an equation should run for all steps at once, given that, and the values that are the same at every step.
ShouldBatch: TypeAlias = Callable[[Equation, Feeding, Collection[Value]], bool]


class StepBytes(NamedTuple):
    """What a step takes in memory.

    Attributes:
        made: what a step adds to what is made for a chunk at once.
        given: its carry and its input.
        kept: what is kept of every step, the input with it.
        starts: what is kept at the beginning of a chunk only.
    """

    made: int
    given: int
    kept: int
    starts: int


@dataclass(frozen=True)
class Heuristics:
    """The engine's choices where more than one is right.

    Attributes:
        batch: "costly": batch products that read an operand again and again and functions that take many operations an
            element, and leave cheap work in the loops, fused with what reads it. "everything": batch whatever waits for
            no loop.
        linear: "loop": run linear recurrences step by step, fused with what they read. "associative": in a logarithmic
            number of rounds.
        shortest_chunk: steps of a chunk, at least.
        quick_chunk: steps from which on a longer chunk is hardly quicker.
        longest_chunk: steps of a chunk, at most.
        chunk_bytes: what may be made for a chunk at once, if it is longer than the quick one.
        chunk_with_starts: steps of a chunk where much of what is kept is kept at the beginning of each.
        chunk_bytes_with_starts: what may be made for such a chunk at once.
        transpose_rows: whether a product that contracts over the rows of both matrices, `x.T @ y`, has the narrower one
            transposed first.
    """

    batch: Literal["costly", "everything"]
    linear: Literal["loop", "associative"]
    shortest_chunk: int
    quick_chunk: int
    longest_chunk: int
    chunk_bytes: int
    chunk_with_starts: int
    chunk_bytes_with_starts: int
    transpose_rows: bool

    def should_batch(self, equation: Equation, feeding: Feeding, fixed: Collection[Value]) -> bool:
        """Whether an equation should run for all steps of a chunk at once.

        Args:
            equation: the equation.
            feeding: what would have to run for all steps at once too, to feed it.
            fixed: values that are the same at every step.
        """
        if self.batch == "everything":
            return True
        varying = [value for value in values_of(equation.inputs) if value not in fixed]
        made = equation.outputs[0].nbytes
        if equation.primitive.name in TRANSCENDENTAL:
            return made <= _CACHED_BYTES and not _too_large(feeding(), made)
        if equation.primitive.name not in PRODUCTS or len(varying) != 1:
            return False
        moved = varying[0].nbytes + made
        return _operations(equation) >= _OPERATIONS_PER_BYTE * moved and not _too_large(feeding(), moved)

    def should_batch_forward(self, loops: Iterable[Equation]) -> ShouldBatch:
        """What pays to batch in the forward pass, where `loops` must run step by step.

        Nothing, where a loop is bound by a product of its own: the rest is done in its shadow. With few rows to batch
        some would pay, and little: at N = 1 to 4 the forward time of an LSTM with 256 units went down by a tenth.
        """
        if self.batch == "costly" and any(equation.primitive.name in PRODUCTS for equation in loops):
            return lambda *_: False
        return self.should_batch

    def chunk(self, length: int, step: StepBytes) -> int:
        """Steps of a chunk.

        Args:
            length: steps of the sequence.
            step: bytes of a step.
        """
        if length < 2 * self.quick_chunk:
            # The stacks of more chunks would take more memory than shorter ones save.
            return max(1, min(length, self.quick_chunk))
        made = max(1, step.made)
        fitting = max(self.quick_chunk, min(self.longest_chunk, self.chunk_bytes // made))
        if step.starts * _KEPT_BYTES_PER_START > step.kept * fitting:
            fitting = max(fitting, min(self.chunk_with_starts, self.chunk_bytes_with_starts // made))
        # A longer one would be the better part of a short sequence, or take more memory than is saved.
        worthwhile = min(-(-length // 8), int(_CHUNK_BYTES_PER_GIVEN * length * step.given / made))
        most = max(self.shortest_chunk, min(fitting, worthwhile))
        # A chunk that is shorter than the others is a second copy of the loops to compile, and of ys to make.
        return max((steps for steps in range(most, most // 2, -1) if length % steps == 0), default=most)


PRODUCTS = frozenset({"dot_general", "conv_general_dilated"})

# Batching these changes what they cost: a vmapped cond runs both branches, a vmapped while runs to the longest.
_UNBATCHABLE = frozenset({"cond", "while", "scan", "sort", "custom_vjp_call", "pallas_call"})

# A product with a vector does two operations an element that it reads, and gains nothing from more rows; one with a
# matrix of 16 columns or more does 4 a byte.
_OPERATIONS_PER_BYTE = 4
# The tanh of an additive attention makes 78 times what the product after it moves; a gate makes at most four times.
_FEEDING_BYTES = 8
# A gate of an LSTM at (N, H) = (64, 512) makes 128 KiB a step, and 2 MiB a chunk of 16, which is half of a core's part
# of the last cache; the tanh of an attention over 200 positions makes 1.6 MiB a step.
_CACHED_BYTES = 256 << 10
# An LSTM that keeps no gate keeps its c before every 16 steps, beside x and h, of 24 times as many bytes.
_KEPT_BYTES_PER_START = 24
# Of what `jax.checkpoint` on the step would keep of the sequence. For an LSTM with layer normalisation this is 4 steps
# at T = 128, for a GRU of the same size it would be 13.
_CHUNK_BYTES_PER_GIVEN = 3.5

# The figures that set these are in docs/decisions.md, "The fission engine". No GPU has been measured yet.
BACKENDS = {
    "cpu": Heuristics(
        batch="costly",
        linear="loop",
        shortest_chunk=4,
        quick_chunk=8,
        longest_chunk=128,
        chunk_bytes=16 << 20,
        chunk_with_starts=16,
        chunk_bytes_with_starts=48 << 20,
        transpose_rows=True,
    ),
    "gpu": Heuristics(
        batch="everything",
        linear="associative",
        # With one chunk for a whole short sequence nothing would be saved by computing again.
        shortest_chunk=16,
        quick_chunk=16,
        longest_chunk=128,
        chunk_bytes=1 << 30,
        chunk_with_starts=16,
        chunk_bytes_with_starts=1 << 30,
        transpose_rows=False,
    ),
}

_chosen = jax.make_user_context(None)


@contextmanager
def using(heuristics: Heuristics) -> Iterator[None]:
    """Trace inside this context with other heuristics than the backend's."""
    with _chosen(heuristics):
        yield


def heuristics() -> Heuristics:
    """The heuristics in force: those of `using`, else the backend's."""
    chosen: Heuristics | None = _chosen.value
    return chosen or BACKENDS["cpu" if jax.default_backend() == "cpu" else "gpu"]


def unbatchable(equation: Equation) -> bool:
    """Whether an equation must run step by step, because batching it changes what it costs, or what it draws."""
    return equation.primitive.name in _UNBATCHABLE or _draws_otherwise_at_once(equation)


def _draws_otherwise_at_once(equation: Equation) -> bool:
    """Whether it draws from keys of an implementation such as "rbg", which under vmap draws other bits than alone."""
    dtypes = [atom.dtype for atom in equation.inputs]
    return equation.primitive.name == "rng_bit_generator" or any(
        jnp.issubdtype(dtype, jax.dtypes.prng_key) and dtype != _threefry() for dtype in dtypes
    )


@cache
def _threefry() -> Any:
    """The dtype of keys whose draws are the same alone and under vmap."""
    return jax.eval_shape(lambda: jax.random.key(0, impl="threefry2x32")).dtype


def too_large_to_feed(value: Value, feeding: Sequence[Equation]) -> bool:
    """Whether what would have to run for all steps at once to make a value is much larger than it."""
    return heuristics().batch == "costly" and _too_large(feeding, value.nbytes)


def _operations(equation: Equation) -> int:
    out = nominal_size(equation.outputs[0].shape)
    if equation.primitive.name == "dot_general":
        (contracted, _), _ = equation.params["dimension_numbers"]
        return 2 * out * nominal_size(equation.inputs[0].shape[axis] for axis in contracted)
    dimensions: Any = equation.params["dimension_numbers"]
    kernel = equation.inputs[1].shape
    return 2 * out * nominal_size(kernel) // nominal_size([kernel[dimensions.rhs_spec[0]]])


def _too_large(feeding: Sequence[Equation], moved: int) -> bool:
    return any(output.nbytes > _FEEDING_BYTES * moved for equation in feeding for output in equation.outputs)
