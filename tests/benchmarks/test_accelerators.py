"""The figures of the accelerator benchmark, read off programs that XLA compiles for the CPU."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import rnnscan as rs
from benchmarks.accelerators import associative
from benchmarks.accelerators.bars import bars
from benchmarks.accelerators.choices import compiles_long
from benchmarks.accelerators.figures import Cache, figures_of
from benchmarks.accelerators.hlo import Program, arrays, cycles, launches, loops_in_words, type_bytes
from benchmarks.accelerators.measure import median_seconds
from benchmarks.accelerators.model import H200, bytes_moved, modelled_seconds, product_operations
from benchmarks.accelerators.page import make_page
from benchmarks.accelerators.tables import NOT_COMPILED, Row, Tables
from benchmarks.accelerators.target import environment, is_here
from benchmarks.accelerators.workloads import ALL, scans, types
from benchmarks.workloads import CellPair


def text_of(function, *arguments):
    return jax.jit(function).lower(*arguments).compile().as_text()


def nested(x):
    """7 trips, of which each has 5."""

    def inner(x, _):
        return jnp.tanh(x @ x), None

    return lax.scan(lambda x, _: lax.scan(inner, jnp.sin(x), length=5), x, length=7)[0]


@pytest.fixture(scope="module")
def program():
    return Program.parse(text_of(nested, jnp.ones((8, 8))))


def test_loops_and_their_trips(program):
    total, (outer,) = program.cost(launches)
    (inner,) = outer.inner
    assert (outer.trips, inner.trips) == (7, 5)
    # The inner loop runs a product and a tanh at least.
    assert inner.cost >= 2
    assert outer.cost > 5 * inner.cost
    assert total >= 7 * outer.cost
    assert loops_in_words((outer,)) == f"7 x {outer.cost} (5 x {inner.cost})"


def test_instructions_that_run_add_up_to_the_cost(program):
    total = sum(placed.times * launches(placed.instruction) for placed in program.placed())
    assert total == program.cost(launches)[0]
    (product,) = [placed for placed in program.placed() if placed.instruction.origin.endswith("dot_general")]
    assert product.times == 35


def test_the_condition_says_the_trips_if_nothing_else_does():
    text = text_of(lambda x: lax.fori_loop(0, 11, lambda _, x: jnp.sin(x), x), jnp.ones(3))
    assert '"known_trip_count":{"n":"11"}' in text
    (loop,) = Program.parse(text.replace("known_trip_count", "another")).cost(launches)[1]
    assert loop.trips == 11


def test_a_loop_with_a_limit_runs_as_often_and_a_fallback_does_not():
    def solve(x):
        def goes_on(state):
            return (state[0] < 5) & (state[1].max() > 0.1)

        _, x = lax.while_loop(goes_on, lambda state: (state[0] + 1, jnp.sin(state[1])), (0, x))
        return lax.while_loop(lambda state: ~state[1], lambda _: (jnp.cos(x), True), (x, jnp.all(x < 1)))[0]

    loops = Program.parse(text_of(solve, jnp.ones(3))).cost(launches)[1]
    assert [loop.trips for loop in loops] == [5, 0]


def test_text_that_is_no_program():
    with pytest.raises(ValueError, match="no ENTRY computation"):
        Program.parse("nothing")


def test_cycles_are_those_that_the_compiler_writes(program):
    assert program.cost(cycles)[0] == 0  # The CPU's compiler writes none.
    (instruction, *_) = [placed.instruction for placed in program.placed() if launches(placed.instruction)]
    assert cycles(replace(instruction, rest='backend_config={"estimated_cycles":"320","x":1}')) == 320


def test_bytes_of_printed_types():
    assert type_bytes("(f32[2,3]{1,0:T(8,128)S(1)}, bf16[4]{0}, pred[], c64[2])") == 24 + 8 + 1 + 16
    assert arrays("s32[]") == [("s32", ())]


def test_of_a_stack_that_is_sliced_only_the_slice_is_read():
    text = text_of(lambda stack, at: jnp.sin(stack[at]), jnp.ones((100, 16)), 3)
    moved = _moved(Program.parse(text))
    assert 2 * 16 * 4 <= moved < 6 * 16 * 4


def test_of_a_stack_that_is_updated_only_the_update_is_written():
    def put(stack, row, at):
        return lax.dynamic_update_slice(stack, jnp.sin(row)[None], (at, 0))

    jitted = jax.jit(put, donate_argnums=0)
    text = jitted.lower(jnp.ones((100, 16)), jnp.ones(16), 3).compile().as_text()
    assert 2 * 16 * 4 <= _moved(Program.parse(text)) < 6 * 16 * 4


def _moved(program):
    return sum(
        bytes_moved(program, placed.computation, placed.instruction)
        for placed in program.placed()
        if launches(placed.instruction)
    )


def test_operations_of_a_product():
    text = text_of(lambda x, y: lax.dot_general(x, y, (((0,), (1,)), ((), ()))), jnp.ones((5, 3)), jnp.ones((4, 5)))
    program = Program.parse(text)
    products = [placed for placed in program.placed() if placed.instruction.kind == "dot"]
    for placed in products:
        first = program.find(placed.computation, placed.instruction.operands[0])
        assert product_operations(placed.instruction, first) == 2 * 3 * 4 * 5
    assert products


def test_a_small_kernel_takes_the_time_of_its_launch(program):
    count = program.cost(launches)[0]
    np.testing.assert_allclose(modelled_seconds(program, H200), (count * 1.1e-6, count * 1.7e-6))
    slow = replace(H200, bytes=1.0)
    assert modelled_seconds(program, slow)[0] > 1


def figures(scale=1):
    found = figures_of(text_of(nested, jnp.ones((8, 8))), 1 << 20, 0.5, "gpu")
    return replace(found, cost=scale * found.cost)


def test_a_cache_remembers(tmp_path):
    path = tmp_path / "of" / "gpu.json"
    cache = Cache(path)
    assert cache.get(cache.digest("a", "b")) is None
    cache.put(cache.digest("a", "b"), figures())
    cache.put(cache.digest("ab"), "out of memory")
    again = Cache(path)
    assert again.get(again.digest("a", "b")) == figures()
    assert again.get(again.digest("ab")) == "out of memory"


def tables():
    rows = {"plain": 10, "checkpoint": 8, "rnnscan": 2, "rnnscan-all": 3}
    return Tables("jax 1", {"lstm-small": {row: Row(figures(), figures(scale)) for row, scale in rows.items()}})


def test_bars_are_of_the_worse_row():
    found = {bar.text: bar for bar in bars("gpu", tables())}
    launched = next(bar for text, bar in found.items() if text.startswith("launches"))
    assert launched.figure == pytest.approx(0.3)
    assert not launched.met
    (estimated, *_) = bars("tpu", tables())
    assert estimated.figure == pytest.approx(3 / 8)


def test_bars_of_newtons_method():
    rows = {"plain": 100, "checkpoint": 80, "rnnscan": 20, "rnnscan-all": 30, "rnnscan-newton": 1}
    made = Tables("jax 1", {"para-gru": {row: Row(figures(), figures(scale)) for row, scale in rows.items()}})
    (launched,) = [bar for bar in bars("gpu", made) if "rnnscan-newton / plain: para-gru" in bar.text]
    assert launched.figure == pytest.approx(0.01)
    assert launched.met


@pytest.mark.parametrize(("scale", "bought"), [(8, True), (2, False)])
def test_time_to_compile_that_buys_launches_is_listed_and_in_no_bar(scale, bought):
    made = tables()
    rows = made.rows["lstm-small"]
    rows["rnnscan"].trained = replace(rows["rnnscan"].trained, compile_seconds=5.0)
    made.without = {"lstm-small": {"rnnscan": figures(scale)}}
    assert compiles_long(made.trained["lstm-small"], "rnnscan")
    assert not compiles_long(made.trained["lstm-small"], "rnnscan-all")
    (bar,) = [bar for bar in bars("gpu", made) if bar.text.startswith("compile time")]
    expected = (1, "lstm-small, rnnscan-all") if bought else (10, "lstm-small, rnnscan")
    assert (bar.figure, bar.where) == expected
    (line,) = [line for line in make_page({"gpu": made}).splitlines() if line.startswith("| `lstm-small` | rnnscan |")]
    assert line.endswith(f"| 10.00 | 0.200 | 1.00 | {scale / 10:.3f} | {'yes' if bought else 'no'} |")


def test_tables_and_their_page(tmp_path):
    made = tables()
    made.without = {"lstm-small": {"rnnscan": figures(4)}}
    made.rows["lstm-small"]["rnnscan"].measured = 0.25
    made.rows["lru"] = {"plain": Row("no", "VMEM is full")}
    made.write(tmp_path / "gpu.json")
    read = Tables.read(tmp_path / "gpu.json")
    assert read == made
    page = make_page({"gpu": read, "tpu": tables()})
    assert "| `lstm-small` | rnnscan | 250.000 |" in page
    assert "VMEM is full" in page
    assert "have not been compiled" not in page
    made.rows["lru"]["plain"].trained = NOT_COMPILED
    assert "have not been compiled" in make_page({"gpu": made})
    assert page.count("<details") == page.count("</details>") == 2


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", ["lru", "rg-lru"])
def test_linear_cells_by_hand(name):
    cell = {"lru": rs.cells.LRU(4), "rg-lru": rs.cells.RGLRU(4)}[name]
    by_hand = {"lru": associative.associative_lru, "rg-lru": associative.associative_rg_lru}[name]
    params = {
        part: leaf + 0.3 * jax.random.normal(jax.random.key(index), leaf.shape)
        for index, (part, leaf) in enumerate(cell.init(jax.random.key(9), 4).items())
    }
    xs = jax.random.normal(jax.random.key(1), (6, 2, 4), jnp.float64)
    carry = cell.initial_carry(xs[0])
    wanted = jax.jit(lambda: rs.scan(cell, params, carry, xs, memory=None))()
    found = jax.jit(lambda: by_hand(CellPair(cell, cell), params, carry, xs))()
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-7), found, wanted)


def test_every_workload_has_rows_and_types():
    for name in ALL:
        assert {"plain", "checkpoint", "rnnscan", "rnnscan-all"} <= scans(name).keys()
    assert {leaf.dtype.name for leaf in jax.tree.leaves(types("lstm-bf16"))} == {"bfloat16"}
    assert all("rnnscan-newton" in scans(name) for name in ("para-gru", "para-lstm"))


def test_steps_take_turns():
    order = []
    steps = {name: lambda x, name=name: order.append(name) or x for name in "ab"}
    assert median_seconds(steps, (jnp.ones(3),), rounds=2).keys() == {"a", "b"}
    assert order == ["a", "b"] * 3


def test_devices_are_looked_for(tmp_path):
    assert not is_here("gpu", tmp_path)
    (tmp_path / "nvidia0").touch()
    assert is_here("gpu", tmp_path)
    assert not is_here("tpu", tmp_path)


def test_the_described_gpu_hides_a_real_one(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=here")
    found = environment("gpu")
    assert found["CUDA_VISIBLE_DEVICES"] == "-1"
    assert found["XLA_FLAGS"].endswith(" --xla_dump_to=here")
