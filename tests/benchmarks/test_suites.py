"""The tool that runs other projects' tests with their `lax.scan` replaced, on a tiny project."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.suites.app import chosen_tests
from benchmarks.suites.projects import PROJECTS, Project, SuiteError, projects_in, without
from benchmarks.suites.run import Comparison, Runner, TestResult, compare
from benchmarks.suites.table import make_page


ROOT = Path(__file__).parents[2]
MACHINE = {"versions": "Python 3.11.7, rnnscan 0.3.0, jax 0.10.0", "date": "today"}

LIBRARY = """
from functools import partial

import jax
import jax.numpy as jnp
from jax.lax import scan

def average(xs, reverse=False):
    return scan(lambda carry, x: (0.5 * (carry + x), carry), jnp.zeros(()), xs, reverse=reverse)[0]

def mapped(xs):
    return jax.vmap(partial(scan, step, jnp.zeros(())))(xs)[0]

def step(carry, x):
    return 0.5 * (carry + x), carry
"""

TESTS = """
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from library import average, mapped

def test_average():
    np.testing.assert_allclose(average(jnp.array([1.0, 2.0])), 1.25)

def test_scans_in_a_transformation_of_jax():
    np.testing.assert_allclose(mapped(jnp.array([[1.0, 2.0]])), [1.25])

@pytest.mark.parametrize("value", [2.0])
def test_reversed(value):
    np.testing.assert_allclose(average(jnp.array([1.0, value]), reverse=True), 1.0)

def test_fails_plain():
    assert average(jnp.ones(3)) == 2

def test_scans_by_jax_only():
    assert jax.lax.map(lambda x: x + 1, jnp.ones(3)).sum() == 6

def test_skips():
    average(jnp.ones(3))
    pytest.skip("not today")
"""

# What only `rs.scan` gets wrong.
BROKEN = """
import rnnscan

right = rnnscan.scan

def wrong(*arguments, reverse, **options):
    return right(*arguments, reverse=False, **options)

rnnscan.scan = wrong
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Checkouts of projects; a run starts an interpreter, so tests that can, read an earlier test's records."""
    folder = tmp_path_factory.mktemp("suites")
    files = {"library.py": LIBRARY, "tests/test_library.py": TESTS, "tests/test_none.py": "def test_none(): pass\n"}
    for name in ("right", "broken", "lacking"):
        for file, text in files.items():
            path = folder / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    # A file above the checkouts, which pytest takes for the root of tests where a checkout has none of its own.
    (folder / "pyproject.toml").write_text("")
    (folder / "broken" / "conftest.py").write_text(BROKEN)
    (folder / "lacking" / "library.py").unlink()
    (folder / "slow").mkdir()
    slow = "import time\ndef test_quick(): pass\ndef test_slow(): time.sleep(600)\ndef test_last(): pass\n"
    (folder / "slow" / "test_slow.py").write_text(slow)
    return folder


def compare_recorded(folder, name):
    return Runner(folder, recorded=True).compare(Project(name))


def test_a_project_whose_tests_pass_passes(folder):
    for mode, comparison in zip(("default", "all"), compare_recorded(folder, "right"), strict=True):
        assert comparison == Comparison("right", mode, plain=3, failures={}, calls=3)


def test_a_test_that_fails_only_with_the_replaced_scan_is_named(folder):
    for comparison in compare_recorded(folder, "broken"):
        assert (comparison.plain, comparison.passed, comparison.calls) == (3, 2, 3)
        ((name, error),) = comparison.failures.items()
        assert name == "tests/test_library.py::test_reversed[2.0]"
        assert error.startswith("AssertionError")


def test_complete_runs_are_read_from_their_records(folder, monkeypatch):
    comparisons = compare_recorded(folder, "right")
    monkeypatch.setattr(Runner, "_pytest", None)
    assert compare_recorded(folder, "right") == comparisons


def test_a_file_that_cannot_be_imported_is_an_error_that_says_why(folder):
    with pytest.raises(SuiteError, match="No module named 'library'"):
        compare_recorded(folder, "lacking")


def test_tests_that_never_scan_are_an_error(folder):
    with pytest.raises(SuiteError, match="none of its 1 tests calls"):
        Runner(folder).compare(Project("lacking", tests=("tests/test_none.py",)))


def test_a_mode_that_replaces_no_call_is_an_error():
    with pytest.raises(SuiteError, match="all: no call of"):
        compare(Project("right"), "all", ["test_none"], {"test_none": TestResult("passed")})


def test_a_test_that_does_not_run_in_a_mode_is_a_failure():
    results = {"test_one": TestResult("passed", calls=1), "test_two": TestResult("skipped")}
    comparison = compare(Project("right"), "all", ["test_one", "test_two", "test_three"], results)
    assert comparison.failures == {"test_two": "skipped", "test_three": "it did not run"}


def test_a_run_that_takes_too_long_is_an_error_that_names_the_test(folder):
    with pytest.raises(SuiteError, match=r"more than 0\.25 minutes.*test_slow"):
        Runner(folder, minutes=0.25).compare(Project("slow"))


def test_a_test_at_its_time_limit_is_stopped_and_the_others_run(folder):
    results = Runner(folder, test_minutes=0.1).run(Project("slow"), "plain")
    outcomes = {name.partition("::")[2]: result.outcome for name, result in results.items()}
    assert outcomes == {"test_quick": "passed", "test_slow": "stopped", "test_last": "passed"}
    assert results["test_slow.py::test_slow"].error == "it took more than 6 seconds"


