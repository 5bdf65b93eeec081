"""measure_tradeoff(): measure the cost of memory choices for a cell or a net."""

from collections.abc import Callable, Mapping, Sequence
from math import ceil
from typing import Any

from rnnscan import _checks as checks
from rnnscan.checkpointing import NestedScan
from rnnscan.insight.measure_losses import Tradeoff, measure_losses
from rnnscan.memory import Memory
from rnnscan.nets.calls import run, takes_nets
from rnnscan.planning.arguments import Arguments
from rnnscan.planning.training_step import TrainingStep
from rnnscan.protocols import Cell


@takes_nets
def measure_tradeoff(
    cell: Cell,
    params: Any,
    carry: Any,
    xs: Any,
    *,
    choices: Mapping[str, Memory | None] | None = None,
    rounds: int = 10,
    report: Callable[[str], None] = lambda doing: None,
    last_only: bool = False,
    **options: Any,
) -> list[Tradeoff]:
    """Measure the training step of a scan under several memory choices.

    The step is that of `plan`: the gradient, in parameters, carry and inputs, of a loss that reads every output
    nonlinearly. `measure_losses` measures a loss of your own. For a net, call
    `measure_tradeoff(net, params, xs, carry=None)`.

    Args:
        cell: `cell(params, carry, x) -> (carry, y)`, or a net.
        params: its parameters.
        carry: the carry before the first step.
        xs: the inputs, time-major: leaves `(T, ...)`; or None, with `length` among the options.
        choices: memory choices by name; times are relative to the first one. None: plain autodiff, every name kept,
            everything recomputed, and segments.
        rounds: the number of runs of each choice.
        report: called with a description of each stage.
        last_only: whether the loss depends on the last carry alone, so that outputs need not be kept.
        options: other arguments of `scan`, or of the net: `seq_lengths`, `mask`, `reset`, `reset_to`, `engine`, `key`.

    Returns:
        A `Tradeoff` for each choice, in order.

    Raises:
        ValueError: without a choice or a round, or as `scan` does.
        TypeError: if `memory` is given, or as `scan` does.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import rnnscan as rs
        >>> cell, xs = rs.cells.LSTM(8), jnp.ones((16, 2, 4))
        >>> params = cell.init(jax.random.key(0), input_size=4)
        >>> choices = {"plain": None, "recompute": rs.Memory(recompute="all")}
        >>> rows = measure_tradeoff(cell, params, cell.initial_carry(xs[0]), xs, choices=choices, rounds=1)
        >>> rows[1].kept_bytes < rows[0].kept_bytes
        True
    """
    if "memory" in options:
        raise TypeError(
            "measure_tradeoff: memory choices are given by `choices`; got `memory`. Write choices={'mine': memory}."
        )
    xs, carry = checks.as_arrays(xs, "xs"), checks.as_arrays(carry, "carry")
    arguments = Arguments(run, cell, params, carry, xs, options)
    if choices is None:
        names: list[tuple[str, ...]] = []
        arguments.eval_shape(lambda *arrays: names.extend(ran.plan.call.names.known for ran in arguments.plans(arrays)))
        choices = memory_choices(sum(names, ()), int(checks.sequence_length(xs, options.get("length"))))
    step = TrainingStep(arguments, last_only=last_only)
    return measure_losses(step.build, choices, rounds=rounds, report=report)


def memory_choices(names: Sequence[str], length: int) -> dict[str, Memory | None]:
    """Memory choices to compare, by name.

    Args:
        names: the names of the cell's intermediates.
        length: the number of steps.

    Returns:
        Plain autodiff first; nested segments last, if the sequence is long enough to nest.

    Example:
        >>> list(memory_choices(("gates",), length=64))
        ['plain autodiff', 'every name kept', 'recompute all', 'segment sqrt', 'segment 16,4']
    """
    kept: dict[str, Memory | None] = {"every name kept": Memory()} if names else {}
    choices: dict[str, Memory | None] = {
        "plain autodiff": None,
        **kept,
        "recompute all": Memory(recompute="all"),
        "segment sqrt": Memory(segment="sqrt"),
    }
    inner = ceil(round(length ** (1 / 3), 6))
    outer = inner**2
    if 1 < inner < outer < length:
        choices[f"segment {outer},{inner}"] = Memory(segment=(outer, inner))
    return choices


def choice_name(memory: Memory) -> str:
    """A memory choice in a few words.

    Args:
        memory: the choice.

    Returns:
        The words.

    Example:
        >>> choice_name(Memory(recompute=("gates",), segment=(64, 8))), choice_name(Memory())
        ('recompute gates, segment 64,8', 'every name kept')
    """
    words = []
    if memory.recompute:
        words.append(
            f"recompute {memory.recompute if isinstance(memory.recompute, str) else ','.join(memory.recompute)}"
        )
    if memory.offload:
        words.append(f"offload {','.join(memory.offload)}")
    if isinstance(memory.segment, NestedScan):
        words.append(f"schedule of {memory.segment.slots} slots")
    elif memory.segment is not None:
        sizes = memory.segment if isinstance(memory.segment, tuple) else (memory.segment,)
        words.append(f"segment {','.join(map(str, sizes))}")
    if memory.chunk is not None:
        words.append(f"chunk {memory.chunk}")
    return ", ".join(words) or "every name kept"


def pareto_front(points: Sequence[tuple[int | float, int | float]]) -> list[int]:
    """The points that no other point beats in both coordinates.

    Args:
        points: the bytes and the time of each choice; less is better.

    Returns:
        Their numbers, ordered by the first coordinate.

    Example:
        >>> pareto_front([(4, 1.0), (2, 1.5), (3, 1.6), (1, 2.0), (4, 1.0)])
        [3, 1, 0]
    """
    front: list[int] = []
    least = float("inf")
    for number in sorted(range(len(points)), key=lambda number: points[number]):
        if points[number][1] < least:
            least = points[number][1]
            front.append(number)
    return front
