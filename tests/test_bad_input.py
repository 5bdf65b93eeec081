"""Bad input: one readable paragraph says what must hold, what was got, where, and what to do, before any compute."""

import re

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import rnnscan as rs
from bad_calls import BAD_CALLS, BATCH, LENGTH, LINKS, STATES, counting, net, net_cell, scan
from rnnscan import _checks as checks
from rnnscan.engine.call import route
from slow_reference import arguments, cell, loss


pytestmark = pytest.mark.bad_input


@pytest.fixture
def no_loop_runs(monkeypatch):
    """Errors come before any compute."""
    for loop in ("scan", "while_loop"):
        monkeypatch.setattr(lax, loop, lambda *_, **__: pytest.fail("the error must come before any compute"))


@pytest.mark.parametrize("case", BAD_CALLS)
def test_the_error_says_what_must_hold_what_was_got_and_what_to_do(case, no_loop_runs):
    call, exception, parts = BAD_CALLS[case]
    with pytest.raises(exception) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message, "one paragraph"
    assert message.endswith((".", "?")), message
    for part in parts:
        assert re.search(re.escape(part), message), (part, message)


def test_a_good_call_of_each_kind_is_none_of_the_bad_ones():
    """The cases above differ from these in one thing each."""
    jax.eval_shape(scan())
    jax.eval_shape(
        scan(seq_lengths=jnp.ones(3, int), reset=jnp.ones((5, 3), bool), reset_to=arguments(1, LENGTH, BATCH)[1])
    )
    jax.eval_shape(net())
    jax.eval_shape(net(aliases={"states": ("hidden_t_prev", 5)}, recompute=("product",)))


def test_a_cell_that_names_other_values_when_it_is_traced_again():
    calls = []

    def fickle(params, carry, x):
        calls.append(None)
        return rs.name(carry * 2, "even" if len(calls) % 2 else "odd") + 1, None

    with pytest.raises(
        RuntimeError, match="the same values in every trace; got 'odd' where the first trace named 'even'"
    ):
        rs.scan(fickle, None, jnp.ones(3), None, length=3, engine="lax")


def test_an_error_of_the_cell_itself_comes_through():
    def broken(params, carry, x):
        raise KeyError("of the cell")

    with pytest.raises(KeyError, match="of the cell"):
        rs.scan(broken, None, jnp.ones(3), None, length=3)


@pytest.mark.parametrize(
    "options", [{"memory": rs.Memory(segment=2), "engine": "lax"}, {"memory": rs.Memory(offload=("gate",))}], ids=str
)
def test_what_an_early_remat3_cannot_do(options, monkeypatch):
    for module in (checks, route):
        monkeypatch.setattr(module, "has_early_remat3", lambda: True)
    with pytest.raises(NotImplementedError, match=r"JAX_REMAT3=1, .* needs jax 0\.11 or newer"):
        jax.eval_shape(scan(**options))


@pytest.mark.skipif(checks.has_early_remat3(), reason="refused there, which the test before tests")
def test_useless_offload_warns_where_it_was_asked_for():
    named = lambda params, carry, x: (jnp.tanh(rs.name(carry * 2, "product")), None)  # noqa: E731
    with pytest.warns(UserWarning, match="saves nothing on a CPU") as caught:
        rs.scan(named, None, jnp.ones(3), None, length=3, memory=rs.Memory(offload=("product",)))
    assert caught[0].filename == __file__


@pytest.mark.core("effects")
def test_side_effects_are_done_once_a_step():
    calls = []
    params, carry, xs = arguments(0, LENGTH, BATCH)
    jax.block_until_ready(jax.jit(lambda: rs.scan(counting(calls), params, carry, xs))())
    jax.effects_barrier()
    assert len(calls) == LENGTH


@pytest.mark.core("effects")
def test_a_cell_with_side_effects_has_gradients():
    """Under jax.checkpoint JAX refuses them ("Effects not supported in partial-eval of `checkpoint`/`remat`")."""
    params, carry, xs = arguments(0, LENGTH, BATCH)

    def gradient(cell, memory):
        return jax.grad(lambda params: loss(rs.scan(cell, params, carry, xs, memory=memory)))(params)

    expected = gradient(cell, None)  # What runs for a cell with side effects, whatever the choice.
    for name, actual in gradient(counting([]), rs.Memory()).items():
        assert jnp.allclose(actual, expected[name], rtol=1e-5), name


