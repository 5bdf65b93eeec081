"""Properties that hold for every scan hold where Newton's method solves its loops, too."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from newton_cells import arguments_of, one_leaf, two_leaves
from rnnscan import cells
from rnnscan.newton import Newton
from slow_reference import assert_close
from tiers import variants
from zoo.case import Case


CHUNK, STEPS = 8, 21
NEWTON = Newton(chunk=CHUNK)
QUICKLY = {"xla_backend_optimization_level": 0, "xla_cpu_parallel_codegen_split_count": 1}
compiled = partial(jax.jit, compiler_options=QUICKLY)


@pytest.fixture
def double():
    with jax.enable_x64(True):
        yield


def run(params, carry, xs, **options):
    return rs.scan(one_leaf, params, carry, xs, **{"parallel": NEWTON, **options})


@pytest.mark.usefixtures("double")
def test_pieces_equal_the_whole_and_a_row_its_row_in_a_batch():
    params, carry, xs = arguments_of("one leaf", steps=STEPS)

    def everything(params, carry, xs):
        final, ys = run(params, carry, xs)
        middle, first = run(params, carry, xs[:10])
        last, second = run(params, middle, xs[10:])
        alone = run(params, jax.tree.map(lambda leaf: leaf[1], carry), xs[:, 1])
        return (final, ys, jax.tree.map(lambda leaf: leaf[1], final), ys[:, 1]), (last, [first, second], *alone)

    (*whole, row, ys), (last, pieces, *alone) = compiled(everything)(params, carry, xs)
    assert_close(whole, [last, jnp.concatenate(pieces)], tolerance=1e-12)
    assert_close([row, ys], alone, tolerance=1e-12)


@pytest.mark.usefixtures("double")
def test_forward_mode_equals_reverse_mode_and_runs_no_steps_one_by_one(ran_step_by_step):
    arguments = arguments_of("one leaf", steps=STEPS)
    random = np.random.default_rng(0)
    direction = jax.tree.map(lambda leaf: jnp.asarray(random.normal(size=leaf.shape)), arguments)
    options = {"reverse": True, "seq_lengths": jnp.array([STEPS, 9, 0])}

    def loss(*arguments):
        return Case.loss(run(*arguments, **options))

    def both(arguments, direction):
        forward = jax.jvp(loss, arguments, direction)[1]
        gradient = jax.grad(loss, argnums=(0, 1, 2))(*arguments)
        return forward, sum(jax.tree.leaves(jax.tree.map(lambda g, d: (g * d).sum(), gradient, direction)))

    forward, reverse = compiled(both)(arguments, direction)
    np.testing.assert_allclose(forward, reverse, rtol=1e-10)
    assert abs(forward) > 1e-3
    jax.effects_barrier()
    assert not ran_step_by_step


@pytest.mark.slow
@pytest.mark.usefixtures("double")
def test_windows_of_truncated_backpropagation_are_those_of_the_loop():
    arguments = arguments_of("one leaf", steps=12)

    def gradients(newton):
        def loss(*arguments):
            found = rs.truncated.by_window(one_leaf, *arguments, every=4, back=6, parallel=newton)
            return Case.loss(found), found

        return compiled(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))(*arguments)

    assert_close(gradients(Newton(chunk=3)), gradients(None), tolerance=1e-10)


def test_exported_equals_live(tmp_path):
    pytest.importorskip("flatbuffers")
    pytest.importorskip("safetensors")
    net = rs.layer(cells.ParaLSTM(4))
    params = net.init(jax.random.key(0), 3)
    xs = jax.random.normal(jax.random.key(1), (STEPS, 2, 3))

    def solved(params, xs):
        return net(params, xs, parallel=NEWTON)

    rs.export.save(tmp_path / "saved", solved, params, [xs], ["cpu"], dynamic=(None, None))
    live = jax.jit(solved)(params, xs)
    jax.tree.map(np.testing.assert_array_equal, rs.export.load(tmp_path / "saved").predict(xs), live)


@pytest.mark.parametrize(("max_iterations", "runs"), [(16, False), (1, True)])
def test_under_vmap_what_has_converged_does_not_run_step_by_step(ran_step_by_step, max_iterations, runs):
    params, carry, xs = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), arguments_of("one leaf", steps=2 * CHUNK))
    newton = Newton(chunk=CHUNK, max_iterations=max_iterations)

    def ys(scale, newton=newton):
        return rs.scan(one_leaf, params, carry, scale * xs, parallel=newton)[1]

    scales = jnp.array([0.5, 1.5])
    found = compiled(jax.vmap(ys))(scales)
    jax.effects_barrier()
    assert bool(ran_step_by_step) == runs
    assert_close(found, jax.vmap(partial(ys, newton=None))(scales), tolerance=1e-5)


@pytest.mark.parametrize("dtype", variants(["bfloat16", "float16"], ["bfloat16"]))
def test_carries_of_16_bits_are_as_exact_as_the_loop(dtype):
    exact = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), arguments_of("two leaves", steps=200, seed=3))
    rough = jax.tree.map(lambda leaf: leaf.astype(dtype), exact)
    expected = compiled(partial(rs.scan, two_leaves))(*jax.tree.map(lambda leaf: leaf.astype(jnp.float32), rough))[1]
    newton = Newton(max_iterations=12)
    solved = partial(rs.scan, two_leaves, parallel=newton)
    (_, found), (_, plain) = compiled(solved)(*rough), compiled(partial(rs.scan, two_leaves))(*rough)
    assert found.dtype == plain.dtype == dtype
    found, plain = (np.abs(leaf.astype(jnp.float32) - expected) for leaf in (found, plain))
    assert found.max() < 2 * plain.max()
    assert rs.newton_iterations(two_leaves, *rough, parallel=newton).chunks_step_by_step == 0


def test_a_net_may_have_layers_with_linear_loops_only():
    net = rs.chain(rs.layer(cells.MinGRU(4)), rs.bidirectional(cells.ParaGRU(4), cells.LRU(4)))
    params, xs = net.init(jax.random.key(0), 3), jax.random.normal(jax.random.key(1), (STEPS, 2, 3))
    found, expected = (compiled(partial(net, parallel=own))(params, xs) for own in (NEWTON, None))
    assert_close(found, expected, tolerance=1e-5)
    counts = rs.newton_iterations(net, params, xs, parallel=NEWTON)
    assert [scan.chunks for scan in counts.scans.values()] == [0, 3, 0]
