"""Functions of arrays: where values begin outside of scans, in loops, branches, rules and arguments."""

from functools import partial
from html import escape

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import rnnscan as rs
from rnnscan import cells


XS = jnp.asarray(np.random.default_rng(0).normal(size=(6, 3, 5)), jnp.float32)
GRU = cells.GRU(4)
PARAMS = GRU.init(jax.random.key(0), 5)
CARRY = GRU.initial_carry(XS[0])


def ys_of(params, xs):
    return rs.scan(GRU, params, CARRY, xs)[1]


def exponential(params, carry, x):
    gates = rs.name(x @ params["kernel"], "gates")
    return carry + jnp.exp(gates), gates


def test_the_sentence_has_the_step_the_row_the_name_the_operation_the_origin_and_the_line():
    params = {"kernel": jnp.full((5, 4), 31.0)}
    xs = jnp.full((6, 3, 5), 0.01).at[4, 2].set(0.8)
    report = rs.first_nonfinite(partial(rs.scan, exponential), params, jnp.zeros((3, 4)), xs)
    assert str(report).startswith(
        "step 4, row 2, `carry`, forward: inf = exp(124); its operand came from params['kernel'], 31 ("
    )
    assert "test_functions.py" in report.place
    assert "(exponential)" in report.place
    assert (report.step, report.row, report.name, report.direction) == (4, 2, "carry", "forward")
    assert report.primitive == "exp"
    assert report.operands == pytest.approx((124.0,), rel=1e-5)
    assert (report.origin, report.magnitude) == ("params['kernel']", 31.0)
    assert report.value == np.inf
    assert report.index == (2, 0)


def test_a_function_of_three_arguments_is_a_cell_if_scan_takes_it_with_them():
    """Called once, with all inputs, such a cell is finite: its carry is broadcast."""

    def grow(params, carry, x):
        return carry * 1e10 + x, carry

    arguments = None, jnp.zeros((3, 4)), jnp.ones((12, 3, 4))
    report = rs.first_nonfinite(grow, *arguments)
    assert (report.step, report.row, report.name, report.primitive) == (4, 0, "carry", "mul")
    assert report == rs.first_nonfinite(grow, *arguments, loss=lambda results: results[1].sum())
    assert rs.first_nonfinite(grow, *arguments[:2], jnp.ones((4, 3, 4))) is None
    report = rs.first_nonfinite(lambda params, carry, xs: params + carry + jnp.log(xs), 1.0, 1.0, jnp.zeros(3))
    assert (report.step, report.primitive) == (None, "log")


def test_a_value_that_overflows_in_the_name_has_the_name():
    params = {"kernel": jnp.full((5, 4), 3e38)}
    report = rs.first_nonfinite(partial(rs.scan, exponential), params, jnp.zeros((3, 4)), 10 * jnp.ones((6, 3, 5)))
    assert (report.step, report.row, report.name, report.primitive) == (0, 0, "gates", "dot_general")
    assert report.origin == "params['kernel']"


@pytest.mark.parametrize(
    ("argument", "place"),
    [("params", "params['kernel']"), ("xs", "xs")],
)
@pytest.mark.parametrize("value", [jnp.nan, jnp.inf])
def test_an_argument_that_holds_it_is_named(argument, place, value):
    def inputs(planted):
        xs = XS.at[3, 1, 2].set(value) if planted and argument == "xs" else XS
        params = (
            PARAMS | {"kernel": PARAMS["kernel"].at[2, 1].set(value)} if planted and argument == "params" else PARAMS
        )
        return params, xs

    # A gate saturates, so the product of inputs and weights must reach the results in another way.
    def product(params, xs):
        return (xs @ params["kernel"]).sum() + ys_of(params, xs).sum()

    assert rs.first_nonfinite(product, *inputs(False)) is None
    report = rs.first_nonfinite(product, *inputs(True))
    assert report.origin == place
    assert report.primitive is None
    assert report.index == ((3, 1, 2) if argument == "xs" else (2, 1))
    assert (report.step, report.row) == ((3, 1) if argument == "xs" else (None, None))
    assert f"{place} holds {value:.4g}" in str(report)


