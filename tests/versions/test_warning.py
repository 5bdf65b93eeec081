"""An import with a version of jax that is excluded, or has bugs that give wrong values, says so once."""

import re
import subprocess
import sys

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

import rnnscan as rs
from known_bugs import known_bugs
from pages import ROOT, code, table
from rnnscan.versions import advice, bugs_of


VERSIONS = ["0.10.0", "0.10.1", "0.10.2", "0.11.0", "0.11.1", "0.11.2", "0.12.0", "0.12.0.1"]
WRONG_OR_CRASH = [
    "product_and_sum_of_rows.py",
    "product_and_plain_sum_of_rows.py",
    "reduction_of_eight_axes.py",
    "maximum_of_nan.py",
]
# Before what a process imports: warnings are printed to stdout, a line for each.
RUN = """
import warnings
warnings.showwarning = lambda message, category, filename, line, *_: print(
    f"{category.__module__}.{category.__name__}:{filename}:{line}:{message}"
)
import jax, jaxlib.version
jax.__version__, jaxlib.version.__version__ = "%s", "%s"
"""
IMPORTS = "import rnnscan as rs\nrs.scan\nfrom rnnscan import cells\nimport rnnscan.control.while_net\n"


def printed(jax, jaxlib, imports, *options):
    """The lines that a new process prints that imports with these versions, and its errors."""
    done = subprocess.run(
        [sys.executable, *options, "-c", RUN % (jax, jaxlib) + imports], capture_output=True, text=True, check=False
    )
    return done.stdout.splitlines(), done.stderr


@pytest.mark.parametrize("version", VERSIONS)
def test_the_bugs_are_those_of_the_page(version):
    stated = [bug.versions for bug in known_bugs() if bug.program in WRONG_OR_CRASH]
    assert all(isinstance(versions, Requirement) and versions.name == "jaxlib" for versions in stated)
    assert len(bugs_of(version)) == sum(version in versions.specifier for versions in stated)


def test_the_excluded_versions_are_those_of_the_page():
    (jax,) = [SpecifierSet(code(row[2])) for row in table("versions.md", "package") if row[0] == "jax"]
    for version in ["0.9.2", *VERSIONS, "0.13.0", "1.0"]:
        for pair in ((version, "0.11.2"), ("0.11.2", version)):
            assert ("rnnscan excludes" in (advice(*pair) or "")) == (version not in jax), pair
    (supported,) = re.findall(r"Install jax and jaxlib ([^a-z]+)\.$", advice("0.9.2", "0.9.2"))
    assert SpecifierSet(supported) == jax


@pytest.mark.parametrize("version", VERSIONS)
def test_advice_is_for_versions_with_a_bug_that_the_newest_has_not(version):
    is_worse = not set(bugs_of(version)) <= set(bugs_of(VERSIONS[-1]))
    assert (advice(version, version) is not None) == (is_worse or version == "0.11.1")


@pytest.mark.parametrize("version", VERSIONS)
def test_it_says_of_old_versions_how_slow_small_loops_are(version):
    said = re.findall(r"Small loops take up to (\d+) times as long as with jax 0\.12\.", advice(version, version) or "")
    (row,) = [row for row in table("versions.md", "with Python") if row[0] == "3.11"]
    on_page = re.findall(r"up to (\d+) times slower", row[3])
    assert said == (on_page if version.startswith("0.10.") else [])
    for page in ("README.md", "docs/quickstart.md"):
        text = " ".join((ROOT / page).read_text().split())
        assert re.findall(r"small loops take up to (\d+) times", text) == on_page


@pytest.mark.parametrize(
    ("version", "text"),
    [
        ("0.10.2", r"jaxlib 0\.10\.2 has known bugs that give wrong values or end the process .* passes over NaN"),
        ("0.11.1", r"rnnscan excludes jax 0\.11\.1: with it a scan with small outputs takes time with the square"),
        ("0.13.0", r"rnnscan excludes jax 0\.13\.0, which it was not tested with"),
    ],
)
def test_an_import_says_so_once_where_the_user_imports(version, text):
    lines, errors = printed(version, version, IMPORTS)
    assert not errors
    (line,) = lines
    begin = f"rnnscan.versions.JaxVersionWarning:<string>:{RUN.count(chr(10)) + 2}:"
    assert re.match(re.escape(begin) + text, line)
    assert line.endswith('Silence this with warnings.filterwarnings("ignore", category=rnnscan.JaxVersionWarning).')


def test_another_version_says_nothing():
    assert printed("0.11.2", "0.11.2", IMPORTS) == ([], "")


@pytest.mark.parametrize("module", ["cells", "insight"])
def test_a_part_that_is_imported_first_says_it_too(module):
    lines, errors = printed("0.10.2", "0.10.2", f"import rnnscan.{module}")
    assert not errors
    assert len(lines) == 1


def test_the_category_filters_it():
    filtered = "import warnings, rnnscan\nwarnings.filterwarnings('ignore', category=rnnscan.JaxVersionWarning)\n"
    assert printed("0.10.2", "0.10.2", filtered + IMPORTS) == ([], "")
    assert printed("0.10.2", "0.10.2", IMPORTS, "-W", "ignore:jaxlib 0.10.2 has known bugs") == ([], "")


def test_an_error_is_one_of_this_category():
    lines, errors = printed("0.10.2", "0.10.2", IMPORTS, "-W", "error")
    assert not lines
    assert "rnnscan.versions.JaxVersionWarning: jaxlib 0.10.2" in errors
    assert issubclass(rs.JaxVersionWarning, UserWarning)


def test_commands_do_not_say_it_but_info_does():
    command = "import sys\nfrom rnnscan.cli import main\nsys.argv = ['rnnscan', 'info']\nmain()\n"
    lines, _ = printed("0.10.2", "0.10.2", command)
    assert not [line for line in lines if "JaxVersionWarning" in line]
    assert sum("jaxlib 0.10.2 has known bugs" in line for line in lines) == 1
