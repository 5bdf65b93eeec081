"""Every transformation of JAX works under the default engine as it does on `lax.scan`, in every order."""

import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import remat3
import rnnscan as rs
from drawn import normal
from rnnscan import cells
from slow_reference import assert_close
from tiers import variants


MEMORIES = {
    "named": rs.Memory(),
    "none": rs.Memory(recompute="all", chunk=2),
    "segments": rs.Memory(segment=3),
}


def draw(seed, like):
    random = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: normal(random, leaf.shape, leaf.dtype), like)


def arguments(cell, steps=4, rows=2):
    xs = jnp.zeros((steps, rows, 3))
    given = (cell.init(jax.random.key(0), input_size=3), cell.initial_carry(xs[0]), xs)
    given = jax.tree.map(lambda leaf: leaf.astype(float), given)
    return jax.tree.map(lambda leaf: 0.5 * leaf, draw(1, given)), draw(2, given)


def by_fission(cell, memory, lengths):
    return functools.partial(rs.scan, cell, memory=memory, seq_lengths=lengths, engine="fission")


def by_plain_scan(cell, lengths):
    """`lax.scan` of the cell, with padding written out."""

    def run(params, carry, xs):
        def step(carry, given):
            x, index = given
            new_carry, y = cell(params, carry, x)
            if lengths is None:
                return new_carry, y
            valid = (index < lengths)[:, None]
            held = jax.tree.map(lambda new, old: jnp.where(valid, new, old), new_carry, carry)
            return held, jnp.where(valid, y, 0)

        return lax.scan(step, carry, (xs, jnp.arange(xs.shape[0])))

    return run


def along(function, arguments, tangents):
    return jax.jvp(function, arguments, tangents)[1]


def loss_of(run):
    def loss(*arguments):
        leaves = jax.tree.leaves(run(*arguments))
        return sum((jnp.sin(leaf) * jnp.linspace(-1.0, 1.0, leaf.size).reshape(leaf.shape)).sum() for leaf in leaves)

    return loss


def of_first_and_second_order(run, given, tangents):
    """What `jvp`, and gradients before and after it, give of a function of `(params, carry, xs)`."""
    loss, every = loss_of(run), (0, 1, 2)
    return {
        "forward": jax.jvp(run, given, tangents),
        "reverse over forward": jax.grad(lambda *given: along(loss, given, tangents), every)(*given),
        "forward over reverse": along(jax.grad(loss, every), given, tangents),
    }


def of_other_orders(run, given, tangents):
    """The other ways to differentiate, of one argument alone too, and each of both modes under vmap."""
    loss, (params, carry, xs) = loss_of(run), given
    rows = jnp.stack([xs, 0.3 * xs])
    of_carry = lambda carry: loss(params, carry, xs)  # noqa: E731
    return {
        "linearize": jax.linearize(run, *given)[1](*tangents),
        "jacfwd": jax.jacfwd(of_carry)(carry),
        "hessian": jax.hessian(of_carry)(carry),
        "reverse over reverse": jax.grad(lambda carry: sum((g**2).sum() for g in jax.grad(of_carry)(carry)))(carry),
        "forward over forward": along(lambda *given: along(loss, given, tangents), given, tangents),
        "vmap of forward": jax.vmap(lambda xs: along(loss, (params, carry, xs), tangents))(rows),
        "forward of vmap": along(jax.vmap(lambda xs: loss(params, carry, xs)), (rows,), (rows,)),
        "reverse of vmap": jax.grad(lambda params: jax.vmap(lambda xs: loss(params, carry, xs))(rows).sum())(params),
    }


def check(cell, memory, derivatives, lengths=None):
    with jax.enable_x64(True):
        given, tangents = arguments(cell)
        made, expected = (
            jax.jit(functools.partial(derivatives, run))(given, tangents)
            for run in (by_fission(cell, memory, lengths), by_plain_scan(cell, lengths))
        )
        assert_close(made, expected, tolerance=1e-9)


@pytest.mark.core("derivatives")
@pytest.mark.parametrize("memory", variants(MEMORIES.keys(), ["segments"]))
def test_forward_mode_with_each_memory_choice(memory):
    check(cells.RNN(3), MEMORIES[memory], of_first_and_second_order)


@pytest.mark.core("derivatives")
def test_forward_mode_with_padding():
    check(cells.RNN(3), rs.Memory(recompute="all"), of_first_and_second_order, jnp.array([4, 2]))


