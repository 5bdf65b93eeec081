"""Choose the fastest memory choice that fits a budget."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import jax

from rnnscan import _checks as checks
from rnnscan._util.byte_sizes import readable_apart
from rnnscan._util.messages import is_array_like, is_count
from rnnscan.checkpointing import NestedScan
from rnnscan.memory import Memory, MemoryBudget
from rnnscan.planning.arguments import Arguments, Run
from rnnscan.planning.candidates import Candidate, candidates
from rnnscan.planning.lower_bound import recurrent_output_bytes
from rnnscan.planning.memory_prediction import host_is_device
from rnnscan.planning.one_device import local_shapes, without_mesh
from rnnscan.planning.training_step import Report, TrainingStep


# A slack of 2 %: gradients of the parameters alone took up to 1.1 % more memory than gradients of all arguments.
_SLACK = 50
# Predictions were at most 1.3 times XLA's figure for nearly all choices, and mostly 0.75 to 1.1 times.
_SURELY_TOO_LARGE = 1.3
_LIKELY_FITS = 0.9
# The number of frugal choices to compile before a budget is rejected.
_MOST_FRUGAL = 3
# The choices compiled by then needed at most 1.06 times the memory of the best choice, for each of 14 cells.
_NEARLY = 1.1
# The first of them alone rejects a budget that it exceeds this many times.
_BY_FAR = 1.5


# Measures choices and returns the position of the fastest.
Fastest = Callable[[TrainingStep, Sequence[Memory]], int]


@dataclass(frozen=True)
class Chosen:
    """A memory choice for a budget.

    Attributes:
        memory: the choice.
        temporary_bytes: bytes of both passes besides arguments and results.
        relative_cost: the estimated time of a training step, relative to keeping every name.
    """

    memory: Memory
    temporary_bytes: int
    relative_cost: float


def choose(
    arguments: Arguments,
    budget: MemoryBudget,
    *,
    fastest: Fastest | None = None,
    report: Report = lambda line: None,
) -> Chosen:
    """Choose the memory of a call, as `rnnscan.plan` documents.

    Args:
        arguments: the arguments of the call, without `memory`.
        budget: the budget.
        fastest: chooses among all choices that fit; None: take the one with the least estimated time.
        report: gets a line of text before each prediction and each compilation.

    Raises:
        ValueError: if nothing fits.
    """
    outputs = 0 if budget.last_only else recurrent_output_bytes(arguments)
    check_holds_outputs(budget.bytes, outputs)
    step = TrainingStep(arguments, last_only=budget.last_only, report=report)
    choices = choices_of(arguments)
    is_refused = _is_refused(step, choices, budget.bytes, outputs)
    fitting = iter(()) if is_refused else _fitting(step, choices, budget.bytes)
    if fastest is not None:
        fitting_choices = list(fitting)
        chosen = (
            fitting_choices[fastest(step, [choice.memory for choice in fitting_choices])] if fitting_choices else None
        )
    else:
        chosen = next(fitting, None)
    if chosen is None:
        chosen = _least_of_all(step, choices, budget.bytes, is_refused)
    relative_cost = chosen.time / choices[0].time if choices[0].time else 1.0
    return Chosen(chosen.memory, _needed(step, chosen.memory) or 0, relative_cost)


def check_holds_outputs(allowed: int, outputs: int, only_last: str = "last_only=True") -> None:
    """Reject a budget below the outputs, which every choice needs.

    Args:
        allowed: the budget, in bytes.
        outputs: the bytes of `recurrent_output_bytes`.
        only_last: how the caller says that the loss reads only the last carry.

    Raises:
        ValueError: if nothing can fit.
    """
    if outputs > allowed:
        budget, needed = readable_apart(allowed, outputs)
        raise ValueError(
            f"plan: nothing fits {budget}, because the outputs alone take {needed}. Raise the budget to several times "
            f"that, run fewer rows or steps in a call, or pass {only_last} if your loss reads only the last carry."
        )


def fit(
    budget: MemoryBudget, run: Run, cell: Any, params: Any, carry: Any, xs: Any, options: Mapping[str, Any]
) -> Memory:
    """Plan the memory choice of a call from a budget. The arguments may be traced.

    Args:
        budget: the budget.
        run: runs the cell or net under a memory choice.
        cell: the cell or net.
        params: its parameters.
        carry: the initial carry.
        xs: the inputs.
        options: the other arguments of the call.
    """
    whole = {"params": params, "carry": carry, "xs": xs, "options": dict(options)}
    local, shapes = (jax.tree.map(_as_shape, tree) for tree in (local_shapes(whole), whole))
    with without_mesh():
        arguments = Arguments(run, cell, **local)
        if local == shapes or not _runs(arguments):
            arguments = Arguments(run, cell, **shapes)
        return choose(arguments, budget).memory


def _runs(arguments: Arguments) -> bool:
    """Whether the shapes of one device fit together, as with sharded rows and replicated parameters."""
    try:
        arguments.eval_shape(lambda *arrays: arguments.run(arrays))
    except (TypeError, ValueError):
        return False
    return True


def choices_of(arguments: Arguments, *, can_offload: bool | None = None) -> list[Candidate]:
    """The memory choices of a call, ordered by estimated time.

    Args:
        arguments: the arguments of the call, without `memory`.
        can_offload: whether the device's memory is separate from the host's; None: depends on the backend.
    """
    can_offload = not host_is_device() if can_offload is None else can_offload
    _, _, xs, options = arguments.with_arrays(arguments.shapes)
    length = checks.sequence_length(xs, options.get("length"))
    if not is_count(length, least=0):
        raise ValueError(
            f"plan: the number of steps must be known when the program is traced; got {length}. For a symbolic "
            "dimension of jax.export, pass a `Memory` without segments."
        )
    choices: list[Candidate] = []

    def look(*arrays: Any) -> None:
        plans = [ran.plan for ran in arguments.plans(arrays)]
        choices.extend(candidates(plans, can_offload=can_offload))

    arguments.eval_shape(look)
    return choices


def _promising(step: TrainingStep, choices: Sequence[Candidate]) -> Iterator[list[Candidate]]:
    """Groups of equal time, in order. Each choice is predicted to need less memory than all cheaper ones."""
    least = float("inf")
    for _, of_one_time in groupby(choices, key=lambda choice: choice.time):
        smaller = [choice for choice in of_one_time if step.predicted_bytes(choice.memory) < least]
        if smaller:
            yield smaller
            least = min(step.predicted_bytes(choice.memory) for choice in smaller)


def _likely(step: TrainingStep, choices: Sequence[Candidate], allowed: int) -> Iterator[list[Candidate]]:
    """Groups of choices that may fit, in order of time. Within a group, likely ones come first."""

    def doubt(choice: Candidate) -> int:
        predicted = step.predicted_bytes(choice.memory)
        return 0 if predicted <= _LIKELY_FITS * allowed else predicted

    for of_one_time in _promising(step, choices):
        likely = [choice for choice in sorted(of_one_time, key=doubt) if doubt(choice) <= _SURELY_TOO_LARGE * allowed]
        if likely:
            yield likely


def _is_refused(step: TrainingStep, choices: Sequence[Candidate], allowed: int, outputs: int) -> bool:
    """Whether a budget is below what every choice measured needs on a CPU, and below what a frugal one does need.

    The former is twice the outputs; the latter has segments near the square root of the length, by their number.
    """
    if allowed >= 2 * outputs or not host_is_device():
        return False
    simple = [one.memory for one in choices if one.memory.recompute == "all" and isinstance(one.memory.segment, int)]
    frugal = simple[len(simple) // 2] if simple else Memory(recompute="all")
    needed = _needed(step, frugal)
    return needed is not None and needed > allowed


def _fitting(step: TrainingStep, choices: Sequence[Candidate], allowed: int) -> Iterator[Candidate]:
    """The choices that fit, in order of time. None where the frugal ones are too large by far."""
    some_may_fit = False
    # Predictions of all choices take seconds, those of the frugal ones less, and a generous budget needs neither.
    extremes = (choices[0].memory, Memory(recompute="all"))
    seems_too_small = all(step.predicted_bytes(memory) > _SURELY_TOO_LARGE * allowed for memory in extremes)
    if seems_too_small and step.predicted_bytes(_frugal(step, choices)[0].memory) > _SURELY_TOO_LARGE * allowed:
        if _frugal_are_too_large(step, choices, allowed):
            return
        some_may_fit = True
    for likely in _likely(step, choices, allowed):
        for choice in likely:
            needed = _needed(step, choice.memory)
            if needed is not None and needed <= allowed:
                some_may_fit = True
                yield choice
        if not some_may_fit and _seems_too_small(step, choices, allowed):
            if _frugal_are_too_large(step, choices, allowed):
                return
            some_may_fit = True


def _seems_too_small(step: TrainingStep, choices: Sequence[Candidate], allowed: int) -> bool:
    """Whether a budget seems too small for every choice, as predictions compare with XLA's figures so far."""
    pairs = [(needed, step.predicted_bytes(memory)) for memory, needed in step.compiled.items() if needed is not None]
    smallest = step.predicted_bytes(_frugal(step, choices)[0].memory)
    return smallest * min((needed / max(1, predicted) for needed, predicted in pairs), default=0) > allowed


