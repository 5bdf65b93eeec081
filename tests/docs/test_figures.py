"""The figures that the pages state are counted again."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import pytest

import rnnscan as rs
from pages import DOCS, code, number, table
from rnnscan import attention, cells, checkpointing
from rnnscan.insight import kept_bytes


NAMES = {"Memory": rs.Memory, "stack": rs.stack, **vars(cells)}


def array(*shape, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype)


def kept(cell, memory, steps=128, rows=32, features=128, lengths=False):
    """Bytes that are kept of a scan over a cell."""
    params = jax.eval_shape(lambda: cell.init(jax.random.key(0), features))
    carry = jax.eval_shape(cell.initial_carry, array(rows, features))
    given = (array(rows, dtype=jnp.int32),) if lengths else ()

    def run(params, carry, xs, seq_lengths=None):
        return rs.scan(cell, params, carry, xs, memory=memory, seq_lengths=seq_lengths)

    return kept_bytes(run, params, carry, array(steps, rows, features), *given)


def kept_by_decoder(memory, steps=48, rows=16, size=128, positions=200):
    decoder = attention.decoder(cells.LSTM(size), attention.Additive(size, size))
    params = jax.eval_shape(lambda: decoder.init(jax.random.key(0), size))

    def run(params, encoder_outputs, xs):
        cell = decoder.over(params, encoder_outputs)
        return rs.scan(cell, params, cell.initial_carry(xs[0]), xs, memory=memory)

    return kept_bytes(run, params, array(positions, rows, size), array(steps, rows, size))


def kept_by_nested_scans(memory, levels=4, steps=4, rows=32, size=64, hidden=128):
    """Bytes that are kept of scans within each other, whose innermost step is an MLP."""

    def step(params, carry, x):
        return carry + jnp.tanh(carry @ params[0]) @ params[1], None

    def around(inner):
        scan = partial(rs.scan, memory=memory, length=steps)
        return lambda params, carry, x: (scan(inner, params, carry, None)[0], None)

    for _ in range(levels):
        step = around(step)
    params = array(size, hidden), array(hidden, size)
    return kept_bytes(lambda params, carry: step(params, carry, None)[0], params, array(rows, size))


TABLES = {
    "nested scans": ("memory.md", "memory choice of four nested scans", kept_by_nested_scans, 3),
    "LSTM": ("memory.md", "memory choice of an LSTM", partial(kept, cells.LSTM(256)), 5),
    "long LSTM": (
        "memory.md",
        "memory choice of an LSTM, T = 4096, N = 2, D = 8, H = 32",
        partial(kept, cells.LSTM(32), steps=4096, rows=2, features=8),
        5,
    ),
    "attention": ("attention.md", "memory choice", kept_by_decoder, 4),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_of_memory_choices_is_what_is_counted(name):
    page, header, count, rows = TABLES[name]
    found = table(page, header)
    assert len(found) == rows
    plain = number(found[0][1])
    for choice, stated, *share in found:
        assert number(stated) == count(eval(code(choice), NAMES)), choice
        assert share in ([], [f"{number(stated) / plain:.2f}"]), choice


def test_the_table_of_cells_is_what_is_counted():
    rows = table("memory.md", "cell")
    assert len(rows) == 5
    for cell, *stated in rows:
        choices = (None, rs.Memory(), rs.Memory(recompute="all"))
        assert [number(cell) for cell in stated] == [kept(eval(code(cell), NAMES), choice) for choice in choices], cell


def test_the_table_of_lengths_is_what_is_counted():
    rows = table("lengths.md", "memory choice")
    assert len(rows) == 3
    for choice, without, with_lengths in rows:
        count = partial(kept, cells.LSTM(256), eval(code(choice), NAMES))
        assert (number(without), number(with_lengths)) == (count(), count(lengths=True)), choice


def test_the_table_of_schedules_is_what_they_say():
    rows = table("planning.md", "steps")
    assert len(rows) == 4
    for steps, slots, optimum, nested, ratio in rows:
        least = checkpointing.binomial(int(steps), int(slots))
        found = checkpointing.nested(int(steps), slots=int(slots)).evaluations
        assert (int(optimum), int(nested), ratio) == (least, found, f"{found / least:.3f}")


def test_the_bytes_that_the_text_states():
    text = (DOCS / "memory.md").read_text()
    kernels, inputs = 4 * 4 * 256 * (128 + 256), 4 * 128 * 32 * 128
    assert f"{(kernels + inputs) / 1e6:.1f} MB of inputs and parameters" in text
    assert f"most bytes are the inputs, {4 * 4096 * 2 * 8:,}." in text
    assert "D + 12H numbers a row" in text
    assert kept(cells.LSTM(256), None) == 4 * 128 * 32 * (128 + 12 * 256) + kernels


def kept_by_loop(memory, max_steps):
    """Bytes that are kept of a loop whose carry and whose one named value have four bytes each."""

    def body(params, carry):
        return jnp.tanh(rs.name(params * carry, "product"))

    def run(params, carry):
        return rs.while_net(lambda _, carry: carry > 0, body, carry, params=params, max_steps=max_steps, memory=memory)

    return kept_bytes(run, array(), array())


def test_the_memory_of_a_loop_follows_its_limit_as_the_table_says():
    rows = table("control.md", "memory choice, M = `max_steps`")
    assert len(rows) == 5
    k, j = 10, 1000
    for choice, between, _ in rows:
        memory = eval(code(choice), {"Memory": rs.Memory, "k": k, "j": j})
        parts = re.findall(r"(\S+(?: / \S+)?) (?:carries|of each named value)", between)
        stated = [
            sum(eval(part.replace("√M", "M ** 0.5"), {"M": limit, "k": k, "j": j}) for part in parts)
            for limit in (10_000, 40_000)
        ]
        counted = [kept_by_loop(memory, limit) for limit in (10_000, 40_000)]
        # Beside the carry of a segment lies the number of steps before it.
        each = 4 if memory.segment is None else 4 + 4
        assert counted[1] - counted[0] == each * (stated[1] - stated[0]), choice
