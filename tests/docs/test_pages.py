"""What the pages say of extras, packages and files is so, and they show no place on a machine."""

import re
import tomllib

import pytest

import rnnscan as rs
from pages import DOCS, ROOT, table


PAGES = sorted(DOCS.rglob("*.md"))


def test_the_extras_of_the_quick_start_are_there():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    in_table = {cell.strip("`") for cell, _ in table("quickstart.md", "extra")}
    extras = set(in_table)
    text = "\n".join(page.read_text() for page in PAGES)
    extras |= set(re.findall(r"\(?extra `(\w+)`\)?", text))
    assert extras <= set(project["optional-dependencies"])
    for_contributors = {"bench", "bench-small", "papers", "docs", "dist", "core", "dev", "pages", "coverage"}
    assert set(project["optional-dependencies"]) - for_contributors <= in_table
    assert f"Python {project['requires-python'].removeprefix('>=')} or newer" in text


def test_the_files_of_the_engine_are_there():
    for files, _ in table("engine.md", "file"):
        named = re.findall(r"`([\w/]+(?:\.py|/))`", files)
        assert named, files
        for file in named:
            assert (ROOT / "rnnscan" / file).exists(), file


@pytest.mark.parametrize("page", ["docs/decisions.md", "docs/engine.md", "CONTRIBUTING.md"])
def test_a_module_that_a_page_names_is_there(page):
    modules = [
        f"/{path.relative_to(ROOT)}"
        for folder in ("rnnscan", "tests", "benchmarks", "docs")
        for path in (ROOT / folder).rglob("*.py")
    ]
    named = set(re.findall(r"`([\w/]+\.py)`", (ROOT / page).read_text()))
    assert named
    assert {name for name in named if not any(module.endswith(f"/{name}") for module in modules)} == set()


def test_the_converters_of_the_table_are_there_and_no_others():
    stated = {name for row in table("weights.md", "library") for name in re.findall(r"`(\w+)`", " ".join(row[1:]))}
    there = {name for name in vars(rs.interop) if re.match(r"(from|to)_|onnx_", name)}
    assert stated == there


def test_a_measured_page_says_first_with_which_version_and_when():
    measured = {page.name for page in PAGES if "\n- versions: Python" in page.read_text()}
    parts = ("", "_beyond", "_of_loops", "_of_serving", "_of_tools", "_sweep")
    assert measured >= {f"benchmarks{part}.md" for part in parts}
    for name in measured - {"papers.md"}:
        text = (DOCS / name).read_text()
        ((rnnscan, jax),) = re.findall(r"^- versions: .*rnnscan (\S+), jax (\S+),", text, re.MULTILINE)
        (date,) = re.findall(r"^- date: (\S+)$", text, re.MULTILINE)
        assert text.splitlines()[2].startswith(f"> Measured with rnnscan {rnnscan} and jax {jax} on {date}."), name


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(DOCS)))
def test_a_page_begins_with_its_title_and_shows_no_place_on_a_machine(page):
    text = re.sub(r"\A---\n.*?\n---\n\n", "", page.read_text(), flags=re.DOTALL)
    assert text.startswith("# ")
    if page.name != "benchmarks.md":  # It says by which command it was made.
        assert not re.search(r"(?<![\w.])/(home|tmp|root|work|Users|usr)/", text)
