"""Steps with primitives of JAX's high level, which JAX lowers in its own loops only: one plain `lax.scan` runs them."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import rnnscan as rs
from tiers import variants


HAS_FLAGS = hasattr(jax.config, "jax_custom_vjp3")
XS, START = jnp.linspace(-1.0, 1.0, 15).reshape(5, 3), jnp.linspace(0.1, 0.3, 3)
MEMORIES = {
    "default": rs.Memory(),
    "recompute": rs.Memory(recompute="all"),
    "segments": rs.Memory(segment="sqrt"),
    "plain": None,
}


def own_vjp(**options):
    tanh = jax.custom_vjp(lambda z: jnp.tanh(z))
    tanh.defvjp(lambda z: (jnp.tanh(z), z), lambda z, g: (g * (1 - jnp.tanh(z) ** 2),), **options)
    return tanh


def in_program_order():
    from jax.experimental.overlap import program_order

    return program_order(lambda z: jnp.tanh(z), enforce=True)


def in_a_branch():
    return lambda z: lax.cond(z.sum() > 0, own_vjp(), lambda z: z, z)


def named():
    return lambda z: jax.ad_checkpoint.checkpoint_name(jnp.tanh(z), "z")


def in_a_checkpoint():
    return jax.checkpoint(lambda z: jnp.sin(jax.ad_checkpoint.checkpoint_name(jnp.tanh(z), "z")))


def named_in_a_loop():
    return lambda z: lax.scan(lambda z, _: (named()(z), None), z, None, length=2)[0]


# Name -> (how to make it, the flag that it needs, whether the fission engine runs it)
KINDS = {
    "custom_vjp": (own_vjp, "jax_custom_vjp3", False),
    "custom_vjp in a branch": (in_a_branch, "jax_custom_vjp3", False),
    "custom_vjp with generic batching": (partial(own_vjp, generic_batching=True), None, False),
    "custom_jvp": (lambda: jax.nn.relu, "jax_custom_jvp3", False),
    "program order": (in_program_order, None, False),
    "name": (named, "jax_remat3", True),
    "checkpoint": (in_a_checkpoint, "jax_remat3", True),
    "name in a loop": (named_in_a_loop, "jax_remat3", False),
}


@pytest.fixture
def function(request):
    """A function with a primitive of JAX's high level, and whether the fission engine runs it; skipped without it."""
    make, flag, is_fission = KINDS[request.param]
    if flag is not None and not hasattr(jax.config, flag):
        pytest.skip(f"jax {jax.__version__} has no {flag}")
    before = flag and getattr(jax.config, flag)
    try:
        if flag:
            jax.config.update(flag, True)
        yield make(), is_fission
    except (TypeError, ImportError) as error:
        pytest.skip(f"jax {jax.__version__}: {error}")
    finally:
        if flag:
            jax.config.update(flag, before)


def plain(cell, params, carry, xs):
    return lax.scan(partial(cell, params), carry, xs)


ROWS = jnp.stack([XS, XS[::-1]])
TRANSFORMED = {
    "value": lambda run: run(0.5, XS),
    "grad": lambda run: jax.grad(run)(0.5, XS),
    "jit of grad": lambda run: jax.jit(jax.grad(run, argnums=(0, 1)))(0.5, XS),
    "vmap": lambda run: jax.vmap(run, (None, 0))(0.5, ROWS),
    "grad of vmap": lambda run: jax.grad(lambda params: jax.vmap(run, (None, 0))(params, ROWS).sum())(0.5),
}


def losses(scan, function):
    def run(params, xs):
        def cell(params, carry, x):
            hidden = function(carry * params + x)
            return hidden, hidden * x

        final, ys = scan(cell, params, START, xs)
        return jnp.sum(final) + jnp.sum(ys**2)

    return run


@pytest.mark.parametrize(
    ("function", "memory"),
    variants(
        {f"{kind}, {memory}": (kind, MEMORIES[memory]) for kind in KINDS for memory in MEMORIES},
        [*(f"{kind}, default" for kind in KINDS), "custom_vjp, recompute", "name, recompute"],
    ),
    indirect=["function"],
)
def test_a_step_of_the_high_level_equals_a_plain_scan(function, memory):
    has_early_remat3 = jax.__version_info__ < (0, 11) and getattr(jax.config, "jax_remat3", False)
    if has_early_remat3 and memory is not None and memory.segment:
        pytest.skip("JAX_REMAT3 with jax 0.10 has no segments")
    for name, transformed in TRANSFORMED.items():
        try:
            expected = transformed(losses(plain, function[0]))
        except (TypeError, NotImplementedError):  # jax 0.10 and 0.11 lack rules of their high level.
            assert jax.__version_info__ < (0, 12)
            assert name not in ("value", "grad")
            continue
        ours = transformed(losses(partial(rs.scan, memory=memory), function[0]))
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5), ours, expected)


@pytest.mark.parametrize("function", KINDS, indirect=True)
def test_explain_says_that_one_plain_scan_runs_it(function):
    run, is_fission = function
    explained = rs.explain(lambda params, carry, x: (run(carry * params + x), None), 0.5, START, XS)
    # jax 0.11 has some of these at its low level.
    is_fission |= not jax.make_jaxpr(run)(START).jaxpr.is_high
    assert explained.engine == ("fission" if is_fission else "lax")
    assert is_fission or "JAX's high level" in explained.reason
    if not is_fission:
        with pytest.raises(ValueError, match="JAX's high level"):
            rs.scan(lambda params, carry, x: (run(carry), None), 0.5, START, XS, engine="fission")


@pytest.mark.parametrize("function", ["custom_vjp", "custom_vjp with generic batching"], indirect=True)
@pytest.mark.parametrize("memory", [rs.Memory(), rs.Memory(segment=2)], ids=str)
def test_a_loop_with_a_condition_skips_the_steps_after_the_last(function, memory):
    def until(function, params, start):
        def body(params, carry):
            return carry[0] + 1, function(carry[1] * params)

        cond = lambda _, carry: carry[0] < 3  # noqa: E731
        (_, hidden), steps = rs.while_net(cond, body, (0, start), params=params, max_steps=5, memory=memory)
        return hidden.sum(), steps

    ours, expected = (
        jax.jit(jax.value_and_grad(partial(until, run), argnums=(0, 1), has_aux=True))(0.5, START)
        for run in (function[0], jnp.tanh)
    )
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-6), ours, expected)


@pytest.mark.skipif(not HAS_FLAGS, reason="jax has no custom_vjp of its high level")
def test_the_method_that_tells_the_high_level_is_there():
    """rnnscan/ir/opened.py asks `is_high`. Without it such a step would not lower."""
    from jax.extend import core

    assert callable(core.Primitive("any").is_high)
    assert jax.make_jaxpr(jnp.sin)(1.0).jaxpr.is_high is False
