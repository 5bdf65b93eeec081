"""rs.explain: what it finds in cells whose parts are known, and how it shows that."""

import io

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from rich.console import Console

import rnnscan as rs
from rnnscan import cells
from rnnscan._util.messages import in_words


pytestmark = pytest.mark.typed  # `make test` runs these with the run-time type checks.


def explain(cell, hidden=4, features=3, **options):
    x = jax.ShapeDtypeStruct((2, features), jnp.float32)
    params = jax.eval_shape(lambda: cell.init(jax.random.key(0), features))
    xs = jax.ShapeDtypeStruct((1024, *x.shape), x.dtype)
    return rs.explain(cell, params, jax.eval_shape(cell.initial_carry, x), xs, **options)


def min_gru(params, carry, x):
    gate = jax.nn.sigmoid(rs.name(x @ params["gate"], "gate"))
    carry = (1 - gate) * carry + gate * (x @ params["candidate"])
    return carry, None


def of_min_gru(**options):
    kernel, carry, xs = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((64, 128), (8, 128), (1024, 8, 64)))
    return rs.explain(min_gru, {"gate": kernel, "candidate": kernel}, carry, xs, **options)


def test_the_parts_of_an_lstm():
    explanation = explain(cells.LSTM(4))
    assert explanation.engine == "fission"
    kinds = {equation.operation: equation.kind for equation in explanation.equations}
    assert kinds["broadcast_in_dim"] == "invariant", "the bias"
    products = [equation.kind for equation in explanation.equations if equation.operation == "dot_general"]
    assert sorted(products) == ["parallel", "recurrent"], "of the input, and of the hidden state"
    assert explanation.carry["[0]"].kept == "as an output"
    assert "recomputed linearly" in explanation.carry["[1]"].kept
    assert explanation.carry["[0]"].loop == explanation.carry["[1]"].loop


def test_stacked_layers_are_two_loops():
    explanation = explain(rs.stack(cells.LSTM(4), cells.GRU(4)))
    loops = {place: leaf.loop for place, leaf in explanation.carry.items()}
    assert loops == {"[0][0]": 1, "[0][1]": 1, "[1][0]": 2}


def test_a_linear_recurrence_is_found():
    explanation = of_min_gru()
    assert explanation.kinds == {"invariant": 0, "parallel": 5, "linear": 2, "elementwise": 0, "recurrent": 0}
    assert explanation.carry[""].kind == "linear"
    assert {e.forward for e in explanation.equations if e.operation == "dot_general"} == {"at once"}


@pytest.mark.parametrize(("memory", "again"), [(rs.Memory(), "kept"), (rs.Memory(recompute="all"), "at once")], ids=str)
def test_a_named_value_is_kept_or_computed_again(memory, again):
    named = [equation for equation in of_min_gru(memory=memory).equations if equation.name == "gate"]
    assert [equation.backward for equation in named] == [again]


def of_large(cell, **options):
    xs = jax.ShapeDtypeStruct((128, 32, 128), jnp.float32)
    params = jax.eval_shape(lambda: cell.init(jax.random.key(0), 128))
    carry = jax.eval_shape(cell.initial_carry, jax.ShapeDtypeStruct((32, 128), jnp.float32))
    return rs.explain(cell, params, carry, xs, **options)


AGAIN = "in loop 1 to recompute carries"
BACKWARD = {
    # `sub` is 1 - update, which its loop reads; the last sum is the new carry.
    "a loop": (cells.GRU(256), {"sub": ["in backward loop 1"], "tanh": ["at once"]}),
    "two loops": (
        rs.stack(cells.GRU(256), cells.GRU(256)),
        {"sub": [f"{AGAIN}, in backward loop 2", "in backward loop 1"], "tanh": ["at once"] * 2},
    ),
    "carries again": (cells.QRNN(256), {"sub": [f"{AGAIN}, at once"], "stack": ["not needed"]}),
    "products in another form": (cells.LSTM(256), {"dot_general": ["at once"] * 2}),
}


