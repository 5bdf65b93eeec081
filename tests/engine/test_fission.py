"""The fission engine against plain autodiff of lax.scan, on cells of every kind, and what it keeps and stacks."""

import functools
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend import core

import remat3
import rnnscan as rs
from jaxprs import is_loop, running, trips_of_loops
from rnnscan import cells
from rnnscan.engine.costs import heuristics
from rnnscan.insight import kept_bytes
from slow_reference import assert_close, loss
from tiers import variants


pytestmark = pytest.mark.core("the engine")

LENGTH, BATCH, SIZE = 7, 3, 4


@jax.custom_vjp
def scaled(x):
    return x * 2


scaled.defvjp(lambda x: (x * 2, None), lambda _, cotangent: (cotangent * 5,))  # Not its derivative, on purpose.


def attend(params, carry, x):
    """Additive attention: a parameter-sized cotangent that is elementwise at its end, and a batched outer product."""
    scores = jnp.tanh(params["keys"] + (carry @ params["square"])[:, None, :]) @ params["vector"]
    context = jnp.einsum("nl,nle->ne", jax.nn.softmax(scores), params["keys"])
    carry = jnp.tanh(rs.name(context @ params["square"] + x @ params["square"], "mixed"))
    return carry, context


def branching(params, carry, x):
    product = carry @ params["square"]
    carry = lax.cond(x.sum() > 0, lambda: jnp.tanh(product + x), lambda: jnp.sin(product) * params["vector"])
    return carry, carry.sum(-1)


def looping(params, carry, x):
    def inner(state, weight):
        return jnp.tanh(state @ params["square"] + weight), state.sum()

    carry, sums = lax.scan(inner, carry + x, params["square"])
    return carry, sums


def gathering(params, carry, x):
    rows = params["square"][jnp.argmax(x, axis=-1)]
    carry = jnp.tanh(carry @ params["square"] + rows)
    return carry, jnp.take_along_axis(carry, jnp.argmax(x, axis=-1)[:, None], axis=1)