def _frugal_are_too_large(step: TrainingStep, choices: Sequence[Candidate], allowed: int) -> bool:
    """Whether the frugal choices, compiled, need so much more than a budget that no choice fits it."""
    return all(needed is None or needed > _NEARLY * allowed for needed, _ in _frugal_needs(step, choices, allowed))


def _frugal_needs(
    step: TrainingStep, choices: Sequence[Candidate], allowed: int
) -> Iterator[tuple[int | None, Candidate]]:
    """The bytes that the frugal choices need, compiled. The first alone where it exceeds the budget by far."""
    for choice in _frugal(step, choices):
        needed = _needed(step, choice.memory)
        yield needed, choice
        if needed is not None and needed > _BY_FAR * allowed:
            return


def _frugal(step: TrainingStep, choices: Sequence[Candidate]) -> list[Candidate]:
    """The choices with the smallest predictions of those that recompute everything, the smallest first.

    Schedules are left out, because they take seconds to predict, and need no less than nested segments do.
    """
    simple = [
        choice
        for choice in choices
        if choice.memory.recompute == "all" and not isinstance(choice.memory.segment, NestedScan)
    ]
    return sorted(simple, key=lambda choice: step.predicted_bytes(choice.memory))[:_MOST_FRUGAL]


def _needed(step: TrainingStep, memory: Memory) -> int | None:
    needed = step.temporary_bytes(memory)
    return None if needed is None else needed + needed // _SLACK