@pytest.mark.parametrize(("cell", "expected"), BACKWARD.values(), ids=BACKWARD)
def test_the_backward_column_says_which_loop(cell, expected):
    explanation = of_large(cell, memory=rs.Memory(recompute="all" if isinstance(cell, cells.LSTM) else ()))
    for operation, places in expected.items():
        assert [one.backward for one in explanation.equations if one.operation == operation] == places
    loops = {
        place.replace("backward ", "")
        for one in explanation.equations
        for place in one.backward.split(", ")
        if "loop" in place
    }
    assert loops <= {part.part for part in explanation.costs if part.direction == "backward"}


def test_what_the_derivative_does_not_read_is_not_needed():
    def cell(params, carry, x):
        carry = jnp.tanh(x @ params["kernel"] + carry @ params["recurrent_kernel"])
        return carry, carry

    params = {"kernel": jnp.ones((128, 256)), "recurrent_kernel": jnp.ones((256, 256))}
    explanation = rs.explain(cell, params, jnp.ones((32, 256)), jnp.ones((64, 32, 128)))
    # That of tanh reads the new carry, which is an output.
    assert [one.backward for one in explanation.equations] == ["not needed"] * 4


def test_where_the_derivative_is_not_known_no_loop_is_named():
    def endless(params, carry, x):
        return lax.while_loop(lambda a: a.sum() < 10, lambda a: a + x, carry), carry

    explanation = rs.explain(endless, None, jnp.ones(2), jnp.ones((9, 2)))
    assert {one.backward for one in explanation.equations} == {"in the backward loop"}


def three_states(params, carry, x):
    first, second, third = carry
    first = params["decay"] * first + x
    second = jnp.tanh(second @ params["kernel"] + first)
    third = params["decay"] * third + second
    return (first, second, third), third


@pytest.mark.parametrize(("rows", "units"), [(2, 4), (32, 256)], ids=["one kernel", "large"])
def test_loops_that_run_as_one_are_named(rows, units):
    params = {"decay": jnp.ones(units), "kernel": jnp.ones((units, units))}
    carry = (jnp.ones((rows, units)),) * 3
    explanation = rs.explain(three_states, params, carry, jnp.ones((64, rows, units)))
    assert [leaf.loop for leaf in explanation.carry.values()] == [1, 2, 3]
    assert {one.forward for one in explanation.equations} == {"once", "in loop 1"}
    assert explanation.loops == ((1, 2, 3),)
    assert "forward: loop 1 is loops 1, 2 and 3 of the carry, run as one\n" in str(explanation)


def test_loops_that_run_alone_and_in_order_are_not_named():
    explanation = of_min_gru()
    assert explanation.loops == ((1,),)
    assert "of the carry" not in str(explanation)


def test_loops_that_run_in_another_order_are_named():
    assert "forward: loop 1 is loop 2 of the carry; loop 2 is loop 1 of the carry\n" in str(of_large(cells.QRNN(256)))


def test_a_carry_that_stays_is_kept_once():
    cell = lambda params, carry, x: ((carry[0], jnp.tanh(carry[1] * carry[0] + x)), x)  # noqa: E731
    explanation = rs.explain(cell, None, (jnp.ones(2), jnp.ones(2)), jnp.ones((9, 2)))
    assert (explanation.carry["[0]"].kind, explanation.carry["[0]"].kept) == ("unchanged", "once")
    assert explanation.carry["[1]"].kept == "before every step"


def test_it_says_which_engine_runs_a_cell_and_why():
    def branching(params, carry, x):
        return lax.cond(x.sum() > 0, lambda: rs.name(jnp.sin(carry), "sine"), lambda: carry), x

    explanation = rs.explain(branching, None, jnp.ones(2), jnp.ones((9, 2)))
    assert explanation.engine == "lax"
    assert "a vmap, a branch" in explanation.reason
    assert explanation.reason in str(explanation)
    nothing_kept = rs.explain(branching, None, jnp.ones(2), jnp.ones((9, 2)), memory=rs.Memory(recompute="all"))
    assert nothing_kept.engine == "fission"


def test_text_rich_and_html_say_the_same():
    explanation = of_min_gru()
    console = Console(width=200, file=io.StringIO())
    console.print(explanation)
    rich = console.file.getvalue()
    text, html = str(explanation), explanation._repr_html_()
    for equation in explanation.equations:
        for shown in (equation.operation, equation.result, equation.kind):
            assert shown in text
            assert shown in html
            assert shown in rich
    assert "2 linear" in text
    assert "2 linear" in html
    assert "2 linear" in rich


