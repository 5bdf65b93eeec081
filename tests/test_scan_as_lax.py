"""`rs.scan` under orders of transformations in which `lax.scan` leaves something unbatched or without a tangent."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.custom_derivatives import SymbolicZero
from jax.experimental import checkify

import rnnscan as rs
from tiers import combinations, variants


ROWS = jnp.linspace(0.4, 1.6, 6).reshape(3, 2)


def plain(cell, params, carry, xs, length=None):
    return lax.scan(partial(cell, params), carry, xs, length=length)


def in_scan(run):
    return lambda *args: jax.tree.map(
        lambda leaf: leaf[0], lax.scan(lambda c, _: (c, run(*args)), 0, None, length=1)[1]
    )


AROUND = {
    "nothing": lambda run: run,
    "jit": jax.jit,
    "checkpoint": jax.checkpoint,
    "scan": in_scan,
    "cond": lambda run: lambda *args: lax.cond(jnp.asarray(True), run, run, *args),
}
ORDERS = {
    "grad of vmap": lambda run: jax.grad(lambda *args: jax.vmap(run, in_axes=(None, 0))(*args).sum(), argnums=(0, 1)),
    "grad of jit of vmap": lambda run: jax.grad(
        lambda *args: jax.jit(jax.vmap(run, in_axes=(None, 0)))(*args).sum(), argnums=(0, 1)
    ),
    "jvp of vmap": lambda run: lambda *args: jax.jvp(jax.vmap(run, in_axes=(None, 0)), args, args),
    "vmap of grad": lambda run: jax.vmap(jax.grad(run, argnums=(0, 1)), in_axes=(None, 0)),
    "vmap of hessian": lambda run: jax.vmap(jax.hessian(run, argnums=1), in_axes=(None, 0)),
}


def with_a_clock(params, carry, x):
    """Nothing mapped reaches the time, nor the output that is made from it."""
    hidden, time = carry
    hidden = params * jnp.sin(hidden) + jnp.cos(time) * x
    return (hidden, time + 0.1), (hidden, jnp.cos(time))


@pytest.mark.core("rows")
@pytest.mark.parametrize(
    ("around", "order", "jitted"), combinations(AROUND, ORDERS, {"as it is": False, "jitted": True})
)
def test_what_no_row_reaches_stays_without_rows(around, order, jitted):
    def results(scan):
        def run(params, hidden):
            (last, time), (ys, clock) = scan(with_a_clock, params, (hidden, jnp.zeros(2)), jnp.linspace(0, 1, 4))
            return jnp.sum(last) * jnp.sum(time) + jnp.sum(ys**2) * jnp.sum(clock)

        transformed = order(around(run))
        return (jax.jit(transformed) if jitted else transformed)(jnp.float32(0.7), ROWS)

    jax.tree.map(partial(np.testing.assert_allclose, rtol=2e-5), results(rs.scan), results(plain))


@pytest.mark.core("rows")
@pytest.mark.parametrize("scan", [rs.scan, plain])
def test_results_that_no_row_reaches_have_no_rows(scan):
    def run(hidden):
        return scan(with_a_clock, jnp.float32(0.7), (hidden, jnp.zeros(2)), jnp.linspace(0, 1, 4))

    (_, time), (_, clock) = jax.vmap(jax.jit(run), out_axes=((0, None), (0, None)))(ROWS)
    assert time.shape == (2,)
    assert clock.shape == (4, 2)


@jax.custom_jvp
def constant(time):
    """The identity, which must not be differentiated."""
    return time


def _refuse(primals, tangents):
    if not isinstance(tangents[0], SymbolicZero):
        raise TypeError("the time has a tangent")
    return primals[0], tangents[0]


constant.defjvp(_refuse, symbolic_zeros=True)
OF_THE_TIME = {
    "rule": constant,
    "while_loop": lambda time: lax.while_loop(lambda t: t < 3.0, lambda t: t + 1.0, time),
    "callback": lambda time: jax.pure_callback(lambda t: t * 2, jax.ShapeDtypeStruct((), jnp.float32), time),
    "stop_gradient": lambda time: constant(lax.stop_gradient(time)),
}


MEMORIES = {str(memory): memory for memory in (rs.Memory(), rs.Memory(recompute="all"), rs.Memory(segment=2))}
DERIVATIVES = {"grad": jax.grad, "jacfwd": jax.jacfwd, "hessian": jax.hessian}


@pytest.mark.core("derivatives")
@pytest.mark.parametrize(("function", "derivative", "memory"), combinations(OF_THE_TIME, DERIVATIVES, MEMORIES))
def test_a_carry_leaf_without_a_tangent_is_not_differentiated(function, derivative, memory):
    def cell(params, carry, x):
        hidden, time = carry
        return (jnp.sin(hidden * params) * jnp.cos(function(time)), time + 0.1), hidden

    def loss(scan, params):
        (hidden, _), ys = scan(cell, params, (jnp.ones(2), jnp.float32(0)), None, length=5)
        return jnp.sum(hidden) + jnp.sum(ys**2)

    ours, expected = (
        jax.jit(derivative(partial(loss, scan)))(jnp.float32(0.8)) for scan in (partial(rs.scan, memory=memory), plain)
    )
    np.testing.assert_allclose(ours, expected, rtol=1e-5)


@pytest.mark.core("derivatives")
def test_a_tangent_reaches_later_steps_through_other_leaves():
    """The first leaf moves from the second step on, the second from the third on."""

    def cell(params, carry, x):
        first, second, count = carry
        return (first + params * x, second * first, count + 1), second

    def loss(scan, params):
        carry, ys = scan(cell, params, (jnp.ones(2), jnp.ones(2), jnp.int32(0)), jnp.linspace(1.0, 2.0, 5))
        return sum(map(jnp.sum, carry)) + jnp.sum(ys)

    ours, expected = (jax.grad(partial(loss, scan))(jnp.float32(0.3)) for scan in (rs.scan, plain))
    np.testing.assert_allclose(ours, expected, rtol=1e-6)


@pytest.mark.core("dtypes")
@pytest.mark.parametrize("memory", [rs.Memory(), rs.Memory(segment=2)], ids=str)
def test_a_branch_may_hold_a_scan_with_keys(memory):
    """JAX cannot save a key in a branch, so the scan saves the data of its keys."""

    def cell(params, carry, x):
        hidden, key = carry
        key, own = jax.random.split(key)
        return (jnp.tanh(hidden * params + jax.random.normal(own, (2,))), key), hidden

    def loss(scan, params):
        def run(params):
            return jnp.sum(scan(cell, params, (jnp.ones(2), jax.random.key(3)), None, length=4)[1])

        return lax.cond(params > 0, run, lambda params: 0.0 * params, params)

    ours, expected = (
        jax.jit(jax.grad(partial(loss, scan)))(jnp.float32(0.8)) for scan in (partial(rs.scan, memory=memory), plain)
    )
    np.testing.assert_allclose(ours, expected, rtol=1e-5)


def masked(cond, body, carry, steps):
    """`while_net` by a plain scan over all steps."""

    def step(carry, _):
        runs = cond(None, carry)
        return jax.tree.map(partial(jnp.where, runs), body(None, carry), carry), None

    return lax.scan(step, carry, None, length=steps)[0]


def rows_of_second_derivatives(function):
    return lambda x: jax.vmap(lambda t: jax.jvp(jax.grad(function), (x,), (t,))[1])(ROWS[0])


def reverse_over_reverse(function):
    return jax.grad(jax.grad(function))


SECOND = {"hessian": jax.hessian, "rows": rows_of_second_derivatives, "reverse over reverse": reverse_over_reverse}
OUTER = ("alone", "lax.scan", "rs.scan")


@pytest.mark.core("loops that stop")
@pytest.mark.parametrize(
    ("outer", "derivative"),
    variants(
        {f"{outer}, {one}": (outer, SECOND[one]) for outer in OUTER for one in SECOND},
        [*(f"rs.scan, {one}" for one in SECOND), "alone, hessian", "lax.scan, rows"],
    ),
)
def test_a_loop_with_a_condition_within_a_scan_has_second_derivatives(outer, derivative):
    def cond(_, carry):
        return carry[0] < 3.0

    def body(_, carry):
        return carry[0] * 1.3, carry[1] * jnp.sin(carry[0])

    def loops(loop, x):
        if outer == "alone":
            return loop((x, x))[1]
        scan = plain if outer == "lax.scan" else rs.scan
        return scan(lambda params, carry, _: (loop((carry, params))[1], None), x, x, None, length=3)[0]

    def ours(carry):
        return rs.while_net(cond, body, carry, max_steps=9, on_limit="stop")[0]

    results = [
        jax.jit(derivative(partial(loops, loop)))(1.1) for loop in (ours, lambda carry: masked(cond, body, carry, 9))
    ]
    np.testing.assert_allclose(*results, rtol=1e-4)


@pytest.mark.core("modes of JAX")
@pytest.mark.parametrize("derivative", [None, jax.grad], ids=["values", "gradient"])
@pytest.mark.parametrize(("errors", "word"), [(checkify.float_checks, "nan"), (checkify.index_checks, "out-of-bounds")])
def test_checkify_names_what_fails_within_a_step(errors, word, derivative):
    """The rule is registered by private names of JAX."""

    def cell(params, carry, x):
        carry = jnp.log(carry * params - x[0]) if word == "nan" else carry * params + jnp.arange(3.0)[x[1]]
        return carry, carry

    def loss(scan, params):
        return jnp.sum(scan(cell, params, jnp.ones(()), (jnp.arange(4.0), jnp.arange(4)))[1])

    messages = []
    for scan in (rs.scan, plain):
        function = partial(loss, scan)
        function = function if derivative is None else derivative(function)
        error, _ = checkify.checkify(jax.jit(function), errors=errors)(jnp.float32(1.5))
        messages.append(error.get())
    for message in messages:
        assert word in message
    if word == "nan":
        assert messages[0] == messages[1]


def gated(params, carry, x):
    carry = jnp.tanh(carry @ params + x)
    return carry, carry


def by_scan(**options):
    return lambda params: rs.scan(gated, params, jnp.ones(3), jnp.ones((6, 3)), **options)[1].sum()


def by_while_net(**options):
    def body(params, carry):
        return carry[0] + 1, jnp.tanh(carry[1] @ params)

    carry = (jnp.int32(0), jnp.ones(3))
    return lambda params: rs.while_net(
        lambda _, carry: carry[0] < 4, body, carry, params=params, max_steps=6, on_limit="stop", **options
    )[0][1].sum()


def by_matrix_states(**options):
    def cell(params, state, x):
        state = 0.9 * state + x[:, None] * (x @ params)[None, :]
        return state, x @ state

    memory = rs.Memory(chunk=4, **options)
    return lambda params: rs.scan(cell, params, jnp.zeros((3, 3)), jnp.ones((9, 3)), memory=memory)[1].sum()


OWN_READS = {
    "default": by_scan(),
    "reverse": by_scan(reverse=True),
    "recompute": by_scan(memory=rs.Memory(recompute="all")),
    "segments": by_scan(memory=rs.Memory(segment="sqrt")),
    "unrolled": by_scan(unroll=2, reverse=True),
    "chunks": by_scan(memory=rs.Memory(recompute="all", chunk=4)),
    "newton": by_scan(parallel=rs.Newton(jacobian="diagonal")),
    "while_net": by_while_net(),
    "segments of while_net": by_while_net(memory=rs.Memory(segment=2)),
    "matrix states": by_matrix_states(),
}


@pytest.mark.parametrize("loss", variants(OWN_READS, ["reverse", "recompute", "segments", "while_net"]))
def test_checkify_reports_no_read_of_the_engine(loss):
    error, _ = checkify.checkify(jax.grad(loss), errors=checkify.index_checks)(jnp.eye(3) / 2)
    assert error.get() is None
