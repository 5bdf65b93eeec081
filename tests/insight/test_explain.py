"""rs.explain: what it finds in cells whose parts are known, and how it shows that."""

import io

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from rich.console import Console

import rnnscan as rs
from rnnscan import cells
from rnnscan._messages import in_words


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