@pytest.mark.core("derivatives")
@pytest.mark.parametrize(
    "cell",
    variants({"MinGRU": cells.MinGRU(3), "LSTM": cells.LSTM(3)}, ["MinGRU"]),
)
def test_every_order_of_forward_and_reverse(cell):
    check(cell, rs.Memory(), of_other_orders)


@pytest.mark.slow
def test_forward_mode_of_a_cell_with_a_loop_that_stops():
    check(rs.adaptive_computation(cells.GRU(3), 3), rs.Memory(), of_first_and_second_order)


def test_forward_mode_works_outside_jit():
    cell = cells.GRU(3)
    given, tangents = arguments(cell, steps=3)
    run = by_fission(cell, rs.Memory(), None)
    expected = jax.jvp(by_plain_scan(cell, None), given, tangents)
    assert_close(jax.jvp(run, given, tangents), expected)
    assert_close(jax.linearize(run, *given)[1](*tangents), expected[1])


@pytest.mark.core("derivatives")
def test_a_linear_cell_is_transposed():
    """`linear_transpose` takes the function as it stands, without a derivative."""

    def run(carry, xs, engine="fission"):
        return rs.scan(lambda weight, carry, x: (carry @ weight + x, 2 * carry), weight, carry, xs, engine=engine)

    weight, carry, xs = draw(0, (jnp.zeros((3, 3)), jnp.zeros((2, 3)), jnp.zeros((5, 2, 3))))
    cotangents = draw(1, run(carry, xs))
    transposed = jax.linear_transpose(run, carry, xs)(cotangents)
    assert_close(transposed, jax.vjp(functools.partial(run, engine="lax"), carry, xs)[1](cotangents))


@pytest.mark.core("derivatives")
def test_integers_and_keys_have_no_tangents():
    def cell(weight, carry, x):
        hidden, count, key = carry
        key, draw_key = jax.random.split(key)
        hidden = jnp.tanh(hidden @ weight + x["value"] + jax.random.normal(draw_key, hidden.shape))
        return (hidden, count + x["token"], key), (hidden, count)

    carry = (jnp.ones((2, 3)), jnp.array([0, 1]), jax.random.key(0))
    xs = {"value": draw(0, jnp.zeros((4, 2, 3))), "token": jnp.arange(8).reshape(4, 2)}
    weight, tangent = draw(1, (jnp.zeros((3, 3)), jnp.zeros((3, 3))))
    run = lambda weight, engine: rs.scan(cell, weight, carry, xs, engine=engine)[1][0]  # noqa: E731
    along = lambda engine: jax.jit(  # noqa: E731
        lambda weight: jax.jvp(functools.partial(run, engine=engine), (weight,), (tangent,))
    )(weight)
    assert_close(along("fission"), along("lax"))


def sizes_of_arrays(lowered):
    """The number of elements of each array in a compiled program."""
    shapes = re.findall(r"f32\[([\d,]+)\]", lowered.compile().as_text())
    return {math.prod(map(int, shape.split(","))) for shape in shapes}


def test_what_only_the_backward_pass_reads_is_not_kept_in_forward_mode():
    """Reverse mode keeps the gates of all steps; forward mode has no use for them."""
    cell = cells.LSTM(4)
    given, tangents = arguments(cell, steps=32, rows=2)
    run = by_fission(cell, rs.Memory(), None)
    reverse = jax.jit(lambda given, cotangents: jax.vjp(run, *given)[1](cotangents))
    forward = jax.jit(functools.partial(jax.jvp, run))
    cotangents = jax.eval_shape(run, *given)
    assert 32 * 2 * 16 in sizes_of_arrays(reverse.lower(given, cotangents))
    assert 32 * 2 * 16 not in sizes_of_arrays(forward.lower(given, tangents))


def in_scan(run):
    return lambda x: jax.tree.map(lambda leaf: leaf[0], lax.scan(lambda c, _: (c, run(x)), 0, None, length=1)[1])


AROUND = {
    "nothing": lambda run: run,
    "jit": jax.jit,
    "checkpoint": jax.checkpoint,
    "policy": functools.partial(jax.checkpoint, policy=jax.checkpoint_policies.dots_saveable),
    "scan": in_scan,
    "cond": lambda run: lambda x: lax.cond(jnp.asarray(True), run, run, x),
}
ORDERS = {
    "jacfwd": lambda run, around: jax.jacfwd(around(run)),
    "linearize": lambda run, around: lambda x: jax.linearize(around(run), x)[1](x),
    "grad of jvp": lambda run, around: jax.grad(lambda x: along(around(run), (x,), (x,))),
    "grad of jvp within": lambda run, around: jax.grad(around(lambda x: along(run, (x,), (x,)))),
    "jvp of grad within": lambda run, around: lambda x: along(around(jax.grad(run)), (x,), (x,)),
    "jvp of jvp within": lambda run, around: lambda x: along(around(lambda x: along(run, (x,), (x,))), (x,), (x,)),
    "transposed jvp": lambda run, around: (
        lambda x: jax.linear_transpose(around(jax.vmap(lambda t: along(run, (x,), (t,)))), jnp.stack([x, x]))(
            jnp.arange(2.0)
        )
    ),
}


