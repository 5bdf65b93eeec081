"""The command line: measure the constants, and print them beside those in the code; or times beside estimates."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from statistics import geometric_mean
from typing import Annotated

import jax
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.beyond.uses import USES
from benchmarks.cost_model.accelerator import BYTE, FLOP, LAUNCH, accelerator_probes
from benchmarks.cost_model.accuracy import HEADINGS as ACCURACY_HEADINGS
from benchmarks.cost_model.accuracy import accuracy_rows, known_uses, measure_use, summary
from benchmarks.cost_model.cpu import cpu_probes
from benchmarks.cost_model.probe import Probe, Sizes, measure_all
from benchmarks.machine import describe_machine
from benchmarks.others import Others
from rnnscan.engine.costs.heuristics import for_platform
from rnnscan.engine.costs.machine import Machine


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

Row = tuple[str, str, str, str, str]
HEADINGS = ("constant", "in the code", "measured here", "ratio", "of")


@app.command()
def main(
    rounds: Annotated[int, typer.Option(min=1, help="how often each program runs")] = Sizes.rounds,
    accelerator: Annotated[
        bool | None, typer.Option(help="launch, bandwidth and products; by default where JAX's device is no CPU")
    ] = None,
    uses: Annotated[
        str | None, typer.Option(help="in place of constants, measure the times of these uses, or all, with commas")
    ] = None,
    seconds: Annotated[float, typer.Option(help="of each function of a use")] = 1.0,
) -> None:
    """Measure the constants of the engine's cost model on this machine."""
    console, others = Console(highlight=False, width=max(Console().width, 125)), Others()
    for heading, text in describe_machine(None).items():
        console.print(f"{heading}: {escape(text)}")
    if uses is not None:
        _print_accuracy(known_uses(uses), seconds, console)
        console.print(others.sentence())
        return
    platform = jax.default_backend()
    is_accelerator = platform != "cpu" if accelerator is None else accelerator
    sizes = Sizes(rounds=rounds)
    probes = accelerator_probes(sizes) if is_accelerator else cpu_probes(sizes)
    with console.status("") as status:
        rows = measured_rows(probes, rounds, for_platform(platform).machine, lambda text: status.update(escape(text)))
    table = Table(*HEADINGS)
    for row in rows:
        table.add_row(*map(escape, row))
    console.print(table)
    console.print(others.sentence())


def _print_accuracy(names: Sequence[str], seconds: float, console: Console) -> None:
    times = {}
    for name in names:
        with console.status(name):
            times[name] = measure_use(USES[name].problem(), seconds)
    table = Table(*ACCURACY_HEADINGS)
    for row in accuracy_rows(times):
        table.add_row(*row)
    console.print(table)
    for line in summary(times.values()):
        console.print(line)


def measured_rows(
    probes: Sequence[Probe], rounds: int, machine: Machine, report: Callable[[str], None] = lambda _: None
) -> list[Row]:
    """Measure probes, and put each constant beside the one in the code: the geometric mean, and the span of its probes.

    Args:
        probes: those of a CPU or an accelerator.
        rounds: how often each program runs.
        machine: the constants in the code.
        report: called with the title of each probe before it runs.
    """
    nanoseconds = measure_all(probes, rounds, lambda probe: report(f"{probe.field}: {probe.title}"))
    titles = {field: ", ".join(probe.title for probe in probes if probe.field == field) for field in nanoseconds}
    if LAUNCH in nanoseconds:
        return list(_accelerator_rows(nanoseconds, titles, machine))
    order = [field.name for field in fields(Machine) if field.name in nanoseconds]
    return [_row(field, getattr(machine, field), nanoseconds[field], titles[field]) for field in order]


def _row(name: str, constant: float, measured: Sequence[float], title: str) -> Row:
    if min(measured) <= 0:
        return name, f"{constant:.3g}", "less than the noise", "", title
    mean = geometric_mean(measured)
    span = f" ({min(measured):.3g} to {max(measured):.3g})" if len(measured) > 1 else ""
    return name, f"{constant:.3g}", f"{mean:.3g}{span}", f"{mean / constant:.2f}", title


def _accelerator_rows(
    nanoseconds: Mapping[str, list[float]], titles: Mapping[str, str], machine: Machine
) -> Iterator[Row]:
    """Rates in place of times, as data sheets have them."""
    yield _row("launch (ns)", machine.ns_per_product, nanoseconds[LAUNCH], titles[LAUNCH])
    # Writing a value and reading it moves each byte twice.
    for name, key, constant in (
        ("bandwidth (GB/s)", BYTE, machine.ns_per_written_byte / 2),
        ("products (GFLOP/s)", FLOP, machine.ns_per_batched_operation),
    ):
        rates = [1 / ns if ns > 0 else 0.0 for ns in nanoseconds[key]]
        yield _row(name, 1 / constant, rates, titles[key])
