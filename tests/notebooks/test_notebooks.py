"""The notebooks run from a clean kernel, and their outputs are committed.

`python tests/notebooks/test_notebooks.py` runs them and writes their outputs.
"""

import os
import re
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient


NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
PLACES = re.compile(r"/(home|tmp|root|work|Users|usr|opt|var|private)/|[A-Z]:\\\\|site-packages|ipykernel_\d")
LARGEST_PICTURE = 100_000  # characters in base 64

every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def run(path: Path, folder: Path) -> Any:
    """Execute a notebook from a clean kernel in an empty folder.

    Without what the tests set for quick compilation, which makes what is compiled slow, and without the warning of a
    version of jax with bugs, as in the tests.
    """
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    environment = {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "JAX_REMAT3")}
    environment["PYTHONWARNINGS"] = "ignore:jaxlib"
    client = NotebookClient(
        notebook,
        timeout=120,
        kernel_name="python3",
        coalesce_streams=True,
        resources={"metadata": {"path": folder}},
    )
    client.execute(env=environment)
    return notebook


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def kinds(cell: Any) -> list[Any]:
    """What a cell shows: text printed, or the types of a value or picture."""
    return [sorted(output.get("data", {})) or output.get("name", output.output_type) for output in cell.outputs]


def text_of(cell: Any) -> str:
    """All that a cell shows but pictures."""
    texts = [output.get("text", "") for output in cell.outputs]
    return "\n".join([*texts, *(value for output in cell.outputs for value in as_text(output.get("data", {})))])


def printed(cell: Any) -> str:
    """What a cell prints, and the values that it shows as text alone. What a browser shows is compared by its kind."""
    shown = [output.get("text", "") for output in cell.outputs]
    shown += [output.data["text/plain"] for output in cell.outputs if [*output.get("data", {})] == ["text/plain"]]
    return "\n".join(shown)


def as_text(data: Any) -> list[str]:
    return [value for kind, value in data.items() if not kind.startswith("image/")]


_NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")
_BYTES = re.compile(r"([KMG]i?)?B\b")


def same_text(committed: str, fresh: str) -> bool:
    """Whether two outputs have the same words in the same order, and about the same numbers.

    Bytes may differ by a fifth, other numbers by a factor of 2, or by 0.25: times differ from machine to machine. So
    does which choices are best (`*`).
    """
    one, other = (text.replace("*", " ").split() for text in (committed, fresh))
    if len(one) != len(other):
        return False
    return all(same_word(*words) for words in zip(one, other, [*one[1:], ""], strict=False))  # An output may be empty.


def same_word(committed: str, fresh: str, following: str) -> bool:
    """The same for two words, and the word that follows, which may be a unit."""
    if _NUMBER.sub("#", committed) != _NUMBER.sub("#", fresh):
        return False
    numbers = [[float(number.replace(",", "")) for number in _NUMBER.findall(word)] for word in (committed, fresh)]
    share, least = (0.2, 0.0) if _BYTES.match(following) else (1.0, 0.25)
    return all(abs(a - b) <= max(share * min(abs(a), abs(b)), least) for a, b in zip(*numbers, strict=True))


@pytest.mark.parametrize(
    ("committed", "fresh", "same"),
    [
        ("kept 5.31 MiB, time 0.72", "kept 5.40 MiB, time 0.54", True),
        ("kept 5.31 MiB", "kept 7.33 MiB", False),
        ("gates kept 1.00", "gates again 1.00", False),
        ("loss 2.5", "loss 6.0", False),
        ("* segments 0.51", "segments 0.9", True),
        ("one line", "one line more", False),
        ("", "", True),
    ],
)
def test_a_stale_output_is_found(committed, fresh, same):
    assert same_text(committed, fresh) == same


def test_there_are_notebooks():
    assert len(NOTEBOOKS) >= 4


@pytest.mark.filterwarnings("ignore")  # those of Jupyter's own packages
@every_notebook
def test_a_notebook_runs_from_a_clean_kernel_and_shows_what_is_committed(path, tmp_path):
    committed = nbformat.read(path, as_version=4)
    fresh = run(path, tmp_path)
    for number, (cell, again) in enumerate(zip(code_cells(committed), code_cells(fresh), strict=True)):
        assert kinds(again) == kinds(cell), f"code cell {number}: {text_of(again)}"
        assert same_text(printed(cell), printed(again)), (
            f"code cell {number}: {printed(cell)}\n\nis now\n\n{printed(again)}"
        )


@every_notebook
def test_what_is_committed_is_complete_and_clean(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    for number, cell in enumerate(notebook.cells):
        assert cell.source.strip(), f"cell {number} is empty"
        assert cell.id == f"cell-{number}"
        assert not cell.metadata, f"cell {number} has metadata"
    cells = code_cells(notebook)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1)), "run once, from top to bottom"
    assert sum(bool(cell.outputs) for cell in cells) >= len(cells) / 2
    assert any("image/png" in output.get("data", {}) for cell in cells for output in cell.outputs)
    for number, cell in enumerate(cells):
        assert not PLACES.search(text_of(cell) + cell.source), f"code cell {number}: a place on a machine"
        for output in cell.outputs:
            assert output.output_type != "error"
            assert output.get("name") != "stderr", f"code cell {number}: {output.get('text')}"
            assert len(output.get("data", {}).get("image/png", "")) < LARGEST_PICTURE


def test_the_conclusion_on_the_decoder_is_that_of_its_table():
    notebook = nbformat.read(next(path for path in NOTEBOOKS if path.stem == "2_recompute"), as_version=4)
    output = next(printed(cell) for cell in notebook.cells if "decoder_rows = " in cell.source)
    rows = re.findall(r"^[* ] (.{28}) *([\d.]+) MiB +[\d.]+ +[\d.]+ MiB +([\d.]+)$", output, re.MULTILINE)
    kept, time = ({row[0].strip(): float(row[column]) for row in rows} for column in (1, 2))
    (attention, gates) = re.findall(r"not keeping '\w+' saves ([\d.]+) [MK]iB", text_of(code_cells(notebook)[-1]))
    assert round(1024 * float(attention) / float(gates)) == 11
    assert kept["all again"] < kept["attention again"] < kept["all names kept"]
    assert max(time["all again"], time["attention again"]) < time["all names kept"]
    assert time["all again"] == pytest.approx(time["attention again"], abs=0.05)
    assert min(kept, key=kept.__getitem__) == "segments of 7"
    assert time["segments of 7"] > time["all again"]


def write(path: Path, folder: Path) -> None:
    """Execute a notebook and write its outputs, without what differs from machine to machine."""
    notebook = run(path, folder)
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for number, cell in enumerate(notebook.cells):
        cell.id, cell.metadata = f"cell-{number}", {}
    nbformat.write(notebook, path)


if __name__ == "__main__":
    from tempfile import TemporaryDirectory

    for path in NOTEBOOKS:
        if not sys.argv[1:] or path.name in sys.argv[1:]:
            with TemporaryDirectory() as folder:
                write(path, Path(folder))
