"""The planner of all passes: what of a step runs in which loop, and what is batched over the steps of a chunk.

A pass is a program. That of a scan of values, or of values and tangents, carries leaves and stacks others. That of a
cotangent scan adds up terms too, and may compute leaves of the carry again before it reads them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from rnnscan.engine import passes
from rnnscan.engine.analysis.split import Split, split
from rnnscan.engine.analysis.stacks import has_product
from rnnscan.engine.analysis.sum_placement import split_with_sums
from rnnscan.engine.costs.heuristics import Heuristics, ShouldBatch
from rnnscan.ir.dataflow import depending, needed
from rnnscan.ir.program import Atom, Program, Value, inputs_of, outputs_of, total_bytes, values_of
from rnnscan.ir.traits import Kind
from rnnscan.newton import Newton


@dataclass(frozen=True)
class Schedule:
    """How a pass runs a chunk of steps.

    Attributes:
        main: the split of the step.
        recompute: the split of a run before it, the other way round, which computes carry leaves again; None: none is.
    """

    main: Split
    recompute: Split | None = None

    @staticmethod
    def of(
        program: Program,
        heuristics: Heuristics,
        solve: Newton | None,
        recomputed: int | None = None,
        *,
        may_batch_nothing: bool = False,
    ) -> "Schedule":
        """Plan a pass. One that adds up is planned as a cotangent scan: its sums are of gradients, of second order.

        Args:
            program: a step of it.
            heuristics: the choices of the platform.
            solve: how loops are solved in parallel over the steps of a chunk; None: they run step by step.
            recomputed: of a cotangent scan the number of carry leaves that it computes again. These come first. None:
                it is another scan.
            may_batch_nothing: whether one loop may run all of a cotangent scan.
        """
        if recomputed is None and not program.summed:
            program = passes.apply(passes.forward(heuristics), program)
            return Schedule(split(program, heuristics, should_batch=heuristics.should_batch_forward, solve=solve))
        program = passes.apply(passes.backward(heuristics), program)
        recompute, main = _views(program, recomputed or 0)
        shared = frozenset(needed(program.equations, recompute.new_carry))
        split_one = partial(split_with_sums, heuristics=heuristics, solve=solve)
        batches: ShouldBatch = partial(heuristics.should_batch, shared=shared)
        whole = split_one(main, should_batch=batches)
        if may_batch_nothing and _reads_more_than_it_saves(whole):
            batches = lambda *_: False  # noqa: E731
            whole = split_one(main, should_batch=batches)
        read = {*inputs_of(whole.varying), *values_of(whole.program.outputs)}
        is_read = not read.isdisjoint(recompute.stacked)
        return Schedule(whole, split_one(recompute, should_batch=batches) if is_read else None)

    @property
    def splits(self) -> list[Split]:
        """Those of both runs."""
        return [self.main] if self.recompute is None else [self.recompute, self.main]


def _views(program: Program, recomputed: int) -> tuple[Program, Program]:
    """The vjp as the loop that recomputes carry leaves, and as the loop that carries the cotangents."""
    carry, new_carry = program.carry[:recomputed], program.new_carry[:recomputed]
    transpose = replace(program, carry=program.carry[recomputed:], new_carry=program.new_carry[recomputed:])
    after = _read_after(transpose, dict(zip(carry, new_carry, strict=True)))
    stacked = tuple(after.get(leaf, leaf) for leaf in carry)
    new_leaves = set(after.values())
    equations = tuple(equation for equation in transpose.equations if new_leaves.isdisjoint(equation.outputs))
    recompute = replace(program, carry=carry, new_carry=new_carry, summed=(), stacked=stacked)
    return recompute, replace(transpose, equations=equations, known=(*program.known, *stacked))


def _read_after(transpose: Program, new: Mapping[Value, Atom]) -> dict[Value, Value]:
    """The recomputed carry leaves that the vjp reads only to make their new values, and these.

    The loop that recomputes them has made the new values. So a key-value cache is copied once less at each step.
    """
    maker = transpose.maker
    after = {
        leaf: atom
        for leaf, atom in new.items()
        if isinstance(atom, Value) and atom in maker and len(maker[atom].outputs) == 1
    }
    while True:
        equations = [equation for equation in transpose.equations if equation.outputs[0] not in {*after.values()}]
        read = {*inputs_of(needed(equations, transpose.outputs)), *values_of(transpose.outputs)}
        if read.isdisjoint(after):
            return after
        after = {leaf: value for leaf, value in after.items() if leaf not in read}


def _reads_more_than_it_saves(split: Split) -> bool:
    """Whether loops read more batched values than the products of these would read of matrices at each step."""
    stackable = {*outputs_of(split.batched)}
    if any(map(has_product, split.loops)):
        # A loop with a product would read kept values as well as functions of them. Without one it is fused with the
        # functions: a soft dynamic time warping takes 1.7 of the time with its functions batched.
        products = [equation for equation in split.batched if equation.kind is Kind.PRODUCT]
        stackable = depending(split.batched, outputs_of(products))
    read = total_bytes(value for loop in split.loops for value in loop.to_body if value in stackable)
    return split.heuristics.reads_more_than_it_saves(read, split.batched, split.program.fixed)