@pytest.mark.parametrize("ordered", [True, False])
def test_a_progress_bar_in_a_step_advances_once(ordered):
    """As that of jax-tqdm: callbacks of jax.debug in branches. One that runs again finds its bar closed."""
    done = []

    def shown(carry, step):
        show = lambda: jax.debug.callback(done.append, step, ordered=ordered)  # noqa: E731
        jax.lax.cond(step % 2 == 0, show, lambda: None)
        return jnp.tanh(carry + step), carry

    def run(start, **options):
        return rs.scan(lambda _, *step: shown(*step), None, start, jnp.arange(6), **options)[1].sum()

    expected = jax.grad(lambda start: jax.lax.scan(shown, start, jnp.arange(6))[1].sum())(0.5)
    for options in ({}, {"engine": "lax"}, {"memory": rs.Memory(chunk=2)}):
        jax.effects_barrier()
        done.clear()
        assert jnp.allclose(jax.jit(jax.grad(lambda start, options=options: run(start, **options)))(0.5), expected)
        jax.effects_barrier()
        assert sorted(map(int, done)) == [0, 2, 4]


def test_a_forward_only_net_is_refused_before_it_runs(no_loop_runs):
    run = lambda x: rs.recurrent_net(  # noqa: E731
        net_cell, None, inputs={"input_t": x}, initial_cell_inputs=STATES, links=LINKS, forward_only=True
    )["hidden_t_last"].sum()
    with pytest.raises(TypeError, match="`forward_only=True` must not be differentiated"):
        jax.grad(run)(jnp.ones((LENGTH, BATCH, 4)))


@pytest.mark.parametrize("unroll", [True, 5, 9])
def test_a_memory_choice_without_a_loop_warns(unroll):
    with pytest.warns(UserWarning, match="leaves no loop of the 5 steps"):
        scan(unroll=unroll, memory=rs.Memory(recompute="all"))()


@pytest.mark.parametrize("unroll", [True, 5, 9])
def test_no_loop_without_a_memory_choice_is_silent(unroll):
    scan(unroll=unroll)()
    scan(unroll=unroll, memory=None)()


def test_segments_of_a_symbolic_time():
    shape = jax.ShapeDtypeStruct(jax.export.symbolic_shape("t, 3"), jnp.float32)
    run = lambda xs: rs.scan(lambda p, c, x: (c + x, None), None, jnp.ones(3), xs, memory=rs.Memory(segment=2))  # noqa: E731
    with pytest.raises(ValueError, match="must be known when the program is traced"):
        jax.export.export(jax.jit(run))(shape)


@pytest.mark.parametrize(
    "broken",
    [
        lambda params, carry, x: (carry + x, carry),  # with a batch that differs
        lambda params, carry, x: (carry @ x, x),
    ],
)
def test_what_a_cell_raises_is_given_what_it_was_called_with(broken):
    with pytest.raises((TypeError, ValueError)) as error:
        rs.scan(broken, jnp.ones(2), jnp.ones((4, 3)), jnp.ones((4, 7, 3)))
    (note,) = [note for note in error.value.__notes__ if note.startswith("scan:")]
    assert "carry = float32[4,3] and x = float32[7,3], the first step of xs = float32[4,7,3]" in note
    assert "xs is time-major" in note


def test_what_the_cell_of_a_net_raises_is_given_its_blobs_and_links():
    def broken(params, input_t, hidden_t_prev, state_t_prev):
        return {"hidden_t": input_t @ jnp.ones((5, 4)), "state_t": state_t_prev}

    with pytest.raises(TypeError) as error:
        net(broken)()
    (note,) = [note for note in error.value.__notes__ if "cell was called" in note]
    assert "input_t = float32[3,4]" in note
    assert "hidden_t_prev = float32[3,4], state_t_prev = float32[3,4]" in note
    assert "hidden_t_prev <- hidden_t, state_t_prev <- state_t" in note


def test_explain_is_given_the_whole_sequence_as_scan_is():
    cell, xs = rs.cells.LSTM(3), jnp.ones((5, 4, 2))
    params, carry = cell.init(jax.random.key(0), 2), cell.initial_carry(xs[0])
    with pytest.raises(ValueError, match="Batch or hidden size may differ"):
        rs.explain(cell, params, carry, xs[0])
    with pytest.raises(TypeError, match=r"^explain: a net takes \(net, params, xs, \*, carry=None\); got \['params'\]"):
        rs.explain(rs.layer(cell), params)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (rs.cells.LSTM, "Pass an object of it, LSTM(...)."),
        (lambda params, carry, x: (carry, x), "A plain function goes into scan"),
        ([], "Pass cells one by one"),
    ],
)
def test_what_is_no_cell_for_a_net(given, message):
    with pytest.raises(TypeError, match=re.escape(message)):
        rs.layer(given)
