"""How many steps a chunk has, and how its sums over steps are made."""

import jax
import jax.numpy as jnp
import pytest

import rnnscan as rs
from rnnscan.engine.costs.chunk import StepBytes, near_divisor
from rnnscan.engine.costs.heuristics import BACKENDS


KIB = 1 << 10
# At 32 rows of 128 features and 256 units, in float32.
LSTM_THAT_KEEPS_NO_GATE = StepBytes(1872 * KIB, given=80 * KIB, kept=48 * KIB, starts=32 * KIB, operations=25_000_000)
GRU = StepBytes(made=1648 * KIB, given=48 * KIB, kept=48 * KIB, starts=0, operations=19_000_000)
MATRICES = StepBytes(made=268 * KIB, given=268 * KIB, kept=268 * KIB, starts=0, operations=0)
SCALARS = StepBytes(made=8, given=8, kept=8, starts=0, operations=None)
WITH_LAYER_NORMALISATION = LSTM_THAT_KEEPS_NO_GATE._replace(made=4825 * KIB)


@pytest.mark.parametrize(
    ("length", "step", "chunk"),
    [
        pytest.param(7, GRU, 7, id="a very short sequence is one chunk"),
        pytest.param(15, GRU, 8, id="a short one is two"),
        pytest.param(16, GRU, 4, id="another is four at least"),
        pytest.param(16, GRU._replace(made=8 * GRU.made), 1, id="unless they make too much"),
        pytest.param(
            50, StepBytes(made=988 * KIB, given=2 * KIB, kept=2 * KIB, starts=0), 1, id="two steps save nothing"
        ),
        pytest.param(
            51, StepBytes(made=700 * KIB, given=2 * KIB, kept=2 * KIB, starts=0), 3, id="three beside what is given"
        ),
        pytest.param(128, GRU, 8, id="large steps are few"),
        pytest.param(4096, GRU._replace(made=GRU.made // 4), 32, id="as many as make so many bytes"),
        pytest.param(4096, GRU._replace(made=GRU.made // 64), 128, id="small steps are many"),
        pytest.param(256, GRU._replace(made=GRU.made // 64), 32, id="an eighth of a sequence at most"),
        pytest.param(127, GRU, 9, id="what nothing divides has a shorter chunk"),
        pytest.param(140, GRU, 7, id="a divisor is better than the longest"),
        pytest.param(128, WITH_LAYER_NORMALISATION, 4, id="no more than is saved"),
        pytest.param(1024, WITH_LAYER_NORMALISATION, 8, id="and more is saved of a longer sequence"),
        pytest.param(128, LSTM_THAT_KEEPS_NO_GATE, 16, id="where starts are much of what is kept"),
        pytest.param(128, LSTM_THAT_KEEPS_NO_GATE._replace(kept=176 * KIB), 8, id="and where they are not"),
        pytest.param(64, MATRICES, 1, id="matrices are not copied"),
        pytest.param(64, MATRICES._replace(operations=40 * MATRICES.kept), 8, id="but for much work"),
        pytest.param(64, MATRICES._replace(given=100 * KIB), 8, id="or if other values are more"),
        pytest.param(64, MATRICES._replace(starts=100 * KIB), 8, id="or kept at starts"),
        pytest.param(100_000, SCALARS, 1, id="a step without products and work at once"),
        pytest.param(100_000, SCALARS._replace(made=16), 125, id="with such work"),
        pytest.param(100_000, SCALARS._replace(operations=2), 125, id="with a product"),
        pytest.param(256, StepBytes(*(16 * size for size in LSTM_THAT_KEEPS_NO_GATE)), 8, id="if steps are not large"),
    ],
)
def test_the_steps_of_a_chunk_on_a_cpu(length, step, chunk):
    assert BACKENDS["cpu"].chunk(length, lambda: step) == chunk


@pytest.mark.parametrize(("length", "most", "chunk"), [(50, 4, 2), (51, 4, 3), (53, 4, 4), (48, 4, 4)])
def test_a_chunk_of_at_least_half_as_many_steps_leaves_no_remainder(length, most, chunk):
    assert near_divisor(length, most) == chunk


@pytest.mark.parametrize(("length", "chunk"), [(1, 1), (31, 16), (64, 16), (512, 32), (8192, 128)])
def test_the_steps_of_a_chunk_on_a_gpu(length, chunk):
    assert BACKENDS["gpu"].chunk(length, lambda: GRU) == chunk


def outputs_of(jaxpr, primitive=None):
    """The avals that equations make, of one primitive or all, in inner jaxprs too."""
    for equation in jaxpr.eqns:
        if primitive is None or equation.primitive.name == primitive:
            yield from (output.aval for output in equation.outvars)
        for inner in jax.tree.leaves(equation.params, is_leaf=lambda leaf: hasattr(leaf, "eqns")):
            if hasattr(inner, "eqns") or hasattr(inner, "jaxpr"):
                yield from outputs_of(getattr(inner, "jaxpr", inner), primitive)


def test_the_gradient_of_a_bias_is_not_summed_over_the_steps_first():
    cell = rs.cells.GRU(16)
    params = cell.init(jax.random.key(0), 8)
    rows, xs = 5, jnp.ones((64, 5, 8))
    gradient = jax.grad(lambda params: jnp.sum(rs.scan(cell, params, cell.initial_carry(xs[0]), xs)[1]))
    sums = [aval.shape for aval in outputs_of(jax.make_jaxpr(gradient)(params).jaxpr, "reduce_sum")]
    assert (48,) in sums
    assert not any(rows in shape for shape in sums)


def test_a_sum_of_products_over_rows_makes_no_product_for_each_step():
    steps, rows, size = 64, 4, 16

    def cell(kernel, carry, x):
        of_each_row = jnp.broadcast_to(kernel, (rows, size, size))
        new = jnp.tanh(x + jnp.einsum("nd,ndh->nh", carry, of_each_row))
        return new, new

    xs, kernel = jnp.ones((steps, rows, size)), jnp.eye(size)
    gradient = jax.grad(lambda kernel: jnp.sum(rs.scan(cell, kernel, xs[0], xs)[1]))
    made = outputs_of(jax.make_jaxpr(gradient)(kernel).jaxpr)
    assert max(aval.size for aval in made) <= max(steps * rows * size, rows * size * size)
    plain = jax.grad(lambda kernel: jnp.sum(rs.scan(cell, kernel, xs[0], xs, memory=None)[1]))
    assert jnp.allclose(gradient(kernel), plain(kernel), rtol=1e-5, atol=1e-5)


def test_a_parameter_that_is_reached_on_very_many_ways_is_summed_once():
    doublings = 50

    def cell(scale, carry, x):
        for _ in range(doublings):
            scale = 0.5 * (scale + scale)
        new = jnp.tanh(scale * x + carry)
        return new, new

    xs = jax.random.normal(jax.random.key(0), (32, 3, 4))
    gradients = [
        jax.grad(lambda scale, memory=memory: jnp.sum(rs.scan(cell, scale, xs[0], xs, memory=memory)[1]))(xs[0, 0])
        for memory in (rs.Memory(), None)
    ]
    assert jnp.allclose(*gradients, rtol=1e-5)


def test_one_loop_over_all_steps_reads_its_stacks_as_lax_scan_does():
    """XLA would read an array of steps again for each element that it reads of a stack."""

    def cell(params, carry, x):
        return jnp.sin(carry) * jnp.cos(params * carry), ()

    steps = 19
    gradient = jax.grad(lambda carry: jnp.sum(rs.scan(cell, jnp.float32(2), carry, None, length=steps)[0]))
    program = jax.make_jaxpr(gradient)(jnp.ones((2, 3)))
    assert steps in {aval.shape[0] for aval in outputs_of(program.jaxpr) if aval.shape}, "the stack of the carries"
    assert (steps,) not in [aval.shape for aval in outputs_of(program.jaxpr, "iota")]


def test_nothing_runs_at_once_where_the_loop_would_read_more_of_it_than_it_saves():
    """Each leap makes values of 128 examples from a matrix as large as they, and the loop reads most of them."""

    def cell(features, position, momentum):
        for _ in range(3):
            momentum = momentum + jax.nn.log_sigmoid(position @ features.T) @ features
            position = position + jnp.tanh(momentum)
        return position, ()

    gradient = jax.grad(lambda *arguments: jnp.sum(rs.scan(cell, *arguments)[0] ** 2), (0, 1, 2))
    program = jax.make_jaxpr(gradient)(jnp.ones((128, 16)), jnp.ones((16, 16)), jnp.ones((50, 16, 16)))
    made = {aval.shape for aval in outputs_of(program.jaxpr)}
    assert (16, 128) in made
    assert not [shape for shape in made if shape[-2:] == (16, 128) and len(shape) == 3], "no step waits for others"


@pytest.mark.parametrize(("chunk", "kept"), [(1, "before every step"), (4, "before every chunk of 4 steps")])
def test_chunks_of_one_step_recompute_no_carry(chunk, kept):
    cell = rs.cells.LSTM(8)
    params, xs = cell.init(jax.random.key(0), 4), jnp.ones((16, 2, 4))
    memory = rs.Memory(recompute="all", chunk=chunk)
    explanation = rs.explain(cell, params, cell.initial_carry(xs[0]), xs, memory=memory)
    hidden, state = explanation.carry.values()
    assert hidden.kept == "as an output"
    assert state.kept.startswith(kept)
