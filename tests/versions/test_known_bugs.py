"""Each known bug of docs/versions.md is in the versions that the page says, and in no others.

`make test` runs those that the installed version should have, which says when one is gone; `make test-all` all of them,
which says when one appears.
"""

import platform
import re
import tomllib

import jax
import pytest
from packaging.requirements import Requirement

from known_bugs import PROGRAMS, Bug, check, known_bugs
from pages import ROOT, code, table


BUGS = known_bugs()
STATED = {bug.program: () if bug.is_stated() else pytest.mark.slow for bug in BUGS}


def is_here(where):
    """Whether this machine has what a bug needs."""
    if where == "GPU":
        try:
            return bool(jax.devices("gpu"))
        except RuntimeError:
            return False
    return where != "Linux, x86-64" or (platform.system(), platform.machine()) == ("Linux", "x86_64")


@pytest.mark.parametrize("bug", [pytest.param(bug, id=bug.program, marks=STATED[bug.program]) for bug in BUGS])
def test_a_bug_is_in_the_stated_versions_only(bug):
    if not is_here(bug.where):
        pytest.skip(f"not run, because the bug needs this: {bug.where}")
    check(bug, shows=bug.shows())


def test_each_row_has_a_program_and_each_program_a_row():
    assert sorted(bug.program for bug in BUGS) == PROGRAMS


def test_each_row_says_where_the_bug_shows_and_what_rnnscan_does():
    assert {re.sub(r"`JAX_\w+=1`", "flag", bug.where) for bug in BUGS} == {"CPU", "GPU", "Linux, x86-64", "any", "flag"}
    for bug, _, versions, report, remedy, _ in table("versions.md", "bug"):
        assert remedy, bug
        assert report == "none known" or re.fullmatch(r"\[\S+#\d+\]\(https://github\.com/\S+/\d+\)", report), bug
        assert versions.startswith(("`jax", "not known")), bug


def test_pyproject_excludes_the_version_that_the_page_says_and_no_other():
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    allowed = {one.name: one.specifier for one in map(Requirement, dependencies)}
    rows = table("versions.md", "bug")
    excluded = [Requirement(code(row[2])) for row in rows if row[4] == "excludes the version"]
    refused = [(name, one.version) for name in allowed for one in allowed[name] if one.operator == "!="]
    assert {("jaxlib", *(one.version for one in bug.specifier)) for bug in excluded} == {("jaxlib", "0.11.1")}
    assert sorted(refused) == [("jax", "0.11.1"), ("jaxlib", "0.11.1")]


@pytest.mark.parametrize(
    ("versions", "shows", "message"),
    [("jax>=0.10", False, "is gone from jax"), ("jax<0.10", True, "Add it to its versions"), (None, True, "Add it")],
)
def test_a_table_that_is_not_so_is_rejected(versions, shows, message):
    bug = Bug("a.py", "CPU", versions and Requirement(versions))
    with pytest.raises(AssertionError, match=message):
        check(bug, shows=shows)
    check(bug, shows=not shows)


@pytest.mark.parametrize(
    ("code", "shows"),
    [("print('right')", False), ("print('wrong')", True), ("import os; os.abort()", True)],
)
def test_a_program_shows_the_bug_by_its_last_line_or_by_a_crash(code, shows, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(code)
    assert Bug(str(program), "CPU", None).shows() == shows


def test_a_program_that_fails_otherwise_is_no_bug(tmp_path):
    program = tmp_path / "program.py"
    program.write_text("raise ImportError('no such thing')")
    with pytest.raises(AssertionError, match="no such thing"):
        Bug(str(program), "CPU", None).shows()
