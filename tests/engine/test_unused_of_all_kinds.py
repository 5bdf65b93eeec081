"""Dead code elimination of a call, for operands and results of all kinds, in every order of transformations."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend import core
from jax.interpreters import partial_eval

import rnnscan as rs
from rnnscan.engine.loops.calls import differentiate_as
from slow_reference import assert_close
from tiers import variants


CONSTANT = np.linspace(0.1, 0.5, 5, dtype=np.float32)


def inner(x, y):
    return {"sum": x + y, "number": 2.0, "product": x * jnp.cos(y)}


def loops(x, y):
    """The state of loops, which have no reverse mode."""
    x, y = lax.stop_gradient((x, y))

    def more(state):
        step, height, unread, _ = state
        return step + 1, jnp.sin(height) + x, unread * height, 7.0

    steps, height, unread, seven = lax.while_loop(lambda state: state[0] < 3, more, (0, y, x, 7.0))
    same = lambda state: (state[0] + 1, state[1], 1.0)  # noqa: E731
    _, stays, one = lax.while_loop(lambda state: state[0] < 2, same, (0, x, 1.0))
    return {
        "steps of a loop": steps,
        "state of a loop": height,
        "state that nothing else reads": unread,
        "a number in the state of a loop": seven,
        "state that a loop does not change": stays,
        "a number after a loop": one,
    }


def kinds(x, y, empty, key, index, rows):
    """Results of all kinds, by name."""

    called = differentiate_as(inner, inner)(x, y)
    jitted = jax.jit(inner)(y, x)
    return {
        "a number": 3.0,
        "a numpy number": np.float32(0.5),
        "an operand": x,
        "an operand once more": x,
        "a product": x * jnp.exp(y),
        "a constant": CONSTANT,
        "a sum with a constant": y + CONSTANT,
        "an empty array": empty * 2.0,
        "a key": jax.random.fold_in(key, 1),
        "random numbers": jax.random.normal(key, (5,)) + x,
        "an indexed item": rows[index] * x,
        "an index": index + 1,
        **loops(x, y),
        "a call": called["product"],
        "a number of a call": called["number"],
        "a jitted call": jitted["sum"],
        "a number of a jitted call": jitted["number"],
        "a branch": lax.cond(index > 0, lambda: x * y, lambda: x + y),
    }


SEVERAL = {
    "numbers": ["a number", "a numpy number", "a number after a loop", "a number of a call"],
    "an operand twice": ["an operand", "an operand once more", "a constant"],
    "an operand and a number": ["a product", "a number", "a number of a jitted call"],
    "keys and empty arrays": ["a key", "an empty array", "a branch"],
    "loops": ["state of a loop", "a number in the state of a loop", "random numbers"],
}


def arguments():
    x, y = jnp.linspace(-0.5, 1.0, 5), jnp.linspace(0.2, 0.4, 5)
    return x, y, jnp.zeros((0, 3)), jax.random.key(3), jnp.int32(1), jnp.arange(10.0).reshape(2, 5)


RESULTS = sorted(jax.eval_shape(kinds, *arguments()))
READ = {name: ([name],) for name in RESULTS} | {key: (names,) for key, names in SEVERAL.items()}


def loss(function, *operands):
    """A sum over the results that have gradients, besides the results."""
    results = function(*operands)
    floats = [leaf for leaf in jax.tree.leaves(results) if jnp.issubdtype(jnp.result_type(leaf), jnp.floating)]
    return sum([jnp.sum(jnp.asarray(leaf) ** 2) for leaf in floats], 0.0), data(results)


def data(tree):
    """A pytree with the data of keys in place of them."""
    is_key = lambda leaf: jnp.issubdtype(jnp.result_type(leaf), jax.dtypes.prng_key)  # noqa: E731
    return jax.tree.map(lambda leaf: jax.random.key_data(leaf) if is_key(leaf) else jnp.asarray(leaf), tree)


def moving(function):
    """The function of its first two operands, and these."""
    x, y, *others = arguments()
    return lambda *pair: function(*pair, *others), (x, y)


def run(function):
    return data(jax.jit(function)(*arguments()))


def gradient(function):
    function, pair = moving(function)
    return jax.jit(jax.grad(partial(loss, function), (0, 1), has_aux=True))(*pair)


def gradient_of_checkpoint(function):
    return gradient(jax.checkpoint(function))


def forward_mode(function):
    function, pair = moving(function)
    return jax.jit(lambda *pair: jax.jvp(lambda *pair: loss(function, *pair), pair, pair[::-1]))(*pair)


def second_order(function):
    function, pair = moving(function)
    inner = jax.grad(lambda *pair: loss(function, *pair)[0])
    return jax.jit(jax.jacfwd(jax.jit(lambda x, y: inner(x, y))))(*pair)


def rows(function):
    x, y, empty, key, index, table = arguments()
    operands = jnp.stack([x, 2 * x]), y, empty, jax.random.split(key, 2), index, table
    return jax.jit(jax.vmap(lambda *row: data(function(*row)), (0, None, None, 0, None, None)))(*operands)


ORDERS = {
    "run": run,
    "gradient": gradient,
    "gradient of checkpoint": gradient_of_checkpoint,
    "forward mode": forward_mode,
    "second order": second_order,
    "rows": rows,
}


CASES = {f"{read}-{order}": (READ[read][0], ORDERS[order]) for read in READ for order in ORDERS}
QUICK = [
    *(f"{read}-gradient of checkpoint" for read in SEVERAL),
    "loops-rows",
    "numbers-run",
    "an operand twice-forward mode",
]


@pytest.mark.parametrize(("read", "order"), variants(CASES, QUICK))
def test_results_of_all_kinds(read, order):
    def chosen(function, *operands):
        results = function(*operands)
        return {name: results[name] for name in read}

    call = differentiate_as(kinds, kinds)
    assert_close(order(partial(chosen, call)), order(partial(chosen, kinds)), 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS.keys())
def test_each_result_alone_of_a_program_without_dead_code(order):
    """JAX transforms the shorter call, where it eliminated dead code before."""

    def flat(*operands):
        results = differentiate_as(kinds, kinds)(*operands)
        return [results[name] for name in RESULTS]

    whole = jax.make_jaxpr(flat)(*arguments())
    for name in RESULTS:
        live, used = partial_eval.dce_jaxpr(whole.jaxpr, [name == other for other in RESULTS])

        def shorter(*operands, live=live, used=used):
            chosen = [leaf for leaf, is_used in zip(operands, used, strict=True) if is_used]
            return core.jaxpr_as_fun(core.ClosedJaxpr(live, whole.consts))(*chosen)

        expected = order(lambda *operands, name=name: [jnp.asarray(kinds(*operands)[name])])
        assert_close(order(shorter), expected, 1e-5)


def test_numbers_in_the_carry_of_a_scan():
    """The gradient's program returns numbers, which have no hash in a jaxpr."""

    def cell(_, carry, x):
        return (carry[0] + x, jnp.sin(carry[0]) + carry[1]), None

    def final(scan, start, leaf):
        return scan((start, start))[0][leaf]

    xs = jnp.linspace(0.1, 0.3, 4)
    for leaf in (0, 1):
        gradients = [
            jax.grad(partial(final, scan))(0.5, leaf)
            for scan in (
                lambda carry: rs.scan(cell, None, carry, xs),
                lambda carry: lax.scan(lambda carry, x: cell(None, carry, x), carry, xs),
            )
        ]
        assert_close(*gradients, 1e-6)