def test_a_weight_of_one_row_of_the_carry_is_named():
    report = rs.first_nonfinite(GRU, PARAMS, (CARRY[0].at[2, 1].set(jnp.nan),), XS)
    assert (report.origin, report.row, report.step) == ("carry[0]", 2, None)


def test_after_the_scan_the_step_and_row_are_those_of_its_outputs():
    def loss(params, xs):
        return jnp.log(jnp.abs(ys_of(params, xs)).at[2, 1, 3].set(0)).mean()

    report = rs.first_nonfinite(jax.jit(jax.value_and_grad(loss)), PARAMS, XS)
    assert (report.step, report.row, report.primitive, report.direction) == (2, 1, "log", "forward")
    assert report.operands == (0.0,)
    assert report.name == "result[0]"


def test_a_gradient_alone_is_found():
    def loss(params, xs):
        return jnp.sqrt((ys_of(params, xs) * jnp.ones((6, 3, 4)).at[2, 1, 3].set(0)) ** 2).sum()

    assert rs.first_nonfinite(jax.jit(loss), PARAMS, XS) is None
    report = rs.first_nonfinite(jax.jit(jax.value_and_grad(loss)), PARAMS, XS)
    # The derivative of the root at 0 is infinite, and JAX computes it on the way forward or back.
    assert report.primitive in ("div", "rsqrt", "mul")
    assert (report.step, report.row) == (2, 1)
    assert (report.name, report.direction) == ("result[1]['bias']", "backward"), str(report)


def root_of_square(params, carry, x):
    carry = jnp.tanh(carry + jnp.sqrt((x * params) ** 2))
    return carry, carry


def total(params, xs):
    return rs.scan(root_of_square, params, jnp.zeros((3, 2)), xs)[1].sum()


def inverse(x):
    return (1 / (1 + jnp.exp(x))).sum()


def logarithms(xs):
    inputs, logarithms = lax.scan(lambda carry, x: (carry, (x, jnp.log(x))), 0.0, xs)[1]
    return inputs.sum(), logarithms.sum()


@pytest.mark.parametrize(
    ("call", "name", "direction"),
    [
        # The root's factor is computed on the way forward, for the backward pass alone.
        (lambda one, xs: rs.first_nonfinite(jax.value_and_grad(total), one, xs), "result[1]", "backward"),
        (
            lambda one, xs: rs.first_nonfinite(
                root_of_square, one, jnp.zeros((3, 2)), xs, loss=lambda results: results[1].sum()
            ),
            "gradient of params",
            "backward",
        ),
        (
            lambda one, xs: rs.first_nonfinite(lambda one: jax.jvp(partial(total, xs=xs), (one,), (one,)), one),
            "carry",
            "tangent",
        ),
        # The loss reads the infinity, and is finite.
        (lambda one, xs: rs.first_nonfinite(jax.value_and_grad(inverse), 100 * one), "result[1]", "forward"),
        # Another result of the same loop is finite.
        (lambda one, xs: rs.first_nonfinite(logarithms, -jnp.ones(2)), "result[1]", "forward"),
    ],
    ids=["gradient", "loss", "tangent", "read", "loop"],
)
def test_a_result_that_is_finite_is_not_named(call, name, direction):
    report = call(jnp.ones(()), jnp.ones((6, 3, 2)).at[2, 0, 1].set(0))
    assert (report.name, report.direction) == (name, direction)


@pytest.mark.parametrize("form", ["jit", "cond", "while", "fori", "lax.scan", "checkpoint", "vmap", "custom"])
def test_calls_loops_and_branches_are_searched(form):
    def bad(x):
        return jnp.log(x - 2)  # NaN below 2.

    @jax.custom_vjp
    def with_rule(x):
        return bad(x)

    with_rule.defvjp(lambda x: (bad(x), x), lambda x, ct: (ct,))
    functions = {
        "jit": jax.jit(bad),
        "cond": lambda x: lax.cond(x.sum() > 0, bad, jnp.sin, x),
        "while": lambda x: lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, bad(s[1])), (0, x))[1],
        "fori": lambda x: lax.fori_loop(0, 3, lambda i, c: bad(c), x),
        "lax.scan": lambda x: lax.scan(lambda c, x: (bad(c), None), x, None, length=3)[0],
        "checkpoint": jax.checkpoint(bad),
        "vmap": jax.vmap(bad),
        "custom": with_rule,
    }
    x = jnp.array([30.0, 1.5, 40.0])
    report = rs.first_nonfinite(jax.jit(lambda x: functions[form](x)), x)
    assert report.primitive == "log"
    assert report.index == (1,)
    assert report.operands == (-0.5,)
    assert report.origin == "x"
    assert "(test_calls_loops_and_branches_are_searched.<locals>.bad)" in report.place
    if form in ("while", "fori", "lax.scan"):
        assert report.step == 0


