"""What nothing reads is not computed, forward and backward; the rest is what `lax.scan` gives, in every order."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend import core
from jax.interpreters import partial_eval
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import rnnscan as rs
from drawn import normal
from rnnscan.engine.loops.calls import differentiate_as
from slow_reference import assert_close
from tiers import variants


pytestmark = pytest.mark.usefixtures("x64")

T, N, H = 7, 2, 4
MEMORIES = {"keep": rs.Memory(), "recompute all": rs.Memory(recompute="all"), "segments": rs.Memory(segment=3)}


def cell(params, carry, x):
    """A state, a mean that reads it, and an output that takes long."""
    hidden, mean = carry
    hidden = jnp.tanh(hidden @ params["recurrent_kernel"] + x @ params["kernel"])
    mean = 0.9 * mean + 0.1 * hidden
    return (hidden, mean), (2 * hidden, mean, jnp.sort(hidden, -1))


def draw(*shape, seed=0):
    return normal(np.random.default_rng(seed), shape, jnp.float64)


def arguments():
    params = {"recurrent_kernel": draw(H, H), "kernel": draw(3, H, seed=1)}
    return params, (draw(N, H, seed=2), draw(N, H, seed=3)), draw(T, N, 3, seed=4)


def plain(params, carry, xs):
    return lax.scan(lambda carry, x: cell(params, carry, x), carry, xs)


def in_rows(function):
    return lambda *operands: jax.vmap(function)(*jax.tree.map(lambda leaf: jnp.stack([leaf, -leaf]), operands))


@pytest.mark.parametrize("memory", variants(MEMORIES, ["keep", "segments"]))
@pytest.mark.parametrize("transform", [lambda loss: loss, jax.grad, in_rows], ids=["forward", "gradient", "vmap"])
def test_a_result_that_nothing_reads_is_not_computed(transform, memory):
    scan = partial(rs.scan, cell, memory=memory)

    def loss(*operands, read):
        return jnp.sum(scan(*operands)[1][read] ** 2)

    def text(read):
        return jax.jit(transform(partial(loss, read=read))).lower(*arguments()).as_text()

    assert "stablehlo.sort" in text(2)
    assert "stablehlo.sort" not in text(0)


def test_outputs_that_nothing_reads_take_no_memory():
    """They go by the rule, or by XLA, which removes a stack that is only written in some loops, and not in others."""
    params, carry, _ = arguments()
    operands = params, carry, draw(64, N, 3)

    def temporary(scan):
        loss = lambda *operands: jnp.sum(scan(*operands)[1][0] ** 2)  # noqa: E731
        return jax.jit(loss).lower(*operands).compile().memory_analysis().temp_size_in_bytes

    stack = 64 * N * H * 8
    assert temporary(partial(rs.scan, cell)) < temporary(plain) + stack / 2


def test_inputs_that_only_unused_results_read_are_dropped():
    def first(params, xs):
        return rs.scan(lambda params, carry, x: (0.9 * carry + x[0], x[1] * params), params, draw(N), xs)[0]

    jaxpr = jax.make_jaxpr(first)(draw(N), (draw(T, N), draw(T, N)))
    _, used = partial_eval.dce_jaxpr(jaxpr.jaxpr, [True])
    assert used == [False, True, False]


def test_unused_results_on_two_devices_and_in_exported_programs():
    """Within `shard_map` zeros stand for the inputs that go. Checkpoint differentiates what is left."""

    def loss(*operands):
        carry, (twice, *_) = jax.checkpoint(partial(rs.scan, cell))(*operands)
        return jnp.sum(twice**2) + jnp.sum(carry[1] ** 2)

    def final(params, carry, xs):
        return jax.checkpoint(partial(rs.scan, lambda p, c, x: (0.9 * c + x[0], x[1] @ p)))(params, carry, xs)[0]

    mesh = jax.make_mesh((2,), ("rows",), axis_types=(AxisType.Auto,))
    specs = P(), P("rows"), P(None, "rows")

    def on_mesh(operands):
        places = (NamedSharding(mesh, spec) for spec in specs)
        return tuple(jax.device_put(tree, place) for tree, place in zip(operands, places, strict=True))

    def gradient(*operands):
        return jax.grad(lambda carry: jnp.sum(final(operands[0], carry, operands[2]) ** 2))(operands[1])

    few = draw(H, 3), draw(N, H, seed=1), (draw(T, N, H, seed=2), draw(T, N, H, seed=3))
    in_parts = jax.shard_map(gradient, mesh=mesh, in_specs=specs, out_specs=P("rows"))
    assert_close(jax.jit(in_parts)(*on_mesh(few)), jax.jit(gradient)(*few))
    run = jax.jit(jax.grad(loss))
    expected = run(*arguments())
    assert_close(jax.export.export(run)(*arguments()).call(*arguments()), expected)
    assert_close(run(*on_mesh(arguments())), expected)


def test_keys_of_unused_results():
    def noisy(key, carry, _):
        return 0.9 * carry, carry + jax.random.normal(jax.random.fold_in(key, 1), carry.shape)

    final = jax.jit(lambda key: jax.grad(lambda carry: rs.scan(noisy, key, carry, length=T)[0].sum())(draw(N)))
    np.testing.assert_allclose(final(jax.random.key(0)), np.full(N, 0.9**T))


def test_functions_with_constants_of_unused_results():
    first, second = np.arange(5.0), np.arange(5.0, 10.0)

    def function(x):
        return x * first, x + second, x * jnp.sin(second)

    call = differentiate_as(function, function)
    np.testing.assert_allclose(jax.jit(lambda x: call(x)[1])(jnp.ones(5)), 1 + second)


def test_effects_of_unused_results_stay():
    seen = []

    def shows(_, carry, x):
        jax.debug.callback(seen.append, x)
        return carry + x, 2 * x

    jax.block_until_ready(jax.jit(lambda xs: rs.scan(shows, None, 0.0, xs)[0])(jnp.arange(3.0)))
    jax.effects_barrier()
    assert sorted(map(float, seen)) == [0, 1, 2]


def squares(function):
    return lambda *operands: sum(jnp.sum(leaf**2) for leaf in function(*operands))


def gradients(function, operands):
    return jax.grad(function, argnums=range(len(operands)))(*operands)


def squared_gradients(function, operands):
    return gradients(lambda *operands: squares(lambda *_: gradients(function, operands))(), operands)


ORDERS = {
    "run": lambda f, operands: f(*operands),
    "gradient": lambda f, operands: gradients(squares(f), operands),
    "gradient of checkpoint": lambda f, operands: gradients(jax.checkpoint(squares(f)), operands),
    "second order": lambda f, operands: squared_gradients(squares(f), operands),
    "second order of checkpoint": lambda f, operands: squared_gradients(jax.checkpoint(squares(f)), operands),
    "forward mode": lambda f, operands: jax.jvp(squares(f), operands, tuple(map(jnp.cos, operands))),
    "linearize": lambda f, operands: jax.linearize(squares(f), *operands)[1](*map(jnp.cos, operands)),
    "vmap": lambda f, operands: in_rows(f)(*operands),
    "vmap of gradient": lambda f, operands: in_rows(lambda *rows: gradients(squares(f), rows))(*operands),
    "gradient of vmap": lambda f, operands: gradients(lambda *rows: jnp.sum(in_rows(squares(f))(*rows)), operands),
}
# Which leaves are read: of the final carry, and of the outputs.
READ = {
    "final state": [True, False, False, False, False],
    "a mean and an output": [False, True, True, False, False],
    "slow output": [False, False, False, False, True],
}


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS.keys())
@pytest.mark.parametrize("read", variants(READ, ["a mean and an output"]))
@pytest.mark.parametrize("memory", variants(MEMORIES, ["keep"]))
def test_a_program_without_dead_code_is_transformed(memory, read, order):
    """JAX transforms it where it eliminated dead code before, as in `jax.checkpoint`."""
    leaves, structure = jax.tree.flatten(arguments())

    def flat(scan, *leaves):
        return jax.tree.leaves(scan(*jax.tree.unflatten(structure, leaves)))

    whole = jax.make_jaxpr(partial(flat, partial(rs.scan, cell, memory=memory)))(*leaves)
    live, used = partial_eval.dce_jaxpr(whole.jaxpr, read)
    run = core.jaxpr_as_fun(core.ClosedJaxpr(live, whole.consts))
    operands = tuple(leaf for leaf, is_used in zip(leaves, used, strict=True) if is_used)

    def reference(*operands):
        rest = iter(operands)
        every = [next(rest) if is_used else leaf for leaf, is_used in zip(leaves, used, strict=True)]
        return [leaf for leaf, is_read in zip(flat(plain, *every), read, strict=True) if is_read]

    assert_close(order(run, operands), order(reference, operands))


@pytest.mark.parametrize("transform", [lambda loss: loss, jax.grad, in_rows], ids=["forward", "gradient", "vmap"])
def test_unused_results_of_a_scan_within_a_scan_are_not_computed(transform):
    def outer(params, carry, xs):
        carry, (twice, _, ordered) = rs.scan(cell, params, carry, xs)
        return carry, (twice.sum(0), ordered.sum(0))

    def loss(params, carry, xs, read):
        carry, ys = rs.scan(lambda params, carry, xs: outer(params, carry, xs), params, carry, xs)
        return jnp.sum(carry[0] ** 2) if read is None else jnp.sum(ys[read] ** 2)

    def final(params, carry, xs):
        """The inner scan's outputs are no output of the outer one, all of whose results are read."""
        return jnp.sum(rs.scan(lambda *step: (rs.scan(cell, *step)[0], None), params, carry, xs)[0][0] ** 2)

    params, carry, xs = arguments()
    operands = params, carry, jnp.stack([xs, -xs])

    def text(function):
        return jax.jit(transform(function)).lower(*operands).as_text()

    assert "stablehlo.sort" in text(partial(loss, read=1))
    for function in (partial(loss, read=0), partial(loss, read=None), final):
        assert "stablehlo.sort" not in text(function)