EACH = {f"{around}, {order}": (AROUND[around], ORDERS[order]) for around in AROUND for order in ORDERS}
# Every order alone and in a branch, whose two sides are staged, and two orders within everything else.
TELLING = [
    one for one in EACH if one.startswith(("nothing", "cond")) or one.endswith(("grad of jvp within", "transposed jvp"))
]


@pytest.mark.core("derivatives")
@pytest.mark.parametrize(("around", "order"), variants(EACH, TELLING))
def test_tangents_are_known_or_found_later(around, order, x64):
    """JAX stages a derivative within calls, loops and branches before it knows whether reverse mode follows."""
    if remat3.IS_ON and order is ORDERS["transposed jvp"] and around in (AROUND["checkpoint"], AROUND["policy"]):
        pytest.skip("With JAX_REMAT3=1 JAX does not transpose `jax.checkpoint` (docs/versions.md)")

    def cell(weight, carry, x):
        hidden = jnp.tanh(carry @ weight + x)
        return hidden, jnp.sin(hidden)

    weight, xs, carry = draw(3, (jnp.zeros((3, 3)), jnp.zeros((5, 3)), jnp.zeros(3)))
    runs = (
        lambda carry: rs.scan(cell, weight, carry, xs)[1].sum(),
        lambda carry: lax.scan(functools.partial(cell, weight), carry, xs)[1].sum(),
    )
    ours, expected = (jax.jit(order(run, around))(carry) for run in runs)
    assert_close(ours, expected, tolerance=1e-9)


def jvp_along_itself(run):
    return lambda x: jax.jvp(run, (x,), (x,))


@pytest.mark.parametrize("around", [jax.jit, jax.checkpoint, in_scan], ids=["jit", "checkpoint", "scan"])
@pytest.mark.parametrize("derivative", [jvp_along_itself, jax.jacfwd], ids=["jvp", "jacfwd"])
def test_forward_mode_runs_results_and_tangents_in_one_loop(derivative, around):
    def cell(params, carry, x):
        hidden = jnp.tanh(carry @ params + x)
        return hidden, hidden

    xs = jnp.ones((50, 2, 3))
    runs = [
        around(lambda params: rs.scan(cell, params, jnp.ones((2, 3)), xs)),
        around(lambda params: lax.scan(functools.partial(cell, params), jnp.ones((2, 3)), xs)),
    ]
    ours, plain = (jax.jit(derivative(run)).lower(jnp.eye(3)).compile().as_text().count(" while(") for run in runs)
    assert ours == plain > 0


def test_a_cell_whose_own_rule_has_no_forward_mode_says_so_in_jax_words():
    @jax.custom_vjp
    def rule(value):
        return jnp.tanh(value)

    rule.defvjp(lambda value: (rule(value), value), lambda value, ct: (ct * (1 - jnp.tanh(value) ** 2),))
    run = lambda xs: rs.scan(lambda _, carry, x: (rule(carry + x),) * 2, None, jnp.zeros(3), xs)[1].sum()  # noqa: E731
    xs = jnp.ones((4, 3))
    assert jax.grad(run)(xs).shape == xs.shape
    with pytest.raises(TypeError, match="custom_vjp"):
        jax.jvp(run, (xs,), (xs,))


@pytest.mark.core("derivatives")
def test_forward_mode_of_forward_mode_has_no_batch_axis_too_many(x64):
    """`jax.jacfwd` rejects a value with the axis of its tangents."""
    cell = cells.RNN(4)
    (params, carry, xs), _ = arguments(cell)

    def total(run, bias):
        return run({**params, "bias": bias}, carry, xs)[1].sum()

    found, wanted = (
        jax.jacfwd(jax.jacfwd(functools.partial(total, run)))(params["bias"])
        for run in (by_fission(cell, rs.Memory(), None), by_plain_scan(cell, None))
    )
    assert_close(found, wanted)
