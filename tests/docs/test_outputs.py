"""What a page shows as the output of a block is what the block prints, and its figures are those of the benchmarks."""

import re

import pytest

from benchmarks.table import summary_row
from benchmarks.workloads import WORKLOADS
from pages import DOCS, ROOT, fenced, table


PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
OUTPUT = "{.text .output}"


def blocks_and_outputs(text):
    """The blocks of Python of a page in order, each with the output that the page shows, or None."""
    blocks = []
    for kind, block in fenced(text):
        if kind == "python":
            blocks.append((block, None))
        elif kind == OUTPUT:
            blocks[-1] = (blocks[-1][0], block)
    return blocks


def run(text, capsys):
    """Run a page, and compare what it prints with what it shows."""
    namespace = {}
    for block, output in blocks_and_outputs(text):
        capsys.readouterr()
        exec(block, namespace)
        if output is not None:
            assert capsys.readouterr().out == output


WITH_OUTPUTS = [page for page in PAGES if OUTPUT in page.read_text()]


@pytest.mark.parametrize("page", WITH_OUTPUTS, ids=lambda page: page.name)
def test_a_page_shows_what_it_prints(page, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run(page.read_text(), capsys)


def test_a_stale_output_is_found(capsys):
    page = "```python\nprint(1 + 1)\n```\n\n```{.text .output}\n3\n```\n"
    with pytest.raises(AssertionError):
        run(page, capsys)
    run(page.replace("3\n", "2\n"), capsys)


def rows_of(workload):
    """The rows of a workload of the page of benchmarks: by row, its cells by header."""
    text = (DOCS / "benchmarks.md").read_text().partition(f"Workload `{workload}`.\n\n")[2]
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.partition("\n\n")[0].splitlines()]
    header, _, *rows = lines
    return {row[0]: dict(zip(header, row, strict=True)) for row in rows}


def test_the_first_table_of_the_readme_is_of_the_benchmarks():
    """Each row has its shape, one figure in a cell, and its unit once."""
    rows = table(ROOT / "README.md", "T")
    figures = {"time, ms": "ms", "kept for the backward pass, MiB": "kept"}
    assert [row[4] for row in rows] == ["time, ms", *figures]
    for (*shape, figure), stated in ((row[:5], row[5:]) for row in rows):
        workload = {"128": "lstm-small", "16,384": "lstm-16k"}[shape[0]]
        assert [int(size.replace(",", "")) for size in shape] == [*WORKLOADS[workload].shape], workload
        in_table = [rows_of(workload)[row][figures[figure]] for row in ("plain", "rnnscan", "rnnscan-all")]
        assert stated == [cell.removesuffix(" MiB") for cell in in_table]
    (version,) = re.findall(r"measured with\s+rnnscan (\d\S*)\.\s", (ROOT / "README.md").read_text())
    assert f"- versions: Python 3.11.7, rnnscan {version}," in (DOCS / "benchmarks.md").read_text()


def test_the_summary_of_the_benchmarks_is_of_their_tables():
    text = (DOCS / "benchmarks.md").read_text()
    (section,) = re.findall(r"^## Summary\n\n.*\n\n\|.*\n\|.*\n((?:\|.*\n)+)", text, re.MULTILINE)
    titles = dict(re.findall(r"^## (.*)\n\nWorkload `(.*)`\.$", text, re.MULTILINE))
    summary = [tuple(cell.strip() for cell in line.split("|")[1:-1]) for line in section.splitlines()]
    assert summary == [
        summary_row(title, [tuple(row.values()) for row in rows_of(name).values()]) for title, name in titles.items()
    ]
