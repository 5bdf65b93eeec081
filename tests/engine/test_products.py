"""Products in the form that is quickest are the products that were written, and fewer of them."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType

import rnnscan as rs
from drawn import normal
from jaxprs import inlined, is_loop, running
from rnnscan.engine import passes
from rnnscan.engine.analysis import sum_placement
from rnnscan.engine.costs.heuristics import BACKENDS
from rnnscan.engine.passes.concatenate_pads import concatenate_pads
from rnnscan.engine.passes.join_products import join_products
from rnnscan.engine.passes.join_sums import join_sums
from rnnscan.engine.passes.merge_products import merge_products
from rnnscan.engine.passes.remove_repeats import remove_repeats
from rnnscan.engine.passes.scatter_into_sums import scatter_into_sums
from rnnscan.engine.passes.store_transposed import store_transposed
from rnnscan.engine.passes.swap_products import swap_products
from rnnscan.ir.dataflow import needed
from rnnscan.ir.program import evaluate
from rnnscan.ir.trace import trace
from rnnscan.ir.traits import Kind
from slow_reference import assert_close
from steps import MATRIX, ROWS, SIZE, program_of, with_known_carry
from tiers import variants


pytestmark = pytest.mark.core("the engine")

CPU = BACKENDS["cpu"]


def products(program):
    equations = needed(program.equations, program.outputs)
    return sum(equation.kind is Kind.PRODUCT for equation in equations)


def assert_equal(program, rewritten):
    random = np.random.default_rng(0)
    given = [normal(random, value.shape, jnp.float32) for value in program.inputs]

    @jax.jit
    def results(*given):
        results = []
        for one in (program, rewritten):
            values = dict(zip(program.inputs, given, strict=True))
            evaluate(one.equations, values)
            results.append([values[output] for output in one.outputs])
        return results

    for expected, result in zip(*results(*given), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)


def test_a_sum_of_products_of_known_values_is_one():
    def step(matrix, carry, x):
        more = (x @ matrix + carry[0] @ (2 * matrix)) + (jnp.sin(x) @ matrix.T + 1.0)
        return [jnp.tanh(more), (x @ matrix.T) @ matrix]

    program = program_of(step, 1)
    program = store_transposed(program)
    merged = merge_products(with_known_carry(program), CPU)
    assert (products(program), products(merged)) == (5, 3)
    assert products(merge_products(program, CPU)) == 4, "the carry is not known"
    assert products(merge_products(with_known_carry(program), BACKENDS["gpu"])) == 5
    assert_equal(program, merged)


def test_a_sum_of_products_that_wait_for_the_loop_is_one():
    def step(matrix, carry, x):
        return [jnp.tanh(jnp.sin(carry[0]) @ matrix + (x @ matrix + (jnp.cos(carry[0]) @ (2 * matrix) + x)))]

    program = program_of(step, 1)
    merged = merge_products(program, CPU)
    assert (products(program), products(merged)) == (3, 2)
    assert_equal(program, merged)


def test_a_term_that_a_sum_has_twice_stays_twice():
    def step(matrix, carry, x):
        old = carry[0]
        return [jnp.tanh((jnp.sin(old) @ matrix + jnp.cos(old) @ (2 * matrix)) + (old + old))]

    program = program_of(step, 1)
    merged = merge_products(program, CPU)
    assert (products(program), products(merged)) == (2, 1)
    assert_equal(program, merged)


def test_products_that_wait_for_different_loops_are_not_merged():
    """That of the lower layer's states can be made for a chunk at once, before the upper layer's loop."""

    def two_layers(matrix, carry, x):
        lower, upper = carry
        new_lower = jnp.tanh(lower @ matrix + x)
        return [new_lower, jnp.tanh(new_lower @ jnp.sin(matrix) + upper @ matrix)]

    program = program_of(two_layers, 2)
    assert products(merge_products(program, CPU)) == 3
    assert products(merge_products(with_known_carry(program), CPU)) == 2


def test_a_product_that_is_written_twice_is_not_joined_with_itself():
    """XLA would merge both, and cannot once they are halves of one product."""

    def step(matrix, carry, x):
        return [jnp.tanh(carry[0] @ matrix + x), jnp.sin(carry[0] @ matrix)]

    program = program_of(step, 1)
    forward = passes.apply(passes.forward(BACKENDS["cpu"]), program)
    made = [e.outputs[0].shape for e in needed(forward.equations, forward.outputs) if e.primitive.name == "dot_general"]
    assert made == [ROWS.shape]
    assert_equal(program, forward)


def test_a_product_that_something_else_reads_too_is_not_merged():
    def step(matrix, carry, x):
        product = x @ matrix
        return [product + jnp.sin(x) @ matrix, product]

    program = program_of(step, 1)
    assert products(merge_products(with_known_carry(program), CPU)) == 2


def test_products_of_one_x_are_one_that_is_cut():
    def step(matrix, carry, x):
        gates = [carry[0] @ weight + x @ weight for weight in (matrix, jnp.sin(matrix), 3 * matrix[:, :8])]
        return [jnp.tanh(gates[0]) * gates[1] + gates[2].sum(1, keepdims=True)]

    program = program_of(step, 1)
    joined = join_products(program)
    assert (products(program), products(joined)) == (6, 4), "8 columns would be a ninth"
    assert_equal(program, joined)


def test_products_that_feed_different_loops_are_not_joined():
    """The readout can be made at once for all steps; the other product has to wait for the step before."""
    program = program_of(lambda matrix, carry, x: [jnp.tanh(carry[0] @ matrix + x), carry[0] @ jnp.sin(matrix)], 1)
    assert products(join_products(program)) == 2


def test_what_is_computed_twice_from_the_same_is_computed_once():
    def step(matrix, carry, x):
        return [jnp.concatenate([x, carry[0]]) @ matrix, jnp.concatenate([x, carry[0]]) @ matrix]

    program = program_of(step, 1)
    once = remove_repeats(program)
    assert (products(program), products(once)) == (2, 1)
    assert once.outputs[0] is once.outputs[1]
    assert_equal(program, once)


@pytest.mark.parametrize(
    ("take", "pads"),
    [
        (lambda z: jnp.sin(z[:, :8]) @ z[:, 24:].T @ z[:, 8:24], 0),
        (lambda z: jnp.sin(z[:, :8]) @ z[:, 16:24].T @ z, 2),
        (lambda z: jnp.sin(z[:, :24]) @ z[:, 8:].T, 2),
        (lambda z: jnp.sin(z[:2]) @ z[2:].T, 0),
        (lambda z: jnp.sin(z[:, ::2]) @ z[:, 1::2].T, 2),
    ],
    ids=["whole", "a gap", "overlapping", "rows", "every other"],
)
def test_cotangents_of_slices_are_concatenated_where_they_leave_no_gap(take, pads):
    program = trace(lambda z: jax.vjp(lambda z: jnp.sum(take(z) ** 2), z)[1](1.0), ROWS)
    concatenated = concatenate_pads(program)
    assert sum(equation.primitive.name == "pad" for equation in concatenated.equations) == pads
    assert_equal(program, concatenated)


@pytest.fixture
def summed_in_loops(monkeypatch):
    """Positions of the sums over steps that the backward pass makes in its loops."""
    in_loops, place = [], sum_placement.place_sums

    def place_sums(program, heuristics):
        placed = place(program, heuristics)
        in_loops.extend(placed[0])
        return placed

    monkeypatch.setattr(sum_placement, "place_sums", place_sums)
    return in_loops


def gradients(cell, pieces, engine):
    xs = jax.random.normal(jax.random.key(1), (12, 4, SIZE))
    return jax.grad(lambda pieces: jnp.sum(rs.scan(cell, pieces, ROWS, xs, engine=engine)[1] ** 2))(pieces)


KERNELS = {
    "concatenated": lambda pieces: jnp.concatenate(pieces, axis=1),
    "stacked": lambda pieces: jnp.stack(pieces, axis=1).reshape(SIZE, -1),
    "transposed": lambda pieces: jnp.pad(pieces[0], ((0, 0), (0, SIZE)))[:, :-SIZE].T,
    "negative": lambda pieces: -pieces[0],
    "scaled": lambda pieces: 0.5 * pieces[0] * jnp.sin(pieces[1]) / 3.0,
}


@pytest.mark.parametrize("name", variants(KERNELS.keys(), ["concatenated", "scaled"]))
def test_the_gradient_of_a_kernel_made_within_the_step_is_summed_after_the_loop(name, summed_in_loops):
    """As those of Flax's OptimizedLSTMCell, which concatenates its kernels at each step."""
    kernel = KERNELS[name]

    def cell(pieces, carry, x):
        new = jnp.tanh(x @ kernel(pieces)[:, :SIZE] + carry @ kernel(pieces)[:, -SIZE:])
        return new, new

    pieces = [MATRIX / SIZE, jnp.eye(SIZE)]
    ours, plain = (gradients(cell, pieces, engine) for engine in ("fission", "lax"))
    assert not summed_in_loops
    for one, other in zip(ours, plain, strict=True):
        assert jnp.allclose(one, other, rtol=1e-4, atol=1e-4)


