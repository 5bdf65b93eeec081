"""plan(): find a memory choice that fits a budget."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from rnnscan._util.byte_sizes import budget_bytes, readable_bytes
from rnnscan._util.reports import Report, Table
from rnnscan.checkpointing import NestedScan
from rnnscan.insight.measure_losses import measure_losses
from rnnscan.memory import Memory, MemoryBudget
from rnnscan.nets.calls import run, takes_nets
from rnnscan.planning.arguments import Arguments
from rnnscan.planning.choose import choose
from rnnscan.planning.training_step import TrainingStep
from rnnscan.protocols import Cell


@dataclass(frozen=True, repr=False)
class PlannedMemory(Report, Memory):
    """A memory choice of `plan`, with its expected memory and cost. Print it, or show it in a notebook.

    Attributes:
        temporary_bytes: bytes of both passes besides arguments and results, by XLA's memory analysis, and 2 % for
            differences between programs.
        relative_cost: the estimated time of a training step, relative to keeping every name.
        budget: the bytes that it was planned for.
    """

    temporary_bytes: int = 0
    relative_cost: float = 1.0
    budget: int = 0

    @property
    def choice(self) -> Memory:
        """The choice, as a plain `Memory`."""
        return Memory(self.recompute, self.offload, self.segment, self.chunk)

    def _blocks(self) -> Iterator[str | Table]:
        yield f"{in_sentences(self.choice)}\n{self.choice!r}"
        rows = [
            ("temporary memory", readable_bytes(self.temporary_bytes)),
            ("budget", readable_bytes(self.budget)),
            ("estimated time", f"{self.relative_cost:.2f} times"),
        ]
        yield Table(("of a training step", "planned"), [rows], 1)
        yield (
            "temporary memory: besides arguments and results, by XLA's memory analysis\n"
            "estimated time: relative to keeping every name"
        )


def in_sentences(memory: Memory) -> str:
    """A memory choice in sentences.

    Args:
        memory: the choice.

    Returns:
        What is kept, and what is recomputed.

    Example:
        >>> in_sentences(Memory())
        'Keep every name.'
        >>> in_sentences(Memory(recompute=("gates",), segment=(1000, 30)))
        'Recompute gates. Keep the carry before segments of 1000 steps, and of 30 steps in these.'
    """
    if memory.recompute == "all":
        sentences = ["Recompute every name."]
    elif memory.recompute:
        sentences = [f"Recompute {', '.join(memory.recompute)}."]
    else:
        sentences = ["Keep every name."]
    if memory.offload:
        sentences.append(f"Move {', '.join(memory.offload)} to host memory.")
    segment = memory.segment
    if isinstance(segment, NestedScan):
        sentences.append(f"Keep the carry at {segment.slots} steps at a time, and run the steps between them again.")
    elif segment is not None:
        outer, *inner = segment if isinstance(segment, tuple) else (segment,)
        size = "the square root of the length" if outer == "sqrt" else f"{outer} steps"
        nested = "".join(f", and of {steps} steps in these" for steps in inner)
        sentences.append(f"Keep the carry before segments of {size}{nested}.")
    if memory.chunk is not None:
        sentences.append(f"Batch parallel work over {memory.chunk} steps.")
    return " ".join(sentences)


@takes_nets
def plan(
    cell: Cell,
    params: Any,
    carry: Any,
    xs: Any,
    *,
    budget: int | str,
    objective: Literal["time"] = "time",
    measure: bool = False,
    last_only: bool = False,
    progress: bool | None = None,
    **options: Any,
) -> PlannedMemory:
    """Find the fastest memory choice whose training step fits a budget.

    The budget is for the peak memory of a training step besides its arguments and results: the kept values and the
    temporaries of both passes. The step is the gradient, in parameters, carry and inputs, of a loss that reads every
    output nonlinearly, such as a squared error, so that the outputs and their cotangents count. With `last_only=True`
    the loss reads the last carry alone. Other values of your loss, such as logits, do not count.

    The choices are recomputed names, segments (nested and scheduled ones too), chunks, and offloaded names if the
    device has separate memory. `plan` sorts them by estimated time. It drops a choice whose predicted memory
    is not below that of a cheaper one, or far above the budget. It compiles the others in order until one fits by
    XLA's memory analysis. Every choice needs the outputs of recurrent work, so `plan` compiles nothing for a budget
    below them. If nothing seems to fit, it compiles up to three choices that recompute everything, and ends
    the search if these need over 1.1 times the budget, or the first over 1.5 times. Order and predictions do not depend
    on the budget, so a larger budget never costs more.

    `scan(..., memory=Memory.fit(budget))` plans in place. For a net, `plan(net, params, xs, carry=None, budget=budget)`
    plans one choice for the whole net.

    Args:
        cell: `cell(params, carry, x) -> (carry, y)`, or a net.
        params: its parameters: arrays, or `jax.ShapeDtypeStruct`.
        carry: a carry, of the same.
        xs: inputs `(T, ...)`, of the same; or None, with `length` among the options.
        budget: a number of bytes, or a string such as "512MiB" or "2GB".
        objective: "time", the only objective.
        measure: whether to run all choices that fit, and take the fastest. This needs arrays and takes longer.
        last_only: whether the loss depends on the last carry alone, so that outputs need not be kept.
        progress: whether to show in a line what is predicted and compiled. That needs tqdm, which is in the extra
            `train`. None: in a terminal, if tqdm is installed. In a notebook, write `progress=True`.
        options: other arguments of `scan`, or of the net: `seq_lengths`, `mask`, `reset`, `reset_to`, `engine`, `key`.

    Returns:
        A `Memory`, with its temporary bytes and its cost.

    Raises:
        ValueError: if the budget is not a size, or nothing fits; the message names a budget that does, or the bytes of
            the outputs if these alone exceed it.
        TypeError: as `scan` does.
        ImportError: if `progress=True` and tqdm is not installed.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import rnnscan as rs
        >>> cell, xs = rs.cells.LSTM(32), jnp.ones((64, 4, 16))
        >>> params = cell.init(jax.random.key(0), input_size=16)
        >>> memory = rs.plan(cell, params, cell.initial_carry(xs[0]), xs, budget="1MiB")
        >>> memory.temporary_bytes <= 2**20
        True
        >>> carry, ys = rs.scan(cell, params, cell.initial_carry(xs[0]), xs, memory=memory)
    """
    allowed = budget_bytes(budget)
    if objective != "time":
        raise ValueError(f'plan: `objective` must be "time"; got {objective!r}.')
    xs, carry = (jax.tree.map(_as_array, tree) for tree in (xs, carry))
    arguments = Arguments(run, cell, params, carry, xs, options)
    with _progress_line(progress) as report:
        chosen = choose(
            arguments, MemoryBudget(allowed, last_only), fastest=_fastest if measure else None, report=report
        )
    return PlannedMemory(
        **vars(chosen.memory),
        temporary_bytes=chosen.temporary_bytes,
        relative_cost=chosen.relative_cost,
        budget=allowed,
    )


@contextmanager
def _progress_line(progress: bool | None) -> Iterator[Callable[[str], None]]:
    """A function that shows a line of text in place of the last one."""
    tqdm = None if progress is False else _tqdm(required=bool(progress))
    if tqdm is None:
        yield lambda line: None
        return
    disable = None if progress is None else False  # None: tqdm shows nothing outside of a terminal.
    with tqdm(bar_format="plan: {elapsed}, {desc}", disable=disable, leave=False, dynamic_ncols=True) as bar:
        yield bar.set_description_str


def _tqdm(*, required: bool) -> Any:
    """The class `tqdm.tqdm`; None if it is not installed, and not required."""
    try:
        from tqdm import tqdm
    except ModuleNotFoundError as error:
        if not required:
            return None
        raise ImportError(
            "plan: progress=True needs tqdm, which is not installed. Install it with the extra: "
            'pip install ".[train]" in the checkout of rnnscan.'
        ) from error
    return tqdm


def _fastest(step: TrainingStep, choices: Sequence[Memory]) -> int:
    """The number of the fastest choice. This needs arrays."""
    rows = measure_losses(step.build, {str(number): memory for number, memory in enumerate(choices)})
    return int(np.argmin([row.relative_time for row in rows]))


def _as_array(leaf: Any) -> Any:
    return leaf if isinstance(leaf, jax.ShapeDtypeStruct) else jnp.asarray(leaf)