def test_the_first_step_of_a_loop_is_that_of_a_long_scan():
    """The state doubles from 1, so it overflows at a step that is known."""
    steps = 300
    report = rs.first_nonfinite(
        lambda carry: lax.scan(lambda carry, _: (2 * carry, carry), carry, None, length=steps), jnp.float32(1)
    )
    assert (report.step, report.primitive) == (127, "mul")


def test_a_step_of_an_inner_scan_is_that_of_the_outer_one():
    def inner(params, carry, x):
        return carry + x, jnp.log(x)

    def outer(params, carry, x):
        _, ys = rs.scan(inner, None, jnp.zeros_like(x[0]), x)
        return carry, rs.name(ys.sum(0), "total")

    xs = jnp.ones((5, 4, 3, 2)).at[3, 2, 1, 0].set(-1)  # step, inner step, row, unit
    report = rs.first_nonfinite(partial(rs.scan, outer), None, jnp.zeros((3, 2)), xs)
    assert (report.step, report.primitive) == (3, "log")
    assert report.index == (1, 0)


def test_what_is_discarded_is_not_found():
    def masked(x):
        return jnp.where(x > 0, jnp.log(x), 0).sum()

    x = jnp.array([1.0, 0.0, 2.0])
    assert rs.first_nonfinite(masked, x) is None
    report = rs.first_nonfinite(jax.grad(masked), x)  # 0 * inf: the well-known trap of `where`.
    assert report.index == (1,)
    assert report.operands[-1] in (0.0, jnp.inf)


def test_a_mask_of_minus_infinity_is_not_to_blame():
    def attention(scores, queries, mask):
        scores = jnp.where(mask, scores * queries, -jnp.inf)
        return (jax.nn.softmax(scores, axis=-1) * queries).sum()

    scores, mask = jnp.ones((3, 4)), jnp.ones((3, 4), bool).at[:, 2:].set(False)
    function = jax.jit(jax.value_and_grad(attention))
    assert rs.first_nonfinite(function, scores, jnp.ones((3, 4)), mask) is None
    # -inf - -inf where a row has no key at all: the operation that makes NaN.
    report = rs.first_nonfinite(function, scores, jnp.ones((3, 4)), mask.at[1].set(False))
    assert (report.primitive, report.operands) == ("sub", (-np.inf, -np.inf))
    assert report.index[0] == 1
    # Another value overflows: the mask stays without blame.
    report = rs.first_nonfinite(function, scores * 1e30, jnp.full((3, 4), 1e30), mask)
    assert (report.primitive, report.operands) == ("mul", pytest.approx((1e30, 1e30)))


@pytest.mark.parametrize("jitted", [False, True])
def test_an_array_that_the_function_closes_over_is_named(jitted):
    weights = jnp.ones((5, 2)).at[1, 0].set(jnp.nan)
    jit = jax.jit if jitted else lambda function: function
    report = rs.first_nonfinite(jit(lambda xs: xs @ weights), XS[:, 0])
    assert str(report) == "forward: a float32[5,2] that the function closes over holds nan at [1, 0]"
    report = rs.first_nonfinite(jit(lambda weights: weights + jnp.full(2, jnp.inf)), jnp.ones((5, 2)))
    assert "inf" in str(report)
    report = rs.first_nonfinite(jit(lambda xs: (xs, weights)), XS[:, 0])
    assert report.origin == "a float32[5,2] that the function closes over"