def test_gradients_of_parameters_in_float32_and_products_in_bfloat16_are_summed_after_the_loop(summed_in_loops):
    def cell(params, carry, x):
        kernel, recurrent, bias = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params)
        new = jnp.tanh(x.astype(jnp.bfloat16) @ kernel + carry.astype(jnp.bfloat16) @ recurrent + bias)
        return new.astype(jnp.float32), new.astype(jnp.float32)

    params = [jax.random.normal(key, (SIZE, SIZE)) / SIZE for key in jax.random.split(jax.random.key(0))]
    params.append(jnp.linspace(-1.0, 1.0, SIZE))
    ours, plain = (gradients(cell, params, engine) for engine in ("fission", "lax"))
    assert not summed_in_loops
    for one, other in zip(ours, plain, strict=True):
        assert one.dtype == jnp.float32
        assert jnp.linalg.norm(one - other) < 2**-7 * jnp.linalg.norm(other)


def test_devices_share_gradients_of_closed_over_arrays_once_a_chunk():
    def loss(matrix, xs):
        def cell(_, carry, x):
            carry = jnp.tanh(x @ matrix + carry @ matrix)
            return carry, carry

        return jax.lax.pmean(jnp.sum(rs.scan(cell, None, xs[0] * 0, xs, memory=rs.Memory(chunk=4))[1] ** 2), "rows")

    mesh = jax.make_mesh((1,), ("rows",), axis_types=(AxisType.Auto,))
    gradient = inlined(jax.grad(loss))
    shares = jax.shard_map(gradient, mesh=mesh, in_specs=(jax.P(), jax.P(None, "rows")), out_specs=[jax.P()])
    xs = jnp.ones((8, *ROWS.shape))
    assert _loops_around_sums(jax.make_jaxpr(shares)(MATRIX, xs).jaxpr) == {1}


