"""Which work to batch over steps, and over how many, by backend. Each number has its measurement."""

from collections.abc import Callable, Collection, Iterable, Sequence, Set
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from rnnscan._util.trace_context import trace_context, tracing_with
from rnnscan.engine.costs.chunk import StepBytes, copies_more_than_it_saves, near_divisor
from rnnscan.engine.costs.costs import (
    is_bounded,
    is_cut_from_a_stack,
    should_batch_function,
    should_batch_product,
    too_large,
    too_large_to_stack,
    work_of_products,
)
from rnnscan.engine.costs.frontier import Frontier
from rnnscan.engine.costs.machine import CPU, GPU, TPU, Machine
from rnnscan.engine.costs.platform import default_platform, platform_of
from rnnscan.ir.program import Equation, Value, outputs_of, total_bytes
from rnnscan.ir.traits import SCANS, Kind, names_of
from rnnscan.newton import Newton


# Whether to batch an equation, given what materializes its operands, and the values that are the same at
# every step.
ShouldBatch: TypeAlias = Callable[[Equation, Callable[[], Frontier], Collection[Value]], bool]


# What is batched of a step that runs whole.
Whole: TypeAlias = Literal["nothing", "inputs"]


@dataclass(frozen=True)
class Heuristics:
    """The engine's choices where more than one is right.

    Attributes:
        machine: how long operations take there.
        batch: "costly": batch products that read an operand repeatedly, and transcendental functions. Cheap work stays
            in the loops, fused with its readers. "everything": batch all work that waits for no loop. "bounded": the
            same, without work that makes much larger values than it reads. "inputs": batch products of inputs alone.
            "nothing": the step runs whole, in one loop.
        linear: "loop": run linear recurrences step by step, fused with their inputs. "associative": as an associative
            scan, in blocks.
        shortest_chunk: the least number of steps of a chunk, unless steps are too large for it.
        shortest_chunk_bytes: the bytes that such a chunk may make beside six times those of all carries and inputs.
        quick_chunk: the number of steps above which longer chunks are hardly faster.
        longest_chunk: the largest number of steps of a chunk.
        chunk_bytes: the most bytes that a chunk longer than the quick one may make.
        chunk_bytes_with_starts: the most bytes that a chunk may make if many of the kept bytes are at its start.
        least_state: the least number of keys and of values for which a matrix state runs in chunkwise form; None: none
            does. A step of the loop does 3 K V multiplications a row, the chunkwise form 2 K V + C (K + V) for chunks
            of C steps; but the loop reads and writes S once a step, the form once a chunk. Its products of small
            matrices are slow.
        state_chunk: C, a power of two, for sequences of two such chunks and more.
        longest_window: the most steps of a window of the chunkwise form. The carry is kept before each.
        loops_states_forward: whether a loop runs matrix states where nothing is differentiated.
        transpose_rows: whether to transpose the narrower operand of a product `x.T @ y` over rows first.
        transpose_weights: whether to transpose a weight once, where a loop reads its columns.
        contracts_sums: whether the sum of a matrix times a vector is a product on the backward pass.
        merges_at_once: whether the products of a batched sum are one product, `[x h] @ [w; u]`.
        unroll: the most steps of an iteration of a loop.
        slices_stacks: whether a loop stacks a value within a concatenation that it stacks too, and not by itself.
        barrier_on_stacks: whether barriers keep XLA from computing a stack again within each of its readers.
        barrier_every: after how many steps of an iteration a barrier is on the carry of a loop with a product; 0: none
            is.
        writes_repeated: whether loops write costly values that XLA would make several times in one kernel.
        expensive_bytes: the most bytes that are kept, over all steps, of values that a cell without names takes long to
            compute again.
        long_axes_last: whether a loop carries its leaves with a long axis last.
        whole: whether a step that is mostly recurrent runs whole in one loop, and is not split.
        one_kernel: whether a small step is written out, so that its loop is one kernel.
        small_residuals: the most bytes of residuals that such a loop keeps, over all steps.
    """

    machine: Machine
    batch: Literal["costly", "bounded", "everything"] | Whole
    linear: Literal["loop", "associative"]
    shortest_chunk: int
    shortest_chunk_bytes: int
    quick_chunk: int
    longest_chunk: int
    chunk_bytes: int
    chunk_bytes_with_starts: int
    transpose_rows: bool
    transpose_weights: bool = True
    contracts_sums: bool = False
    merges_at_once: bool = True
    least_state: int | None = 16
    state_chunk: int = 64
    longest_window: int = 128
    loops_states_forward: bool = False
    whole: bool = False
    one_kernel: bool = False
    small_residuals: int = 0
    unroll: int = 1
    slices_stacks: bool = False
    barrier_on_stacks: bool = False
    barrier_every: int = 0
    writes_repeated: bool = False
    expensive_bytes: int = 0
    long_axes_last: bool = False

    @property
    def runs_whole(self) -> bool:
        """Whether one loop runs the step."""
        return self.batch in ("nothing", "inputs")

    @property
    def runs_in_a_kernel(self) -> bool:
        """Whether that loop is one kernel."""
        return self.runs_whole and self.one_kernel

    def unroll_of(self, body: Collection[Equation], steps: int) -> int:
        """The steps of a loop's iteration.

        Args:
            body: the equations of a step. One that has a loop within is not unrolled: that would save nothing.
            steps: the steps of the loop.
        """
        if not all(map(_LOOPS.isdisjoint, (equation.names for equation in body))):
            return 1
        most = max(1, min(self.unroll, steps, _UNROLLED_EQUATIONS // max(1, len(body))))
        # A remainder is compiled once more.
        return max(iteration for iteration in range(1, most + 1) if steps % iteration == 0)

    def should_batch(
        self,
        equation: Equation,
        find: Callable[[], Frontier],
        fixed: Collection[Value],
        shared: Set[Equation] = frozenset(),
    ) -> bool:
        """Whether to batch an equation over the steps of a chunk.

        What it saves and what it costs are both counted in bytes: those that are not read again at each step, and those
        that are stacked.

        Args:
            equation: the equation.
            find: finds what materializes its operands. Few equations need it.
            fixed: values that are the same at every step.
            shared: equations that two loops would run: the one that recomputes carries, and the pull-back.
        """
        if self.runs_whole:
            return self.batch == "inputs" and equation.kind is Kind.PRODUCT and not find().materialized
        if self.batch != "costly":
            return self.batch == "everything" or is_bounded(equation, find)
        if equation.traits.is_transcendental:
            return should_batch_function(equation, find)
        if equation.kind is Kind.PART:
            return is_cut_from_a_stack(find)
        if equation.kind is Kind.PLACE:
            return True  # It may be a gather, which is then one for a chunk of steps.
        return equation.kind is Kind.PRODUCT and should_batch_product(equation, find, fixed, shared)

    def may_batch(self, equation: Equation) -> bool:
        """Whether `should_batch` can be true of an equation, whatever materializes its operands."""
        traits = equation.traits
        costs = traits.is_transcendental or traits.kind in (Kind.PRODUCT, Kind.PART, Kind.PLACE)
        return self.batch != "costly" or costs

    def too_large_to_feed(self, value: Value, feeding: Sequence[Equation]) -> bool:
        """Whether batching a value would make values that are much larger."""
        return self.batch == "costly" and too_large(feeding, value.nbytes)

    def should_repeat(self, equation: Equation, carry: Iterable[Value]) -> bool:
        """Whether a loop computes again what is batched too: elementwise work on values too large to be stacked.

        The tanh of an additive attention is 100 times the carry. Batched over 16 steps it makes sums of itself, which
        are small, and would be stacked for the loop of the backward pass only.
        """
        is_elementwise = equation.traits.is_elementwise or equation.kind is Kind.VIEW
        return self.batch == "bounded" and is_elementwise and too_large_to_stack(equation.outputs, carry)

    def should_batch_forward(self, loops: Iterable[Equation]) -> ShouldBatch:
        """The test for batching in the forward pass, where `loops` must run step by step.

        Batch nothing if a product bounds a loop, because other work hides behind it. With few rows batching gains
        little: at N = 1 to 4, a tenth of the forward time of an LSTM with 256 units. Functions of inputs hide behind
        much larger values.
        """
        if self.batch != "costly":
            return self.should_batch
        loops = list(loops)
        if any(equation.kind is Kind.PRODUCT for equation in loops):
            return lambda *_: False
        largest = max((value.nbytes for value in outputs_of(loops)), default=0)

        def should_batch(equation: Equation, find: Callable[[], Frontier], fixed: Collection[Value]) -> bool:
            hides = _HIDDEN * total_bytes(equation.outputs) <= largest and not find().materialized
            return not hides and self.should_batch(equation, find, fixed)

        return should_batch

    def chunk(self, length: int, bytes_of_step: Callable[[], StepBytes]) -> int:
        """The number of steps of a chunk.

        Args:
            length: the number of steps of the sequence.
            bytes_of_step: finds the bytes of a step, which takes a split of it. The chunks of a short sequence do not
                depend on them.
        """
        if length < 2 * self.quick_chunk:  # More chunks would stack more bytes than they save.
            return max(1, min(length, self.quick_chunk))
        step = bytes_of_step()
        if self.batch == "costly" and copies_more_than_it_saves(step, self.machine):
            return 1
        made = max(1, step.made)
        fitting = max(self.quick_chunk, min(self.longest_chunk, self.chunk_bytes // made))
        if step.starts * _KEPT_BYTES_PER_START > step.kept * fitting:
            fitting = max(fitting, min(_CHUNK_WITH_STARTS, self.chunk_bytes_with_starts // made))
        # A longer chunk would be most of a short sequence, or take more memory than it saves.
        worthwhile = min(-(-length // 8), int(_CHUNK_BYTES_PER_GIVEN * length * step.given / made))
        most_bytes = self.shortest_chunk_bytes + _SHORTEST_CHUNK_BYTES_PER_GIVEN * length * step.given
        shortest = min(self.shortest_chunk, most_bytes // made)
        most = max(shortest if shortest > _HARDLY_A_CHUNK else 1, min(fitting, worthwhile))
        return near_divisor(length, most)

    def runs_steps_alone(self, equations: Iterable[Equation], fixed: Collection[Value]) -> bool:
        """Whether steps without a loop are no faster in chunks: their products have rows enough of their own.

        They take longer than reading the matrices. Gradients of a model over 16 batches of 32 rows, summed in the
        carry, take 0.85 of the time of chunks of 4 steps.

        Args:
            equations: a step.
            fixed: values that are the same at every step.
        """
        if self.batch != "costly":
            return False
        operations, matrices = work_of_products(equations, fixed)
        time_to_read = self.machine.ns_per_written_byte * matrices
        return self.machine.ns_per_batched_operation * operations >= time_to_read > 0

    def reads_more_than_it_saves(self, read: int, batched: Iterable[Equation], fixed: Collection[Value]) -> bool:
        """Whether a step's loops read more of batched values than is not read of matrices for it.

        Hamiltonian Monte Carlo reads 43 of the values around its products, 205 KiB, where the matrices of these have
        80. With nothing batched it takes 0.88 of the time and half the memory, and an online softmax 0.95 of the time.
        No cell of the library reads more than 0.7 of its matrices' bytes.

        Args:
            read: the bytes of the batched values that loops read.
            batched: the batched equations.
            fixed: values that are the same at every step.
        """
        return self.batch == "costly" and read > work_of_products(batched, fixed)[1]

    def state_chunk_of(self, length: int, chosen: int | None) -> int | None:
        """The number of steps of a chunk of matrix states; None if the sequence is too short for two chunks.

        Args:
            length: the number of steps of the sequence.
            chosen: the number of steps of a chunk that the user chose.
        """
        if chosen is not None:
            chunk = 1 << max(1, chosen.bit_length() - 1)
            return chunk if length >= 2 * chunk else None
        chunk = min(self.state_chunk, 1 << max(0, length.bit_length() - 2))
        return chunk if chunk >= min(self.state_chunk, _LEAST_STATE_CHUNK) else None

    def state_chunk_within(self, steps: int) -> int:
        """The number of steps of a chunk of matrix states, for so many steps. A longer one would only be filled up."""
        return min(self.state_chunk, 1 << max(1, (steps - 1).bit_length()))

    def window(self, length: int, chunk: int) -> int:
        """The number of steps of a window of matrix states, for a sequence of this length and chunks of this one."""
        return near_divisor(length, min(length, max(chunk, self.longest_window // chunk * chunk)))


# At T = 16, N = 4, 4 heads, K = V = 64 two chunks of 8 steps take 0.4 to 0.75 of the loop's training time, for four
# cells. At T = 8 two chunks of 4 steps save nothing.
_LEAST_STATE_CHUNK = 8
# An LSTM that keeps no gate keeps c before every 16 steps, and x and h at every step, with 24 times the bytes.
_KEPT_BYTES_PER_START, _CHUNK_WITH_STARTS = 24, 16
# The decays of a GLA make 4 KiB at each step, its state 256. With batched decays its forward pass takes 1.11 to
# 1.20 of plain's time, with all in the loop 1.00.
_HIDDEN = 16
# The most bytes of a chunk, relative to those that `jax.checkpoint` on the step keeps of the sequence. An LSTM with
# layer normalisation gets 4 steps at T = 128, a GRU of the same size would get 13.
_CHUNK_BYTES_PER_GIVEN = 3.5
# An LSTM of 256 units, N = 32, T = 16: 0.87 of plain's time with chunks of 4 steps, 0.94 with 2, 0.96 with 1.
_SHORTEST_CHUNK_BYTES_PER_GIVEN = 6
# Two steps that need more memory than that take no less time than one: 0.90 and 0.81 of plain's for Hamiltonian Monte
# Carlo. A Transformer-XL takes 4.9 MiB of temporary memory with two steps, 4.0 with one.
_HARDLY_A_CHUNK = 2
# The most equations of an iteration of several steps: 16 steps of an LSTM, 8 of one with bfloat16 products and a
# float32 carry, 4 to 8 of one with layer normalisation. The time to compile grows with them, and so do the bytes: with
# 16 steps the second LSTM takes 1.01 of what issue 19 allows, with 8 steps 0.99 (docs/accelerators.md).
_UNROLLED_EQUATIONS = 384
_LOOPS = SCANS.union(names_of(Kind.LOOP))

# The measurements are in docs/decisions.md, "The fission engine". No GPU has been measured yet.
BACKENDS = {
    "cpu": Heuristics(
        machine=CPU,
        batch="costly",
        linear="loop",
        shortest_chunk=4,
        # Four steps of Hamiltonian Monte Carlo make 4 MB: 1.08 MiB of temporary memory, 0.32 by one, in less time.
        shortest_chunk_bytes=2 << 20,
        quick_chunk=8,
        longest_chunk=128,
        chunk_bytes=16 << 20,
        chunk_bytes_with_starts=48 << 20,
        transpose_rows=True,
        contracts_sums=True,
        # The loss of an mLSTM, T = 2,048, in chunkwise form: 0.85 of plain's time on one CPU, 1.5 on another
        # (docs/decisions.md).
        loops_states_forward=True,
        writes_repeated=True,
        # 2 MiB more than `jax.checkpoint` keeps is what recomputing everything may take (docs/decisions.md).
        expensive_bytes=2 << 20,
        one_kernel=True,
        # They stay in the cache of a core. Recomputing a `logsumexp` to save 16 KiB takes 1.6 of the time of an HMM of
        # 4 states.
        small_residuals=1 << 20,
        long_axes_last=True,
    ),
    "gpu": Heuristics(
        machine=GPU,
        batch="bounded",
        linear="associative",
        # One chunk for a whole short sequence would save nothing.
        shortest_chunk=16,
        shortest_chunk_bytes=1 << 30,
        quick_chunk=16,
        longest_chunk=128,
        chunk_bytes=1 << 30,
        chunk_bytes_with_starts=1 << 30,
        transpose_rows=False,
        transpose_weights=False,
        # The copies of both matrices side by side are 128 MiB for an LSTM of 2,048 units: with all recomputed it takes
        # 693 MiB with them, 588 without.
        merges_at_once=False,
        unroll=16,
        slices_stacks=True,
        # A GRU's training step launches 0.22 and 0.21 of plain's kernels so, and 0.24 and 0.28 without both.
        barrier_on_stacks=True,
        # A GRU's training step, launches of plain's and temporary bytes with all recomputed: 0.22 and 17.3 MiB with no
        # barrier, 0.24 and 15.5 MiB with this one, 0.26 and 15.3 MiB with one after each step (docs/decisions.md).
        barrier_every=2,
        # An mLSTM's training step over 1,024 steps launches 2,507, 1,427, 855 and 459 kernels with windows of 128, 256,
        # 512 and 1,024, and takes 36, 48, 76 and 93 MiB. Plain autodiff takes 63,515 and 821.
        longest_window=512,
    ),
}

# By the estimate of the TPU's compiler (docs/accelerators.md), a training step of a minGRU takes 0.22 of plain
# autodiff's cycles with chunks of 128, 0.16 with 256, and 0.12 with 512, which take four times as long to compile.
BACKENDS["tpu"] = replace(
    BACKENDS["gpu"],
    machine=TPU,
    batch="everything",
    longest_chunk=256,
    longest_window=128,
    transpose_weights=True,
    merges_at_once=True,
    unroll=1,
    slices_stacks=False,
    barrier_on_stacks=False,
    barrier_every=0,
    whole=True,
)


def using(heuristics: Heuristics) -> AbstractContextManager[None]:
    """A context that traces with these heuristics instead of the platform's."""
    return tracing_with(heuristics=heuristics)


def heuristics(arguments: Any = None) -> Heuristics:
    """The heuristics in force: those of `using`, else those of the platform.

    Args:
        arguments: a pytree of arrays. Their devices decide the platform, where they are known.
    """
    return chosen(arguments) or for_platform(default_platform())


def chosen(arguments: Any = None) -> Heuristics | None:
    """The heuristics in force whatever the default platform is: those of `using`, or of the devices of arrays.

    Args:
        arguments: a pytree of arrays.
    """
    heuristics: Heuristics | None = trace_context().heuristics
    platform = platform_of(arguments)
    return heuristics or (for_platform(platform) if platform else None)


def following(arguments: Any) -> AbstractContextManager[None]:
    """A context with the heuristics for the devices of concrete arguments, which `jax.jit` hides."""
    of_arguments = heuristics(arguments)
    return nullcontext() if of_arguments is heuristics() else using(of_arguments)


def of_scan(choices: Heuristics, parallel: Newton | None, whole: Whole | None, *, is_small: bool) -> Heuristics:
    """The heuristics of a scan. Where Newton's method solves loops over many steps, all work is batched too.

    Args:
        choices: those of the platform.
        parallel: how loops are solved over many steps.
        whole: what is batched where the platform runs the step whole; None: the step is split on every platform.
        is_small: whether the loop is one kernel.
    """
    if parallel is not None:
        return replace(choices, batch="everything", linear="associative")
    if is_small:
        machine, kept = choices.machine.in_a_kernel, choices.small_residuals
        return replace(choices, batch="nothing", linear="loop", machine=machine, expensive_bytes=kept)
    return replace(choices, batch=whole, linear="loop") if whole and choices.whole else choices


def for_platform(platform: str) -> Heuristics:
    """The heuristics of a platform of JAX: "cpu", "gpu" or "cuda", "tpu" and others."""
    return BACKENDS.get(platform, BACKENDS["gpu"])