@pytest.mark.parametrize("called_before", [False, True])
def test_a_step_of_inputs_that_the_function_closes_over_is_named(called_before):
    cell = rs.cells.LSTM(4)
    xs = XS.at[3, 1, 2].set(jnp.nan)
    params = cell.init(jax.random.key(0), 5)
    loss = jax.jit(jax.value_and_grad(lambda params: jnp.sum(rs.scan(cell, params, cell.initial_carry(xs[0]), xs)[1])))
    if called_before:
        loss(params)
    report = rs.first_nonfinite(loss, params)
    assert (report.step, report.row, report.index) == (3, 1, (3, 1, 2))
    assert report.origin == "a float32[6,3,5] that the function closes over"


def test_bfloat16_and_complex_numbers():
    report = rs.first_nonfinite(lambda x: jnp.exp(x), jnp.array([1, 200], jnp.bfloat16))
    assert (report.primitive, report.index, report.operands) == ("exp", (1,), (200.0,))
    report = rs.first_nonfinite(lambda x: 1 / x, jnp.array([1 + 1j, 0], jnp.complex64))
    assert (report.primitive, report.index) == ("div", (1,))


@pytest.mark.parametrize("jitted", [False, True])
def test_a_whole_training_step_is_searched(jitted):
    import optax

    optimizer = optax.adam(1e-2)

    def step(params, state, xs):
        def loss(params):
            ys = ys_of(params, xs)
            return jnp.log(jnp.abs(ys).mean((0, 2)) - 1e-9).sum()

        value, gradient = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(gradient, state)
        return optax.apply_updates(params, updates), state, value

    function = jax.jit(step) if jitted else step
    state = optimizer.init(PARAMS)
    assert rs.first_nonfinite(function, PARAMS, state, XS) is None
    zero = jax.tree.map(jnp.zeros_like, PARAMS)
    report = rs.first_nonfinite(function, zero, state, XS)
    assert (report.primitive, report.direction) == ("log", "forward")
    assert "(test_a_whole_training_step_is_searched.<locals>.step.<locals>.loss)" in report.place


def test_results_that_are_finite_the_second_time_are_named():
    calls = []

    def nan_at_first(x):
        calls.append(x)
        return np.full(3, np.nan if len(calls) == 1 else 1, np.float32)

    def function(x):
        return 2 * x, jax.pure_callback(nan_at_first, jax.ShapeDtypeStruct((3,), jnp.float32), x)

    report = rs.first_nonfinite(function, jnp.ones(3))
    assert str(report) == "forward: result[1], which is finite where the operations run one by one, holds nan at [0]"


def test_carries_of_keys_and_integers_pass():
    def noisy(params, carry, x):
        key, count = carry
        key, own = jax.random.split(key)
        return (key, count + 1), rs.name(jnp.log(x + 10) + jax.random.normal(own, x.shape), "noise")

    function = jax.jit(jax.value_and_grad(lambda xs: rs.scan(noisy, None, (jax.random.key(0), 0), xs)[1].sum()))
    assert rs.first_nonfinite(function, XS) is None
    report = rs.first_nonfinite(function, XS.at[3, 2, 1].set(-12))
    assert (report.step, report.row, report.name, report.operands) == (3, 2, "noise", (-2.0,))


def test_without_compilation_a_loop_is_a_function_of_python():
    with jax.disable_jit():
        report = rs.first_nonfinite(partial(rs.scan, exponential), {"kernel": jnp.full((5, 4), 200.0)}, CARRY[0], XS)
    assert (report.primitive, report.direction) == ("exp", "forward")
    assert "(exponential)" in report.place


def test_donated_arguments_are_an_error():
    function = jax.jit(lambda x: jnp.log(x), donate_argnums=0)
    with pytest.raises(ValueError, match=r"must run again on its arguments; got one that donates them"):
        rs.first_nonfinite(function, jnp.array([-1.0]))


def test_a_report_shows_in_notebooks():
    report = rs.first_nonfinite(jnp.log, jnp.array([-1.0]))
    assert str(report).startswith("`result`, forward: nan = log(-1) at [0]; its operand came from x, 1")
    assert report._repr_html_() == f"<p>{escape(str(report))}</p>"
