"""The command line of other projects' tests."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.app import shown_command
from benchmarks.machine import describe_machine, version_of
from benchmarks.suites.projects import PROJECTS, Project, SuiteError, projects_in, without
from benchmarks.suites.run import Runner
from benchmarks.suites.table import HEADINGS, failures, make_page, rows, stopped
from benchmarks.table import rich_table


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    folder: Annotated[Path, typer.Argument(help="holds a checkout of each project, under the project's name")],
    project: Annotated[
        list[str] | None, typer.Option(help=f"{', '.join(PROJECTS)}, or another folder; may be repeated")
    ] = None,
    leave_out: Annotated[
        list[str] | None, typer.Option(help="tests that do not run, as project/tests of projects.py; may be repeated")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="processes of a run; above 1 needs pytest-xdist")] = 1,
    minutes: Annotated[float, typer.Option(help="the time limit of a run")] = 60,
    test_minutes: Annotated[float | None, typer.Option(help="the time limit of a test; needs pytest-xdist")] = None,
    recorded: Annotated[
        bool, typer.Option("--recorded", help="run only the tests that have not ended in the last records")
    ] = False,
    write: Annotated[Path | None, typer.Option(help="a Markdown file for the results")] = None,
) -> None:
    """Run other projects' tests with their `lax.scan` as `rs.scan`."""
    console = Console(highlight=False, width=max(Console().width, 125))
    try:
        projects = without(projects_in(folder, project), leave_out or [])
    except SuiteError as error:
        raise SystemExit(f"suites: {error}") from None
    runner = Runner(folder, jobs=jobs, minutes=minutes, test_minutes=test_minutes, recorded=recorded)
    comparisons, errors = [], []
    for one in projects:
        with console.status(f"{one.name}: tests plain, by default and with all recomputed"):
            try:
                comparisons += runner.compare(one)
            except SuiteError as error:  # The others run, and the command fails in the end.
                errors.append(str(error))
    console.print(rich_table("Tests that pass plain, with rs.scan for lax.scan", HEADINGS, rows(comparisons)))
    failed, late = failures(comparisons), stopped(comparisons)
    for line in [*failed, *late, *errors]:
        console.print(line, style="red", markup=False)
    if write is not None and not errors:
        versions = {one.name: version_of(folder / one.name) + chosen_tests(one, leave_out or []) for one in projects}
        command = shown_command("benchmarks.suites", write).replace(str(folder), "folder").replace(" --recorded", "")
        write.write_text(make_page(comparisons, machine=describe_machine(None), versions=versions, command=command))
        console.print(f"written to {write}")
    if errors or failed or any(one.stopped for one in comparisons):
        raise SystemExit(
            f"suites: {len(failed)} failures only with rs.scan, {len(late)} tests stopped at their time limit, "
            f"and {len(errors)} runs without a result."
        )


def chosen_tests(project: Project, left_out: list[str]) -> str:
    """The tests that ran and those that were left out, for the page."""
    ran = ", ".join(f"`{tests}`" for tests in project.tests)
    missing = ", ".join(
        f"`{one.removeprefix(f'{project.name}/')}`" for one in left_out if one.startswith(f"{project.name}/")
    )
    return (f"; {ran}" if ran else "") + (f"; **not run**, though they scan: {missing}" if missing else "")