def seconds_of(explanation, direction):
    return sum(part.seconds for part in explanation.costs if part.direction == direction)


def test_the_time_of_each_loop_and_of_the_batched_work_is_estimated():
    explanation = of_min_gru()
    parts = {(part.direction, part.part): part for part in explanation.costs}
    places = ["in loop 1", "at once"]
    assert [part for direction, part in parts if direction == "forward"] == places
    again = [f"{part} to recompute carries" for part in places]
    assert [part for direction, part in parts if direction == "backward"] == [*again, *places]
    assert {part for direction, part in parts if direction == "forward"} == {e.forward for e in explanation.equations}
    products = 2 * (2 * 8 * 64 * 128)
    assert products < parts["forward", "at once"].flops < 1.1 * products
    # The candidate again, and the gradients of the input and of both kernels.
    assert 2.5 * products < parts["backward", "at once"].flops < 2.6 * products
    assert all(part.seconds > 0 and part.bytes > 0 for part in explanation.costs)
    line = next(line for line in str(explanation).splitlines() if ", forward: " in line)
    assert line.startswith("estimated time of a step on a CPU with 2 cores, forward: about ")
    assert "us in loop 1, " in line
    assert line.endswith(" us at once")


def test_more_units_take_longer():
    small, large = (explain(cells.LSTM(size)) for size in (64, 256))
    for direction in ("forward", "backward"):
        assert seconds_of(large, direction) > 4 * seconds_of(small, direction)


def test_the_estimate_is_for_the_machine_of_the_plan():
    with rs.tuned_for("gpu"):
        explanation = of_min_gru()
    assert "H200" in explanation.machine
    assert explanation.machine in str(explanation)
    assert 0 < seconds_of(explanation, "backward") < seconds_of(of_min_gru(), "backward")


def test_a_step_that_runs_whole_has_one_estimate():
    explanation = of_min_gru(engine="lax")
    assert [(part.direction, part.part) for part in explanation.costs] == [("forward", "in one loop")]


def test_nothing_is_estimated_of_a_derivative_that_does_not_exist():
    def endless(params, carry, x):
        return lax.while_loop(lambda a: a.sum() < 10, lambda a: a + x, carry), carry

    explanation = rs.explain(endless, None, jnp.ones(2), jnp.ones((9, 2)))
    assert {part.direction for part in explanation.costs} == {"forward"}
    counting = rs.explain(lambda params, carry, x: (carry + x, carry), None, 0, jnp.ones((9,), int))
    assert {part.direction for part in counting.costs} == {"forward"}


def test_nothing_is_estimated_of_the_chunkwise_form_and_of_newtons_method():
    gla = explain(cells.GLA(32, heads=2, key_size=16))
    assert {part.direction for part in gla.costs} == {"forward"}
    with rs.tuned_for("gpu"):
        assert explain(cells.GLA(32, heads=2, key_size=16)).costs == ()
    assert "estimated" not in str(explain(cells.ParaGRU(4), parallel=rs.Newton()))


@pytest.mark.bad_input
def test_what_cannot_be_explained_is_refused():
    with pytest.raises(TypeError, match=r"explain: `memory` must be a Memory; got None"):
        of_min_gru(memory=None)
    with pytest.raises(ValueError, match=r"same number of steps, on their first axis; got 1024 at `xs`, 8 at `length`"):
        of_min_gru(length=8)
    with pytest.raises(ValueError, match="gate"):
        of_min_gru(memory=rs.Memory(recompute=("gates",)))


def test_a_title_says_what_the_cell_is():
    class Silent:
        pass

    def step(params, carry, x):
        return carry, x

    assert [in_words(cell) for cell in (step, rs.cells.GRU(3), Silent())] == ["step", "GRU(hidden_size=3)", "Silent"]


def test_a_step_that_prints_is_explained():
    def cell(params, carry, x):
        jax.debug.print("{}", carry[0])
        return carry + x, carry[0]

    explanation = rs.explain(cell, None, jnp.ones(2), jnp.ones(3))
    assert explanation.engine == "lax"
    assert "side effects" in str(explanation)
