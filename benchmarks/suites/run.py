"""Runs of one project's tests in processes of their own, and their comparison."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import rnnscan as rs
from benchmarks.suites.projects import Project, SuiteError


# In the order of the runs. "plain" chooses the tests for the others.
MODES = ("plain", "default", "all")
# The exit codes of pytest after which each test has its result: all passed, some failed, and no test was left.
_COMPLETE = (0, 1)
_NO_TESTS = 5


@dataclass(frozen=True)
class TestResult:
    """What a test did.

    Attributes:
        outcome: "passed", "failed", "skipped", "stopped" at its time limit, or "unfinished".
        calls: the number of its calls of `lax.scan`.
        error: the first line of its error.
    """

    __test__ = False  # It is no test, though pytest reads the name so.

    outcome: str
    calls: int = 0
    error: str = ""


@dataclass(frozen=True)
class Comparison:
    """The tests of a project in one mode beside the plain run.

    Attributes:
        project: its name.
        mode: "default" or "all".
        plain: the number of tests that scan and pass plain.
        failures: the errors of those that do not pass through `rs.scan`, by test.
        calls: the number of calls that were replaced.
        stopped: those that reached their time limit, and count neither as passed nor as failed, with what they took.
        stopped_plain: the tests that reached it in the plain run already, and did not run in this mode.
    """

    project: str
    mode: str
    plain: int
    failures: dict[str, str]
    calls: int
    stopped: dict[str, str] = field(default_factory=dict)
    stopped_plain: dict[str, str] = field(default_factory=dict)

    @property
    def passed(self) -> int:
        """The number of tests that pass plain and through `rs.scan`."""
        return self.plain - len(self.failures) - len(self.stopped)


@dataclass(frozen=True)
class Runner:
    """How tests run.

    Attributes:
        folder: holds the checkouts. Records are written to `.records` there.
        jobs: the number of processes of a run.
        minutes: the time limit of a run.
        test_minutes: the time limit of a test, if it has one.
        recorded: whether the tests that have ended in the last records are read from there.
    """

    folder: Path
    jobs: int = 1
    minutes: float = 60
    test_minutes: float | None = None
    recorded: bool = False

    def compare(self, project: Project) -> list[Comparison]:
        """Run a project plain, and then the tests that scan and pass in each other mode.

        Raises:
            SuiteError: if a run does not end as it should, or a mode replaces no call.
        """
        plain = self.run(project, "plain")
        if not any(result.calls for result in plain.values()):
            raise SuiteError(f"{project.name}: none of its {len(plain)} tests calls lax.scan. Name other tests.")
        scanning = sorted(name for name, result in plain.items() if result.calls and result.outcome == "passed")
        if not scanning:
            errors = "; ".join(sorted({result.error for result in plain.values() if result.error})[:3])
            raise SuiteError(f"{project.name}: no test that scans passes plain: {errors}. Mend its environment first.")
        stopped_plain = _errors(plain, "stopped")
        return [
            replace(compare(project, mode, scanning, self.run(project, mode, scanning)), stopped_plain=stopped_plain)
            for mode in MODES[1:]
        ]

    def run(self, project: Project, mode: str, tests: Collection[str] | None = None) -> dict[str, TestResult]:
        """Run tests of a project in one mode. None: all tests of the project."""
        records = self.folder.resolve() / ".records" / project.name / mode
        complete, choice = records / "complete", json.dumps(sorted(project.tests if tests is None else tests))
        if self.recorded and complete.exists() and complete.read_text() == choice:
            return _results(project, records, tests)
        records.mkdir(parents=True, exist_ok=True)
        for old in records.iterdir() if not self.recorded else ():
            old.unlink()
        environment = os.environ | self._environment(mode, records)
        arguments = list(project.tests)
        if tests is not None:
            (records / "tests").write_text(choice)
            environment["SUITES_TESTS"] = str(records / "tests")
            arguments = sorted({test.partition("::")[0] for test in tests})
        self._pytest(project, mode, [*arguments, *project.options], environment, records)
        complete.write_text(choice)
        return _results(project, records, tests)

    def _environment(self, mode: str, records: Path) -> dict[str, str]:
        ended = sorted(name for name, result in read_records(records).items() if result.outcome != "unfinished")
        (records / "ended").write_text(json.dumps(ended))
        # The plugin has a folder of its own, because a project may have a package `benchmarks` too.
        places = [Path(__file__).parent / "plugin", Path(rs.__file__).parents[1]]
        inherited = filter(None, [os.environ.get("PYTHONPATH")])
        limit = {} if self.test_minutes is None else {"SUITES_SECONDS": str(self.test_minutes * 60)}
        return limit | {
            "SUITES_MODE": mode,
            "SUITES_RECORDS": str(records),
            "SUITES_ENDED": str(records / "ended"),
            "PYTEST_PLUGINS": "replaced_scan",
            "PYTHONPATH": os.pathsep.join([*map(str, places), *inherited]),
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def _pytest(
        self, project: Project, mode: str, arguments: list[str], environment: dict[str, str], records: Path
    ) -> None:
        # A test at its time limit ends its process. pytest-xdist starts another, of which its default allows few.
        limited = ["--max-worker-restart", "100000"] if self.test_minutes is not None else []
        parallel = ["-n", str(self.jobs), *limited] if self.jobs > 1 or limited else []
        # Names of tests are paths from the checkout, also where a folder above it has a pyproject.toml.
        options = ["-q", "-p", "no:cacheprovider", "--rootdir", str(self.folder.resolve() / project.name), *parallel]
        command = [sys.executable, "-m", "pytest", *options, *arguments]
        log = records / "log"
        with log.open("w") as out:
            # In a session of its own, so that a run that takes too long ends with its workers.
            process = subprocess.Popen(
                command,
                cwd=self.folder / project.name,
                env=environment,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                code = process.wait(self.minutes * 60)
            except subprocess.TimeoutExpired:
                unfinished = [name for name, one in read_records(records).items() if one.outcome == "unfinished"]
                raise SuiteError(
                    f"{project.name}, {mode}: the run took more than {self.minutes:g} minutes, and was in "
                    f"{', '.join(unfinished) or 'its collection'}. Allow more with --minutes."
                ) from None
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        if code not in _COMPLETE and not (code == _NO_TESTS and json.loads((records / "ended").read_text())):
            lines = [line for line in log.read_text().splitlines() if line.startswith(("E  ", "ERROR"))]
            raise SuiteError(
                f"{project.name}, {mode}: pytest ended with {code}: {'; '.join(lines[:4])}. "
                f"Install what it lacks; {log} has all of its output."
            )


def _results(project: Project, records: Path, tests: Collection[str] | None) -> dict[str, TestResult]:
    # Records may hold more: of tests that were chosen then.
    results = read_records(records).items()
    if tests is not None:
        return {name: result for name, result in results if name in tests}
    return {name: result for name, result in results if name.startswith(project.tests or "")}


def read_records(folder: Path) -> dict[str, TestResult]:
    """The results of the tests that have started, from what the plugin wrote."""
    records = [json.loads(line) for file in folder.glob("*.jsonl") for line in file.read_text().splitlines()]
    results = {record["test"]: TestResult("unfinished", error="it did not end") for record in records}
    for record in records:
        if "outcome" in record:
            results[record["test"]] = TestResult(record["outcome"], record["calls"], record["error"])
    return results


def compare(project: Project, mode: str, scanning: list[str], results: dict[str, TestResult]) -> Comparison:
    """Compare the tests that scan and pass plain with their results in a mode.

    Raises:
        SuiteError: if the mode replaced no call.
    """
    calls = sum(result.calls for result in results.values())
    if not calls:
        raise SuiteError(f"{project.name}, {mode}: no call of lax.scan was replaced, so the run shows nothing.")
    absent = TestResult("unfinished", error="it did not run")
    by_test = {name: results.get(name, absent) for name in scanning}
    failures = _errors(by_test, "failed", "skipped", "unfinished")
    return Comparison(project.name, mode, len(scanning), failures, calls, stopped=_errors(by_test, "stopped"))


def _errors(results: Mapping[str, TestResult], *outcomes: str) -> dict[str, str]:
    return {name: result.error or result.outcome for name, result in results.items() if result.outcome in outcomes}