def _loops_around_sums(jaxpr, loops=0):
    """How many loops are around each sum over devices of an array."""
    found = set()
    for equation in jaxpr.eqns:
        if equation.primitive.name == "psum_invariant" and equation.outvars[0].aval.ndim:
            found.add(loops)
        inner = loops + is_loop(equation)
        bodies = [getattr(value, "jaxpr", value) for value in equation.params.values()]
        found = found.union(*(_loops_around_sums(body, inner) for body in bodies if hasattr(body, "eqns")))
    return found


def test_a_product_that_large_values_feed_is_not_merged():
    def step(matrix, carry, x):
        pooled = jnp.tanh(x[:, None, :] * jnp.arange(100.0)[:, None]).sum(1)
        return [pooled @ matrix + carry[0] @ matrix]

    program = program_of(step, 1)
    assert products(merge_products(with_known_carry(program), CPU)) == 2


def test_the_cotangent_of_a_weight_is_not_transposed():
    program = trace(lambda x, w, ct: jax.vjp(lambda w: x @ w, w)[1](ct), ROWS, MATRIX, ROWS)
    swapped = swap_products(program)
    assert [equation.primitive.name for equation in needed(program.equations, program.outputs)] == [
        "dot_general",
        "transpose",
    ]
    assert [equation.primitive.name for equation in swapped.equations] == ["dot_general"]
    assert_equal(program, swapped)


def test_a_product_that_is_read_untransposed_too_stays():
    def step(x, ct):
        product = x.T @ ct
        return [product.T, product]

    program = trace(step, ROWS, ROWS)
    names = [equation.primitive.name for equation in swap_products(program).equations]
    assert names.count("transpose") == 2


def test_rows_are_scattered_into_a_sum_and_not_into_zeros():
    def step(table, rows, more):
        zeros = jnp.zeros_like(table)
        return [table + zeros.at[jnp.array([1, 0, 1])].add(rows) + zeros.at[jnp.array([2, 2, 0])].add(more)]

    program = trace(step, *[jax.ShapeDtypeStruct((3, SIZE), jnp.float32)] * 3)
    scattered = scatter_into_sums(program)
    made = [equation for equation in scattered.equations if equation.outputs[0].shape == (3, SIZE)]
    assert [equation.primitive.name for equation in made if equation.inputs[1:]] == ["scatter-add", "scatter-add"]
    assert_equal(program, scattered)