def test_a_stopped_test_counts_neither_as_passed_nor_as_failed():
    results = {"test_one": TestResult("passed", calls=1), "test_two": TestResult("stopped", error="too long")}
    comparison = compare(Project("right"), "all", ["test_one", "test_two"], results)
    assert (comparison.passed, comparison.failures) == (1, {})
    assert comparison.stopped == {"test_two": "too long"}


def test_tests_that_have_ended_in_the_records_do_not_run_again(tmp_path, monkeypatch):
    records = tmp_path / ".records" / "right" / "plain"
    records.mkdir(parents=True)
    ended = {"test": "test_one", "calls": 2, "outcome": "passed", "error": ""}
    lines = [json.dumps(record) for record in ({"test": "test_one"}, ended, {"test": "test_two"})]
    (records / "1.jsonl").write_text("\n".join(lines))
    left_out = []
    monkeypatch.setattr(
        Runner, "_pytest", lambda *arguments: left_out.append(json.loads((records / "ended").read_text()))
    )
    results = Runner(tmp_path, recorded=True).run(Project("right"), "plain")
    assert results["test_one"] == TestResult("passed", calls=2)
    Runner(tmp_path).run(Project("right"), "plain")
    assert left_out == [["test_one"], []]


def test_records_of_tests_that_are_not_chosen_do_not_count(tmp_path, monkeypatch):
    records = tmp_path / ".records" / "right" / "plain"
    records.mkdir(parents=True)
    ends = [{"test": f"tests/{name}.py::test", "calls": 1, "outcome": "passed", "error": ""} for name in ("one", "two")]
    (records / "1.jsonl").write_text("\n".join(map(json.dumps, ends)))
    monkeypatch.setattr(Runner, "_pytest", lambda *arguments: None)
    runner = Runner(tmp_path, recorded=True)
    assert list(runner.run(Project("right", tests=("tests/one.py",)), "plain")) == ["tests/one.py::test"]
    assert list(runner.run(Project("right"), "plain", ["tests/two.py::test"])) == ["tests/two.py::test"]
    assert len(runner.run(Project("right"), "plain")) == 2


def test_a_missing_checkout_or_package_is_an_error_that_says_what_to_do(folder):
    with pytest.raises(SuiteError, match=r"no checkout of equinox, diffrax, dynamax.*Clone there: .*probml/dynamax"):
        projects_in(folder, None)
    with pytest.raises(SuiteError, match="no checkout of absent"):
        projects_in(folder, ["right", "absent"])
    assert projects_in(folder, ["right"]) == [Project("right")]


def test_a_missing_package_is_named(folder, monkeypatch):
    monkeypatch.setitem(PROJECTS, "right", Project("right", packages=("no-such-package", "jax")))
    with pytest.raises(SuiteError, match=r"no-such-package \(for right\).*pip install no-such-package`"):
        projects_in(folder, ["right"])


def test_the_command_fails_where_a_test_fails_and_writes_the_page(folder):
    def run(*arguments):
        command = [sys.executable, "-m", "benchmarks.suites", str(folder), *arguments]
        return subprocess.run(command, cwd=ROOT, env=os.environ | {"COLUMNS": "200"}, capture_output=True, text=True)

    right = run("--project", "right", "--recorded", "--write", str(folder / "page.md"))
    assert right.returncode == 0, right.stderr
    page = (folder / "page.md").read_text()
    assert "| right | `Memory()` | 3 | 3 | 0 | 0 | 3 |" in page
    assert str(folder) not in page
    broken = run("--project", "broken", "--project", "right", "--recorded")
    assert broken.returncode == 1
    assert "test_reversed[2.0]: AssertionError" in broken.stdout
    assert "2 failures only with rs.scan" in broken.stderr
    missing = run()
    assert missing.returncode == 1
    assert "no checkout of equinox" in missing.stderr


def test_the_page_lists_failures():
    comparison = Comparison("equinox", "all", plain=3, failures={"test_one": "ValueError: no"}, calls=1234)
    page = make_page([comparison], machine=MACHINE, versions={"equinox": "abc"}, command="python -m suites")
    assert '| equinox | `Memory(recompute="all")` | 3 | 2 | **1** | 0 | 1,234 |' in page
    assert '- `equinox, Memory(recompute="all"): test_one: ValueError: no`' in page
    assert "[equinox](https://github.com/patrick-kidger/equinox): abc" in page


def test_the_page_lists_stopped_tests():
    comparison = Comparison(
        "equinox", "all", 3, {}, 5, stopped={"test_one": "late"}, stopped_plain={"test_two": "late"}
    )
    page = make_page([comparison], machine=MACHINE, versions={"equinox": "abc"}, command="python -m suites")
    assert '| equinox | `Memory(recompute="all")` | 3 | 2 | 0 | **1** | 5 |' in page
    assert '- `equinox, Memory(recompute="all"): test_one: late`' in page
    assert "- `equinox, plain: test_two: late`" in page


def test_tests_are_left_out_and_the_page_says_which():
    project = Project("right", tests=("one.py", "two.py"))
    (left,) = without([project], ["right/two.py"])
    assert left.tests == ("one.py",)
    assert chosen_tests(left, ["right/two.py"]) == "; `one.py`; **not run**, though they scan: `two.py`"
    with pytest.raises(SuiteError, match=r"No project lists right/three\.py\. Leave out some of right/one\.py"):
        without([project], ["right/three.py"])
