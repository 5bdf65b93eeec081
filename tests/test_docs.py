"""The code blocks of the README and of docs/ run, and its table of bytes is what is counted."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import rnnscan as rs
from rnnscan import cells
from rnnscan.insight import kept_bytes


ROOT = Path(__file__).parent.parent
PAGES = [
    path for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))] if "```python" in path.read_text()
]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_the_code_blocks_of_a_page_run_one_after_the_other(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # What they write goes there.
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    assert blocks
    namespace = {}
    for number, block in enumerate(blocks):
        exec(compile(block, f"{page.name}, block {number}", "exec"), namespace)


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