@pytest.mark.parametrize(
    "step",
    [
        lambda table, rows: [table + (found := jnp.zeros_like(table).at[jnp.array([1, 0, 1])].add(rows)), found],
        lambda table, rows: [table + jnp.ones_like(table).at[jnp.array([1, 0, 1])].add(rows)],
        lambda table, rows: [table[:1] + jnp.zeros((3, SIZE)).at[jnp.array([1, 0, 1])].add(rows)],
    ],
    ids=["read twice", "into ones", "another shape"],
)
def test_other_scatters_stay(step):
    program = trace(step, *[jax.ShapeDtypeStruct((3, SIZE), jnp.float32)] * 2)
    before, after = (
        [equation.primitive.name for equation in needed(one.equations, one.outputs)]
        for one in (program, scatter_into_sums(program))
    )
    assert before == after


@pytest.mark.large_loops
def test_a_gradient_changes_rows_of_the_cotangent_of_a_table_in_place():
    def cell(kernel, table, x):
        indices, push = x
        new = jnp.tanh(table[indices] @ kernel + push)
        return table.at[indices].add(new), new

    def loss(kernel, table, xs):
        carry, ys = rs.scan(cell, kernel, table, xs)
        return jnp.sum(carry**2) + jnp.sum(ys**2)

    random = np.random.default_rng(0)
    xs = jnp.asarray(random.integers(0, 5, (6, 3))), normal(random, (6, 3, 4), jnp.float32)
    arguments = normal(random, (4, 4), jnp.float32), normal(random, (5, 4), jnp.float32), xs
    text = str(running(jax.grad(loss, argnums=1))(*arguments))
    assert "f32[5,4] = add_any" not in text
    assert text.count("f32[5,4] = scatter-add") == 2


def test_the_cotangent_of_a_bias_is_one_sum():
    bias = jax.ShapeDtypeStruct((SIZE,), jnp.float32)
    program = trace(lambda x, bias, ct: jax.vjp(lambda bias: x + bias, bias)[1](ct), ROWS, bias, ROWS)
    joined = join_sums(program)
    assert [equation.primitive.name for equation in program.equations].count("reduce_sum") == 2
    assert [equation.primitive.name for equation in joined.equations] == ["reduce_sum"]
    assert_equal(program, joined)


def test_two_sums_over_several_elements_stay():
    program = trace(lambda x: [x.sum(0).reshape(2, -1).sum(0)], ROWS)
    assert [equation.primitive.name for equation in join_sums(program).equations].count("reduce_sum") == 2


def test_a_weight_that_is_read_by_columns_is_transposed_once():
    def step(matrix, carry, x):
        pull = jax.vjp(lambda x: jnp.tanh(jnp.tanh(x @ matrix) @ matrix), x)[1]
        return pull(carry[0])

    program = program_of(step, 1)
    stored = store_transposed(program)
    names = [equation.primitive.name for equation in stored.equations]
    assert names.count("transpose") == 1
    contracted = [
        equation.params["dimension_numbers"][0] for equation in stored.equations if equation.kind is Kind.PRODUCT
    ]
    assert set(contracted) == {((1,), (0,))}


EINSUMS = ["nsd,ds->n", "nsd,sd->n", "nsd,sn->d", "nsd,dn->s", "nsd,de->nse", "nsd,ed->esn", "nsd,nd->sn"]


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("pattern", EINSUMS)
def test_gradients_of_products_of_all_forms(pattern):
    """Of square operands, so that a transposed gradient would have the shape of the right one."""

    def cell(params, state, x):
        read = jnp.einsum(pattern, state, params["weight"])
        state = jnp.tanh(params["decay"] * state + x) + 0.1 * read.sum()
        return state, (read, jnp.einsum(pattern, state, x[0]))

    random = np.random.default_rng(0)
    params = {name: jnp.asarray(random.normal(size=(3, 3))) for name in ("weight", "decay")}
    given = params, jnp.asarray(random.normal(size=(3, 3, 3))), jnp.asarray(random.normal(size=(7, 3, 3, 3)))

    def gradients(run):
        def loss(*arguments):
            return sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(run(*arguments)))

        return jax.jit(jax.grad(loss, argnums=(0, 1, 2)))(*given)

    expected = gradients(lambda params, state, xs: lax.scan(partial(cell, params), state, xs))
    assert_close(gradients(partial(rs.scan, cell)), expected, tolerance=1e-11)