def convolving(params, carry, x):
    kernel = params["square"][:3, :1].reshape(3, 1, 1)
    carry = jnp.tanh(
        lax.conv_general_dilated(carry[..., None], kernel, (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC"))
    )
    return carry[..., 0] + x, carry


def two_loops(params, carry, x):
    first, second = carry
    first = jnp.tanh(first @ params["square"] + x)
    second = 0.5 * second + first @ params["square"]
    return (first, second), jnp.concatenate([second, x], axis=-1)


def passing(params, carry, x):
    """A carry that stays, one that is forgotten, one that nothing reads, and one that counts."""
    stays, forgotten, _, count = carry
    y = x @ params["square"] * stays + forgotten
    return (stays, jnp.zeros_like(x), y, count + 1), {"y": y, "none": None, "count": count}


def swapped(params, carry, x):
    """Outputs that are carries, in another order and of other shapes than the carries."""
    first, second = carry
    first = jnp.tanh(first @ params["square"] + second)
    second = jnp.tanh(second + x.sum(-1, keepdims=True))
    return (first, second), (second, first)


def ruled(params, carry, x):
    """Rules for derivatives that differ from the derivative of what they compute."""
    carry = jax.nn.relu(scaled(carry @ params["square"]) + jax.nn.logsumexp(x, axis=-1, keepdims=True))
    return carry / (1 + carry.sum()), carry


def complex_diagonal(params, carry, x):
    carry = params["diagonal"] * carry + x
    return carry, carry.real


def without_inputs(params, carry, _):
    carry = jnp.tanh(carry @ params["square"])
    return carry, carry[:, 0]


CELLS = {
    "lstm": cells.LSTM(SIZE),
    "gru": cells.GRU(SIZE),
    "gru with the reset before": cells.GRU(SIZE, reset_after=False),
    "rnn": cells.RNN(SIZE),
    "stack": rs.stack(cells.LSTM(SIZE), cells.GRU(SIZE)),
    "attention": attend,
    "cond": branching,
    "scan": looping,
    "gather": gathering,
    "convolution": convolving,
    "two loops": two_loops,
    "carries that pass": passing,
    "outputs in another order": swapped,
    "custom rules": ruled,
    "complex": complex_diagonal,
    "without inputs": without_inputs,
}


def given(kind):
    cell = CELLS[kind]
    random = np.random.default_rng(0)
    normal = lambda *shape: jnp.asarray(random.normal(size=shape) / 2)  # noqa: E731
    xs = None if kind == "without inputs" else normal(LENGTH, BATCH, SIZE)
    if hasattr(cell, "init"):
        made = jax.eval_shape(lambda: cell.init(jax.random.key(1), SIZE))
        params = jax.tree.map(lambda leaf: normal(*leaf.shape), made)
        return params, jax.tree.map(lambda leaf: normal(*leaf.shape), cell.initial_carry(xs[0])), xs
    params = {"square": normal(SIZE, SIZE), "vector": normal(SIZE), "keys": normal(BATCH, 5, SIZE), "unused": normal(2)}
    carry = normal(BATCH, SIZE)
    if kind == "two loops":
        carry = (carry, normal(BATCH, SIZE))
    if kind == "outputs in another order":
        carry = (carry, normal(BATCH, 1))
    if kind == "carries that pass":
        carry = (carry, normal(BATCH, SIZE), normal(BATCH, SIZE), jnp.array(3))
    if kind == "complex":
        params["diagonal"] = jnp.exp(1j * normal(SIZE)) * 0.9
        carry = carry + 1j * normal(BATCH, SIZE)
    return params, carry, xs


def results_and_gradients(kind, params, carry, xs, **options):
    scan = functools.partial(rs.scan, CELLS[kind], xs=xs, length=LENGTH, **options)
    float_carry = [leaf for leaf in jax.tree.leaves(carry) if jnp.issubdtype(leaf.dtype, jnp.inexact)]

    def total(params, leaves):
        replaced = iter(leaves)
        given = jax.tree.map(lambda leaf: next(replaced) if jnp.issubdtype(leaf.dtype, jnp.inexact) else leaf, carry)
        result = scan(params, given)
        parts = jax.tree.map(lambda leaf: [leaf.real, leaf.imag] if jnp.iscomplexobj(leaf) else leaf, result)
        return loss(parts), result

    (_, result), gradients = jax.jit(jax.value_and_grad(total, (0, 1), has_aux=True))(params, float_carry)
    return result, gradients


@functools.cache
def plain(kind, **options):
    with jax.enable_x64(True):
        arguments = given(kind)
        return arguments, results_and_gradients(kind, *arguments, memory=None, **options)


MEMORIES = {
    "keep names": rs.Memory(chunk=3),
    "recompute all": rs.Memory(recompute="all"),
    "segments": rs.Memory(recompute="all", segment=4, chunk=1),
}
# Each of this file's own cells once, with the choices in turn; tests/cells has those of the library.
OWN = [kind for kind in CELLS if not hasattr(CELLS[kind], "init")]
IN_TURN = [f"{kind}, {memory}" for kind, memory in zip(OWN, itertools.cycle(MEMORIES))]


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("kind", "memory"),
    variants({f"{kind}, {name}": (kind, memory) for name, memory in MEMORIES.items() for kind in CELLS}, IN_TURN),
)
def test_every_kind_of_cell_equals_plain_autodiff(kind, memory):
    arguments, expected = plain(kind)
    assert_close(results_and_gradients(kind, *arguments, memory=memory, engine="fission"), expected)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("chunk", variants([1, 2, 7, 100], [2]))
@pytest.mark.parametrize("reverse", variants([False, True], [True]))
def test_any_chunk_equals_plain_autodiff(chunk, reverse):
    arguments, expected = plain("stack", reverse=reverse)
    options = {"memory": rs.Memory(recompute="all", chunk=chunk), "reverse": reverse, "unroll": 2}
    assert_close(results_and_gradients("stack", *arguments, engine="fission", **options), expected)


@pytest.mark.usefixtures("x64")
def test_a_step_without_carry_inputs_and_outputs():
    final, ys = rs.scan(lambda params, carry, x: (carry, None), 1.0, (), None, length=3, engine="fission")
    assert final == ()
    assert ys is None
    run = lambda params: rs.scan(lambda p, c, x: (c, p * p), params, (), None, length=3, engine="fission")[1].sum()  # noqa: E731
    assert float(jax.grad(run)(2.0)) == 12.0


def test_16_bit_parameters_are_summed_in_32_bits():
    """2,000 steps whose gradients are alike: a sum in bfloat16 would stop at 256 of them."""
    params = jnp.ones((2, 2), jnp.bfloat16)
    cell = lambda params, carry, x: (carry, x @ params)  # noqa: E731
    xs = jnp.ones((2_000, 1, 2), jnp.bfloat16)
    gradient = jax.grad(lambda params: rs.scan(cell, params, jnp.zeros(1), xs, engine="fission")[1].sum())(params)
    assert bool(jnp.all(jnp.abs(gradient.astype(jnp.float32) - 2_000) <= 16))


def lstm(length=128, batch=32, features=128, hidden=256):
    cell = cells.LSTM(hidden)
    params = jax.eval_shape(lambda: cell.init(jax.random.key(0), features))
    return cell, params, jax.ShapeDtypeStruct((length, batch, features), jnp.float32)


@pytest.mark.parametrize(
    ("memory", "floats"), [(rs.Memory(), 128 + 256 + 4 * 256), (rs.Memory(recompute="all"), 128 + 256)], ids=str
)
def test_an_output_that_is_the_carry_is_kept_once(memory, floats):
    """Also where a loss reads the output; the lax engine keeps h as an output and as a carry then."""
    cell, params, xs = lstm()

    def squares(params, xs, engine):
        ys = rs.scan(cell, params, cell.initial_carry(xs[0]), xs, memory=memory, engine=engine)[1]
        return jnp.sum(ys * ys)

    bytes_of = {
        engine: kept_bytes(functools.partial(squares, engine=engine), params, xs) for engine in ("lax", "fission")
    }
    steps, parameters = 128 * 32, (128 + 256 + 1) * 4 * 256
    initial, states = 32 * 2 * 256, 16 * 32 * 256
    assert bytes_of["fission"] <= 4 * (steps * floats + parameters + initial + states)
    assert bytes_of["lax"] >= 4 * steps * (floats + 2 * 256)


def test_an_output_that_is_given_or_repeated_is_kept_once():
    kernel, xs = jnp.ones((8, 8)), jnp.ones((64, 4, 8))

    def cell(kernel, hidden, x):
        hidden = jnp.tanh(x + hidden @ kernel)
        return hidden, (hidden, hidden, x)

    def squares(kernel, xs):
        return sum(jnp.sum(ys * ys) for ys in rs.scan(cell, kernel, jnp.zeros((4, 8)), xs, engine="fission")[1])

    assert kept_bytes(squares, kernel, xs) <= 4 * (64 * 4 * (8 + 8) + 8 * 8 + 4 * 8)


@pytest.mark.skipif(remat3.IS_ON, reason="JAX's new remat has no policies that are functions")
def test_a_policy_of_jax_around_a_scan_sees_the_products_of_its_loops():
    cell, params, xs = lstm()

    def total(params, xs):
        return rs.scan(cell, params, cell.initial_carry(xs[0]), xs)[1].sum()

    def kept(policy):
        return kept_bytes(jax.checkpoint(total, policy=policy), params, xs)

    gates = 4 * 128 * 32 * 4 * 256
    assert kept(jax.checkpoint_policies.dots_saveable) >= kept(jax.checkpoint_policies.nothing_saveable) + gates


def test_no_stack_of_weight_sized_arrays_exists():
    cell, params, xs = lstm(length=64, batch=2, features=24, hidden=40)

    def squares(params, xs):
        return jnp.sum(rs.scan(cell, params, cell.initial_carry(xs[0]), xs, engine="fission")[1] ** 2)

    program = str(running(jax.grad(squares, (0, 1)))(params, xs))
    weights = r"(?:24,160|40,160|160,24|160,40)\]"
    assert re.search(r"f32\[" + weights, program), "the weights themselves are there"
    assert not re.search(r"f32\[\d+," + weights, program)


def products_in_loops(jaxpr, inside=False):
    """The dot_general equations within scans of more than one step that stand in no other."""
    for equation in jaxpr.eqns:
        loops = is_loop(equation)
        if inside and equation.primitive.name == "dot_general":
            yield equation
        for value in equation.params.values():
            if isinstance(value, core.ClosedJaxpr):
                yield from products_in_loops(value.jaxpr, inside=inside or loops)


def test_the_innermost_loop_of_the_backward_pass_has_one_product():
    """Of an LSTM: the cotangent of the gates times the recurrent kernel. All others are made for a chunk at once."""
    cell, params, xs = lstm(length=64, batch=2, features=24, hidden=40)
    memory = rs.Memory(recompute="all", chunk=8)
    run = lambda params, xs: rs.scan(cell, params, cell.initial_carry(xs[0]), xs, memory=memory, engine="fission")[1]  # noqa: E731
    pull_back = running(lambda params, xs, ct: jax.vjp(run, params, xs)[1](ct))(
        params, xs, jax.ShapeDtypeStruct((64, 2, 40), jnp.float32)
    )
    steps = [equation.outvars[0].aval.shape for equation in products_in_loops(pull_back.jaxpr)]
    assert steps.count((2, 40)) == 1, steps
    assert steps.count((8, 2, 24)) == 1, "the cotangents of a chunk's inputs, at once"
    assert (2, 24) not in steps


@pytest.mark.core("effects")
def test_printing_for_debugging_goes_by_the_lax_engine(capfd):
    def printing(params, carry, x):
        jax.debug.print("carry {}", carry[0])
        return carry * params + x, carry

    run = lambda params: rs.scan(printing, params, jnp.ones(2), jnp.ones((3, 2)), engine="auto")[1].sum()  # noqa: E731
    expected = jax.grad(lambda params: rs.scan(printing, params, jnp.ones(2), jnp.ones((3, 2)))[1].sum())(0.5)
    assert float(jax.grad(run)(0.5)) == float(expected)
    jax.effects_barrier()
    assert "carry 1.0" in capfd.readouterr().out


@pytest.mark.parametrize("kind", variants(CELLS.keys(), ["stack", "attention", "complex"]))
def test_batching_everything_equals_plain_autodiff_too(kind, x64):
    """As on a GPU: no work but the loops themselves is left in them."""
    given_here, expected = plain(kind)
    with heuristics.using(heuristics.BACKENDS["gpu"]):
        actual = results_and_gradients(kind, *given_here, memory=rs.Memory(recompute="all", chunk=3), engine="fission")
    assert_close(actual, expected)


@pytest.mark.large_loops
def test_where_linear_recurrences_run_in_parallel_no_loop_over_their_steps_is_left():
    def min_gru(params, carry, x):
        gate = jax.nn.sigmoid(x @ params)
        carry = (1 - gate) * carry + gate * x
        return carry, carry

    def total(params, xs):
        return jnp.sum(rs.scan(min_gru, params, xs[0], xs)[1] ** 2)

    params, xs = jnp.ones((4, 4)), jnp.ones((512, 2, 4))
    assert 64 in trips_of_loops(running(jax.grad(total, (0, 1)))(params, xs).jaxpr)
    with heuristics.using(heuristics.BACKENDS["gpu"]):
        program = running(jax.grad(total, (0, 1)))(params, xs)
    assert {*trips_of_loops(program.jaxpr)} == {8}, "one trip a chunk, which is an eighth of the sequence"


def loops_with_products(jaxpr):
    """For each innermost loop the number of its products."""
    for equation in jaxpr.eqns:
        inner = [value.jaxpr for value in equation.params.values() if isinstance(value, core.ClosedJaxpr)]
        for body in inner:
            if is_loop(equation) and not any(map(is_loop, body.eqns)):
                yield sum(e.primitive.name == "dot_general" for e in body.eqns)
            else:
                yield from loops_with_products(body)


@pytest.mark.parametrize("backend", heuristics.BACKENDS)
def test_two_stacked_layers_are_two_loops(backend):
    """In the backward pass everywhere. In the forward pass of a CPU one loop is faster (docs/decisions.md)."""
    cell = rs.stack(cells.LSTM(64), cells.LSTM(64))
    params = cell.init(jax.random.key(0), 64)
    xs, memory = jnp.ones((64, 16, 64)), rs.Memory(chunk=32)  # Chunks of two iterations of a GPU: one is no loop.

    def run(params, xs):
        return rs.scan(cell, params, cell.initial_carry(xs[0]), xs, engine="fission", memory=memory)[1]

    with heuristics.using(heuristics.BACKENDS[backend]):
        forward = running(run)(params, xs)
        both = running(lambda params, xs: jax.vjp(run, params, xs)[1](xs))(params, xs)
    ahead = [products for products in loops_with_products(forward.jaxpr) if products]
    behind = [products for products in loops_with_products(both.jaxpr) if products][len(ahead) :]
    trip = heuristics.BACKENDS[backend].unroll
    assert ahead == ([4] if backend == "cpu" else [trip, trip])
    assert behind == [trip, trip]


def test_a_name_in_an_inner_scan_may_be_computed_again():
    def cell(params, hidden, x):
        def inner(hidden, row):
            hidden = rs.name(jnp.tanh(hidden * row + x), "inner")
            return hidden, hidden.sum()

        return jax.lax.scan(inner, hidden, params)

    def gradients(memory):
        def loss(*arguments):
            return sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(rs.scan(cell, *arguments, memory=memory)))

        return jax.jit(jax.grad(loss, argnums=(0, 1, 2)))(*arguments)

    random = np.random.default_rng(0)
    with jax.enable_x64(True):
        arguments = [jnp.asarray(random.normal(size=shape)) for shape in ((2, 4), (3, 4), (5, 3, 4))]
        for own, plain in zip(gradients(rs.Memory(recompute="all")), gradients(None), strict=True):
            np.testing.assert_allclose(own, plain, rtol=1e-10)