def test_results_with_symbolic_sizes():
    def several(x, y):
        return 3.0, x, x * y, jnp.sort(y)

    def first(x, y):
        number, same, *_ = differentiate_as(several, several)(x, y)
        return number + same

    (size,) = jax.export.symbolic_shape("n")
    types = [jax.ShapeDtypeStruct((size,), jnp.float32)] * 2
    x = jnp.arange(4.0)
    for function in (first, lambda x, y: jax.vjp(jax.checkpoint(first), x, y)[1](x)):
        live, _ = partial_eval.dce_jaxpr(jax.make_jaxpr(function)(*types).jaxpr, True, instantiate=True)
        run = core.jaxpr_as_fun(core.ClosedJaxpr(live, []))
        assert_close(jax.export.export(jax.jit(run))(*types).call(x, x + 1), list(jax.tree.leaves(function(x, x + 1))))


def test_a_reference_among_the_operands_stays():
    """No zeros can stand for it."""
    call = differentiate_as(lambda ref, x: (x * 2, x * 3), lambda ref, x: (x * 2, x * 3))

    def run(x):
        ref = jax.new_ref(x)
        ref[...] = ref[...] * 2
        return jnp.sum(call(ref, x)[0])

    np.testing.assert_allclose(jax.jit(jax.grad(run))(jnp.arange(3.0)), np.full(3, 2.0))
