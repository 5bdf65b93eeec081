"""The code blocks of the README and of docs/ run, and the README's table of bytes is what is counted.

What other claims of the pages rest on is checked in tests/docs/.
"""

import os
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from rnnscan import cells
from rnnscan.insight import kept_bytes


# Keras reads its backend once, where it is imported.
os.environ["KERAS_BACKEND"] = "jax"

ROOT = Path(__file__).parents[2]
PAGES = [
    path for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))] if "```python" in path.read_text()
]
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))


def blocks_of(page):
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def recorded_from_torch():
    """What the first block of the torch page that does not run here made: make_interop_goldens.py ran it."""
    with np.load(ROOT / "tests" / "goldens" / "torch_interop.npz") as file:
        recorded = {key.split("/", 1)[1]: file[key] for key in file.files if key.startswith("lstm_bidirectional_2/")}
    single = {key: value.astype(np.float32) for key, value in recorded.items()}
    weights = {key.removeprefix("weights/"): value for key, value in single.items() if key.startswith("weights/")}
    given = {"xs": "inputs/x", "h_0": "inputs/h", "c_0": "inputs/c"}
    returned = {"torch_ys": "outputs/y", "torch_h": "outputs/h", "torch_c": "outputs/c"}
    return {"state_dict": weights} | {name: single[key] for name, key in (given | returned).items()}


# Of Keras' own get_weights, with a numpy that is newer than it.
@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning")
@every_page
def test_the_code_blocks_of_a_page_run_one_after_the_other(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # What they write goes there.
    blocks = blocks_of(page)
    assert blocks
    namespace = {}
    for number, block in enumerate(blocks):
        exec(compile(block, f"{page.name}, block {number}", "exec"), namespace)


def test_the_two_sides_of_the_torch_page_are_equal():
    setup, of_rnnscan, *_ = blocks_of(ROOT / "docs" / "migrating" / "torch.md")
    namespace, recorded = {}, recorded_from_torch()
    exec(setup, namespace)
    namespace |= recorded
    exec(of_rnnscan, namespace)
    for name in ("ys", "h", "c"):
        np.testing.assert_allclose(namespace[name], recorded[f"torch_{name}"], atol=1e-6)


@every_page
def test_blocks_that_do_not_run_here_are_of_libraries_that_the_tests_do_not_have(page):
    blocks = re.findall(r"^```([^\n]*python[^\n]*)\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    for kind, block in blocks:
        compile(block, page.name, "exec")
        assert kind == "python" or (kind == "{.python .not-run}" and page.stem in ("torch", "caffe2"))


def test_the_table_of_kept_bytes_is_what_is_counted():
    rows = re.findall(r"^\| `(\S+)`.*\| ([\d,]+) \| ([\d.]+) \|$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert len(rows) == 4
    cell = cells.LSTM(256)
    params = jax.eval_shape(lambda: cell.init(jax.random.key(0), 128))
    carry = jax.eval_shape(cell.initial_carry, jax.ShapeDtypeStruct((32, 128), jnp.float32))
    xs = jax.ShapeDtypeStruct((128, 32, 128), jnp.float32)
    counted = []
    for choice, stated, share in rows:
        memory = eval(choice, {"Memory": rs.Memory})
        run = lambda *arguments, memory=memory: rs.scan(cell, *arguments, memory=memory)  # noqa: E731
        counted.append(kept_bytes(run, params, carry, xs))
        assert counted[-1] == int(stated.replace(",", "")), choice
        assert f"{counted[-1] / counted[0]:.2f}" == share, choice