def _least_of_all(step: TrainingStep, choices: Sequence[Candidate], allowed: int, is_refused: bool) -> Candidate:
    """Of the compiled choices and the frugal ones, return the one that needs the least memory.

    Args:
        step: the training step.
        choices: the choices.
        allowed: the budget, in bytes.
        is_refused: whether the compiled choices told already that nothing fits.

    Raises:
        ValueError: if it does not fit either.
    """
    tried = [(_needed(step, choice.memory), choice) for choice in choices if choice.memory in step.compiled]
    frugal = () if is_refused else _frugal_needs(step, choices, allowed)
    needs = [(needed, choice) for needed, choice in (*tried, *frugal) if needed is not None]
    if not needs:
        raise ValueError(
            "plan: planning needs XLA's memory analysis; this backend has none. Choose a `Memory` yourself."
        )
    least, chosen = min(needs, key=lambda pair: pair[0])
    if least > allowed:
        too_small, needed = readable_apart(allowed, least)
        raise ValueError(
            f"plan: nothing fits {too_small}; the least found is {needed}, {least} bytes, "
            f"by {chosen.memory!r}. Raise the budget to that, or run fewer rows or steps in a call. "
            f"{len(step.compiled)} of {len(choices)} choices were compiled, so another may need less."
        )
    return chosen


def _as_shape(leaf: Any) -> Any:
    if isinstance(leaf, bool | int | float | complex | str) or not is_array_like(leaf):
        return leaf
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
