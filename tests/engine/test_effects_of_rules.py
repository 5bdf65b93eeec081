"""What a rule of a custom derivative does besides computing cotangents happens as often as in `lax.scan`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

import rnnscan as rs
from rnnscan import Memory


XS = jnp.linspace(-1.0, 1.0, 5)
MEMORIES = [Memory(), Memory(recompute="all"), None, Memory(segment="sqrt")]
MEMORY_IDS = ["default", "all", "None", "segments"]


def reporting(report):
    """An identity whose backward rule reports its cotangent."""
    f = jax.custom_vjp(lambda x: x)
    f.defvjp(lambda x: (x, None), lambda _, ct: (report(ct), (ct,))[1])
    return f


def in_forward_mode(report):
    """An identity whose rule for forward mode reports its tangent."""
    f = jax.custom_jvp(lambda x: x)
    f.defjvp(lambda primals, tangents: (report(primals[0]), (primals[0], tangents[0]))[1])
    return f


WITHIN = {
    "step": lambda f: f,
    "jit": jax.jit,
    "cond": lambda f: lambda x: jax.lax.cond(x < 9.0, f, lambda x: x, x),
    "loop": lambda f: lambda x: jax.lax.scan(lambda c, _: (f(c), None), x, None, length=1)[0],
}


def gradient(scan, f, w):
    def cell(w, c, x):
        h = f(jnp.tanh(c * w + x))
        return h, h

    return jax.grad(lambda w: scan(cell, w, jnp.float32(0.1), XS)[1].sum())(w)


def plain(cell, w, carry, xs):
    return jax.lax.scan(lambda c, x: cell(w, c, x), carry, xs)


def counted(scan, make, within, *, jit):
    seen = []
    f = WITHIN[within](make(lambda ct: jax.debug.callback(lambda ct: seen.append(float(ct)), ct)))
    run = lambda w: gradient(scan, f, w)  # noqa: E731
    (jax.jit(run) if jit else run)(0.5)
    jax.effects_barrier()
    return sorted(seen)


@pytest.mark.core("effects")
@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("memory", MEMORIES, ids=MEMORY_IDS)
def test_debug_callbacks_of_backward_rules(memory, jit):
    scan = lambda *arguments: rs.scan(*arguments, memory=memory)  # noqa: E731
    expected = counted(plain, reporting, "step", jit=jit)
    assert len(expected) == len(XS)
    np.testing.assert_allclose(counted(scan, reporting, "step", jit=jit), expected, rtol=1e-6)


@pytest.mark.parametrize("within", [name for name in WITHIN if name != "step"])
@pytest.mark.parametrize("make", [reporting, in_forward_mode])
def test_rules_within_calls_branches_and_loops(make, within):
    expected = counted(plain, make, within, jit=True)
    assert expected
    np.testing.assert_allclose(counted(rs.scan, make, within, jit=True), expected, rtol=1e-6)


@pytest.mark.parametrize("memory", MEMORIES, ids=MEMORY_IDS)
def test_io_callbacks_keep_their_order(memory):
    seen = []
    f = reporting(lambda ct: io_callback(lambda ct: seen.append(float(ct)), None, ct, ordered=True))
    orders = []
    for scan in (plain, lambda *arguments: rs.scan(*arguments, memory=memory)):
        seen.clear()
        gradient(scan, f, 0.5)
        jax.effects_barrier()
        orders.append([*seen])
    assert len(orders[0]) == len(XS)
    np.testing.assert_allclose(orders[1], orders[0], rtol=1e-6)


@pytest.mark.parametrize("memory", MEMORIES, ids=MEMORY_IDS)
def test_writes_to_references(memory):
    def total(scan):
        def run(w):
            ref = jax.new_ref(jnp.float32(0))
            f = jax.custom_vjp(lambda x, ref: x)
            f.defvjp(lambda x, ref: (x, ref), lambda ref, ct: (ref.__setitem__(..., ref[...] + ct), (ct, None))[1])
            gradient(scan, lambda x: f(x, ref), w)
            return ref[...]

        return [float(run(0.5)), float(jax.jit(run)(0.5))]

    expected = total(plain)
    assert all(expected)
    np.testing.assert_allclose(total(lambda *arguments: rs.scan(*arguments, memory=memory)), expected, rtol=1e-6)


def logging():
    f = jax.custom_vjp(lambda x: x)
    f.defvjp_with_logs(lambda x: (x, None), lambda _, ct: ((ct,), {"ct": ct}))
    return f


needs_logs = pytest.mark.skipif(not hasattr(jax.custom_vjp, "defvjp_with_logs"), reason="jax has no logs")


@pytest.mark.core("effects")
@needs_logs
@pytest.mark.parametrize("memory", MEMORIES[:3], ids=MEMORY_IDS[:3])
def test_logs_of_backward_rules(memory):
    f = logging()

    def logs(scan):
        cell = lambda w, c, x: (lambda h: (h, h))(f(jnp.tanh(c * w + x)))  # noqa: E731
        _, vjp = jax.vjp(lambda w: scan(cell, w, jnp.float32(0.1), XS)[1].sum(), 0.5)
        return vjp.with_logs(jnp.float32(1))[1]["ct"]

    expected = logs(plain)
    np.testing.assert_allclose(logs(lambda *arguments: rs.scan(*arguments, memory=memory)), expected, rtol=1e-6)


@needs_logs
def test_segments_would_cut_logs():
    with pytest.raises(ValueError, match="segments would cut the logs"):
        gradient(lambda *arguments: rs.scan(*arguments, memory=Memory(segment=2)), logging(), 0.5)


def reporting_forward(report):
    """An identity whose forward rule reports its operand."""
    f = jax.custom_vjp(lambda x: x)
    f.defvjp(lambda x: (report(x), (x, None))[1], lambda _, ct: (ct,))
    return f


@pytest.mark.parametrize("memory", [Memory(recompute="all"), Memory(segment=2)], ids=["all", "segments"])
@pytest.mark.parametrize("ordered", [False, True])
def test_a_forward_rule_with_effects_is_not_recomputed(memory, ordered):
    f = reporting_forward(lambda x: io_callback(lambda x: None, None, x, ordered=ordered))
    with pytest.raises(ValueError, match="a derivative rule with side effects on the forward pass must not be recom"):
        gradient(lambda *arguments: rs.scan(*arguments, memory=memory), f, 0.5)


@pytest.mark.parametrize("memory", MEMORIES, ids=MEMORY_IDS)
def test_a_forward_rule_may_print(memory):
    f = reporting_forward(lambda x: jax.debug.callback(lambda x: None, x))
    value = gradient(lambda *arguments: rs.scan(*arguments, memory=memory), f, 0.5)
    np.testing.assert_allclose(value, gradient(plain, f, 0.5), rtol=1e-6)


def test_rules_without_effects_are_split():
    f = reporting(lambda ct: None)
    plan = rs.explain(lambda w, c, x: (f(jnp.tanh(c * w + x)), c), 0.5, jnp.float32(0.1), XS)
    assert plan.engine == "fission"


def test_the_reason_is_told():
    f = reporting(lambda ct: jax.debug.print("{}", ct))
    cell = lambda w, c, x: (f(jnp.tanh(c * w + x)), c)  # noqa: E731
    assert "a derivative rule in the cell has side effects" in str(rs.explain(cell, 0.5, jnp.float32(0.1), XS))
    with pytest.raises(ValueError, match="a derivative rule in the cell has side effects"):
        rs.scan(cell, 0.5, jnp.float32(0.1), XS, engine="fission")


def test_while_net_refuses_them():
    f = reporting(lambda ct: jax.debug.print("{}", ct))
    with pytest.raises(ValueError, match="derivative rules in a step must have no side effects"):
        rs.while_net(lambda p, c: c < 3.0, lambda p, c: f(c + 1.0), jnp.float32(0), max_steps=5)


@pytest.mark.parametrize("memory", MEMORIES, ids=MEMORY_IDS)
def test_those_of_a_rule_within_a_rule_happen_in_second_derivatives(memory):
    seen = []
    within = reporting(lambda ct: jax.debug.callback(lambda _: seen.append(1), ct))
    f = jax.custom_vjp(jnp.sin)
    f.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: (ct * within(jnp.cos(x)),))

    def second(scan):
        seen.clear()
        value = jax.jit(jax.grad(jax.grad(lambda w: scan(lambda w, c, x: (f(jnp.tanh(c * w + x)), c), w)[0])))(0.7)
        jax.block_until_ready(value)
        jax.effects_barrier()
        return value, len(seen)

    expected, count = second(lambda cell, w: jax.lax.scan(lambda c, x: cell(w, c, x), 0.1, XS))
    found, own_count = second(lambda cell, w: rs.scan(cell, w, 0.1, XS, memory=memory))
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert own_count == count == len(XS)
