"""The command line of the sweep."""

import time
from collections.abc import Callable, Mapping
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.app import known, shown_command
from benchmarks.machine import describe_machine, version_of
from benchmarks.sweep.case import NAMES, Case, published_cases
from benchmarks.sweep.checkout import Checkout
from benchmarks.sweep.draw import draw_case, draw_cases
from benchmarks.sweep.measure import measure_case
from benchmarks.sweep.outcome import Outcome
from benchmarks.sweep.record import Record
from benchmarks.sweep.table import (
    MISS_HEADINGS,
    SUMMARY_HEADINGS,
    absent,
    load_note,
    make_page,
    miss_rows,
    summary_rows,
    use_headings,
    use_rows,
)
from benchmarks.table import console_with, rich_table


HERE = Path(__file__).parents[2]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    seed: Annotated[int, typer.Option(help="of the sizes: 0 to 9 for tuning, from 1000 on for reports only")] = 0,
    uses: Annotated[int, typer.Option(min=1, help="the number of uses")] = 60,
    use: Annotated[list[str] | None, typer.Option(help=f"{', '.join(NAMES)}; these ones; may be repeated")] = None,
    published: Annotated[bool, typer.Option("--published", help="at the sizes of make bench and bench-beyond")] = False,
    against: Annotated[Path | None, typer.Option(help="a checkout of another version, measured in turns")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="the least number of rounds")] = 9,
    seconds: Annotated[float, typer.Option(help="the time of plain's rounds, if that makes more")] = 0.5,
    minutes: Annotated[float, typer.Option(help="after these no further use starts")] = 120,
    record: Annotated[Path | None, typer.Option(help="a file of measurements; those in it are not made again")] = None,
    write: Annotated[Path | None, typer.Option(help="a Markdown file for the results")] = None,
) -> None:
    """Time and memory of rnnscan beside plain `lax.scan`, at random sizes."""
    machine = describe_machine("float32")
    console = console_with(machine)
    names = known(use or [], NAMES, "--use")
    cases = [draw_case(name, seed) for name in NAMES if name in names] or draw_cases(seed, uses)
    if published:
        cases = [case for case in published_cases() if not names or case.name in names]
    versions = {version_of(HERE): HERE}
    if against is not None:
        version = version_of(against)
        versions[version if version not in versions else f"the other {version}"] = against
    machine["rnnscan"] = ", ".join(versions)
    checkouts = {version.partition(" of ")[0]: Checkout(path) for version, path in versions.items()}
    measure = partial(_measure, rounds=rounds, seconds=seconds, record=Record(record))
    outcomes = measure_all(list(cases), checkouts, measure, minutes, console)
    console.print(rich_table("Uses; ! is above its limit", use_headings(outcomes), use_rows(outcomes)))
    console.print(rich_table("Times measured again", MISS_HEADINGS, miss_rows(outcomes)))
    console.print(rich_table("Beside the faster of plain and checkpoint", SUMMARY_HEADINGS, summary_rows(outcomes)))
    console.print(load_note(outcomes))
    for line in absent(outcomes):
        console.print(line, style="red", markup=False)
    if write is not None:
        command = (
            shown_command("benchmarks.sweep", write).replace(str(against), "checkout").replace(str(record), "file")
        )
        write.write_text(make_page(outcomes, machine=machine, command=command, seed=seed))
        console.print(f"written to {write}")
    wrong = [str(one.case) for results in outcomes.values() for one in results if one.wrong]
    if wrong:
        raise SystemExit(f"sweep: no result, or not that of plain autodiff, in {'; '.join(wrong)}.")


def measure_all(
    cases: list[Case],
    checkouts: Mapping[str, Checkout],
    measure: Callable[[str, Checkout, Case], Outcome],
    minutes: float,
    console: Console,
) -> dict[str, list[Outcome]]:
    """Measure cases with each version, in turns.

    Args:
        cases: the cases.
        checkouts: the checkout of each version.
        measure: measures a case with a version.
        minutes: after these no further case starts.
        console: gets the progress.

    Returns:
        The outcomes of each version, in the order of the cases.
    """
    outcomes: dict[str, list[Outcome]] = {version: [] for version in checkouts}
    order, end = list(checkouts), time.monotonic() + 60 * minutes
    for number, case in enumerate(cases, 1):
        if time.monotonic() > end:
            console.print(f"{minutes:g} minutes are over; {number - 1} of {len(cases)} uses were measured.")
            break
        for version in order:
            with console.status(f"{case} ({number} of {len(cases)}), {version}"):
                outcomes[version].append(measure(version, checkouts[version], case))
        console.print(_progress(case, {version: outcomes[version][-1] for version in checkouts}), markup=False)
        order.reverse()
    for checkout in checkouts.values():
        checkout.close()
    return outcomes


def _measure(version: str, checkout: Checkout, case: Case, *, rounds: int, seconds: float, record: Record) -> Outcome:
    outcome = record.get(version, case)
    if outcome is None:
        try:
            outcome = checkout.run(measure_case, case, rounds, seconds, record.faster(case))
        except BrokenProcessPool:  # The other cases run in a new process.
            outcome = Outcome(case, error="the process died; it may have needed more memory than there is")
        except Exception as error:  # An error of the engine. The other cases run, and the command fails in the end.
            outcome = Outcome(case, error=f"{type(error).__name__}: {error}", wrong=True)
        record.add(version, outcome)
    return outcome


def _progress(case: Case, latest: dict[str, Outcome]) -> str:
    lines = [str(case)]
    for version, outcome in latest.items():
        figures = ", ".join(f"{what} {figure.value:.2f}" for what, figure in outcome.figures.items())
        causes = "".join(f"; {what}: {cause}" for what, cause in outcome.causes.items())
        lines.append(f"  {version}: {outcome.error or figures}{causes}")
    return "\n".join(lines)
