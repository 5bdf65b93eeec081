"""Measure one workload."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial

from benchmarks import peers, rows, torch_peer
from benchmarks.measure import check_agreement, prepare_jax, take_turns
from benchmarks.others import Others
from benchmarks.result import Result, Runner
from benchmarks.rows import Engine, JaxRow, same_function_rows
from benchmarks.workloads import Workload


DESCRIPTIONS = rows.DESCRIPTIONS | peers.DESCRIPTIONS | torch_peer.DESCRIPTIONS
OWN_ROWS = tuple(rows.DESCRIPTIONS)

# The rounding of float32 sums in another order, and of TensorFloat-32.
TOLERANCES = {"float32": 1e-4, "tensorfloat32": 2e-2}


@dataclass(frozen=True)
class Options:
    """The options of all workloads.

    Attributes:
        rows: the rows to run, if they fit a workload.
        rounds: the least number of rounds.
        compilations: the compilations of each training step; the fastest counts.
        engine: the engine of rnnscan's rows.
        precision: the precision of products.
    """

    rows: Collection[str]
    rounds: int
    compilations: int
    engine: Engine
    precision: str


def run_workload(workload: Workload, options: Options, report: Callable[[str], None]) -> Result:
    """Compile, check and measure the rows of a workload. `report` gets the next action in words."""
    runners: dict[str, Runner] = {}
    absent: dict[str, str] = {}
    for row, prepare in _makers(workload, options):
        report(f"compiling {row}")
        try:
            runners[row] = prepare()
        except ModuleNotFoundError as error:
            absent[row] = f"{error.name} is not installed"
    _check(runners, options, report)

    def timed(what: str, runs: dict[str, Callable[[], object]]) -> dict[str, list[float]]:
        announce = lambda number, of: report(f"{what}, round {number} of {of}")  # noqa: E731
        return take_turns(runs, rounds=options.rounds, report=announce)

    others = Others()
    forward = timed("forward", {row: runner.forward for row, runner in runners.items()})
    train = timed("training", {row: runner.train for row, runner in runners.items()})
    return Result(runners, forward, train, absent, others.share())


def _makers(workload: Workload, options: Options) -> Iterator[tuple[str, Callable[[], Runner]]]:
    """The rows to run, each with the function that compiles it."""
    for row, jax_row in same_function_rows(workload, options.engine).items():
        if row in options.rows:
            yield row, partial(prepare_jax, jax_row, compilations=options.compilations)
    if workload.family not in ("lstm", "gru"):
        return
    for row, make in peers.PEERS.items():
        if row in options.rows:
            yield row, partial(_prepare_peer, make, workload, options)
    if "torch" in options.rows:
        tensor_float_32 = options.precision == "tensorfloat32"
        yield "torch", partial(torch_peer.prepare_torch, workload, tensor_float_32=tensor_float_32)


def _prepare_peer(make: Callable[[Workload], JaxRow], workload: Workload, options: Options) -> Runner:
    return prepare_jax(make(workload), compilations=options.compilations)


def _check(runners: dict[str, Runner], options: Options, report: Callable[[str], None]) -> None:
    reference = runners["plain"].train()
    for row in [row for row in runners if row in OWN_ROWS]:
        report(f"checking {row}")
        check_agreement(row, runners[row].train(), reference, TOLERANCES[options.precision])
