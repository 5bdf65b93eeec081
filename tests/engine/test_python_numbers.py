"""Numbers in place of arrays: JAX hands the rules of primitives such a number as a literal, without a shape."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import rnnscan as rs
from tiers import variants


NUMBERS = {
    "int": 2,
    "float": 0.5,
    "bool": True,
    "complex": 0.5 + 0.25j,
    "int32": np.int32(2),
    "int64": np.int64(2),
    "float32": np.float32(0.5),
    "float64": np.float64(0.5),
    "bool_": np.bool_(True),
    "array without axes": np.array(0.5, np.float32),
    "array": np.array([0.5, 0.25, 0.125], np.float32),
}
PARAMS, HIDDEN = jnp.linspace(0.5, 1.0, 3), jnp.linspace(0.1, 0.3, 3)
ROWS = jnp.linspace(-1.0, 1.0, 24).reshape(2, 4, 3)


def real(number):
    return jnp.real(jnp.asarray(number) * 1)


def next_number(number):
    number = jnp.asarray(number)
    return number + 1 if jnp.issubdtype(number.dtype, jnp.integer) else number if number.dtype == bool else number * 0.9


def in_the_carry(scan, number, params, xs, hidden):
    """One leaf that changes, and one that does not."""

    def cell(params, carry, x):
        changes, stays, hidden = carry
        hidden = jnp.tanh(hidden * params + x * real(stays) + real(changes))
        return (next_number(changes), stays, hidden), hidden * real(changes)

    return scan(cell, params, (number, number, hidden), xs)


def in_the_params(scan, number, params, xs, hidden):
    def cell(params, hidden, x):
        hidden = jnp.tanh(hidden * params[0] + x * real(params[1]))
        return hidden, hidden

    return scan(cell, (params, number), hidden, xs)


def closed_over(scan, number, params, xs, hidden):
    return in_the_params(
        lambda cell, _, *rest: scan(lambda own, *args: cell((own, number), *args), params, *rest),
        number,
        params,
        xs,
        hidden,
    )


PLACES = {"carry": in_the_carry, "params": in_the_params, "closure": closed_over}


def over_rows(run):
    return jax.vmap(run, in_axes=(None, 0, None))


ORDERS = {
    "grad of vmap of jit": lambda run: jax.grad(lambda *args: over_rows(jax.jit(run))(*args).sum(), argnums=(0, 1, 2)),
    "vmap of grad of jit": lambda run: over_rows(jax.grad(jax.jit(run), argnums=(0, 2))),
    "jit of jvp of vmap of jit": lambda run: jax.jit(lambda *args: jax.jvp(over_rows(jax.jit(run)), args, args)),
    "hessian of jit": lambda run: lambda params, xs, hidden: jax.hessian(jax.jit(run))(params, xs[0], hidden),
    "jacfwd of vmap of checkpoint": lambda run: jax.jacfwd(over_rows(jax.checkpoint(run)), argnums=2),
    "vmap of linearize of jit": lambda run: over_rows(
        lambda params, xs, hidden: jax.linearize(lambda params: jax.jit(run)(params, xs, hidden), params)[1](params)
    ),
    "vmap of a loop": lambda run: over_rows(
        lambda *args: lax.scan(lambda carry, _: (carry, run(*args)), 0, None, length=1)[1][0]
    ),
    "grad of checkpoint of vmap": lambda run: jax.grad(lambda *args: jax.checkpoint(over_rows(run))(*args).sum()),
}


def plain(cell, params, carry, xs):
    return lax.scan(partial(cell, params), carry, xs)


def total(results):
    return sum(jnp.sum(real(leaf) * 0.1) for leaf in jax.tree.leaves(results))


EVERY = {
    f"{order}, {number}, {place}": (ORDERS[order], NUMBERS[number], PLACES[place])
    for order in ORDERS
    for number in NUMBERS
    for place in PLACES
}
# Each order, each number, and mostly the carry.
QUICK = [
    *(f"{order}, {('int', 'float')[i % 2]}, carry" for i, order in enumerate(ORDERS)),
    *(f"{order}, {number}, carry" for order, number in zip(ORDERS, [*NUMBERS][2:8], strict=False)),
    *("hessian of jit, bool_, carry", "grad of vmap of jit, float, params", "grad of vmap of jit, int, closure"),
]


@pytest.mark.parametrize(("order", "number", "place"), variants(EVERY, QUICK))
def test_numbers_are_arrays_in_every_order(order, number, place):
    def results(scan):
        return order(lambda *args: total(place(scan, number, *args)))(PARAMS, ROWS, HIDDEN)

    ours, expected = results(rs.scan), results(plain)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=2e-4, atol=1e-6), ours, expected)


def reset_to_a_number(number, params, xs, hidden):
    def cell(params, carry, x):
        hidden = jnp.tanh(carry[0] * params + x)
        return (hidden, carry[1]), hidden * carry[1]

    reset = jnp.array([False, True, False, True])
    return rs.scan(cell, params, (hidden, number), xs, reset=reset, reset_to=(hidden, number))


def while_net(number, params, xs, hidden):
    def body(params, carry):
        return carry[0] + 1, jnp.tanh(carry[1] * params[0] + real(params[1])), carry[2]

    return rs.while_net(lambda _, carry: carry[0] < 3, body, (0, hidden, number), params=(params, number), max_steps=4)[
        0
    ]


def scan_until(number, params, xs, hidden):
    def cell(params, carry, x):
        hidden = jnp.tanh(carry[0] * params[0] + x * real(params[1]))
        return (hidden, carry[1] + 1, carry[2]), hidden * real(carry[2])

    stop = lambda params, carry, y: carry[1] > 2  # noqa: E731
    return rs.scan_until(cell, (params, number), (hidden, 0, number), xs, stop, max_steps=4)[:2]


def cond_net(number, params, xs, hidden):
    def on_true(params, hidden, number):
        return {"hidden": hidden * params[0] * real(number)}

    return rs.cond_net(xs.sum() > 0, on_true, None, (params, number), {"hidden": hidden, "number": number})


def do_net(number, params, xs, hidden):
    net = rs.do_net(
        lambda params, own, factor: {"own": own * params[0] * real(factor)}, {"own": "hidden", "factor": "f"}
    )
    return net((params, number), hidden=hidden, f=number)


def recurrent_net(number, params, xs, hidden):
    def cell_net(params, input_t, hidden_t_prev, count_t_prev):
        hidden = jnp.tanh(hidden_t_prev * params[0] + input_t * real(params[1]))
        return {"hidden_t": hidden, "count_t": next_number(count_t_prev)}

    return rs.recurrent_net(
        cell_net,
        (params, number),
        inputs={"input_t": xs[:, None]},
        initial_cell_inputs={"hidden_t_prev": hidden[None], "count_t_prev": number},
        links={"hidden_t_prev": "hidden_t", "count_t_prev": "count_t"},
    )


OTHERS = {one.__name__: one for one in (reset_to_a_number, while_net, scan_until, cond_net, do_net, recurrent_net)}
FEW_ORDERS = {name: ORDERS[name] for name in ("grad of vmap of jit", "hessian of jit", "jacfwd of vmap of checkpoint")}
FEW_NUMBERS = {name: NUMBERS[name] for name in ("int", "float", "float32")}


@pytest.mark.parametrize(
    ("other", "order", "number"),
    variants(
        {
            f"{other}, {order}, {number}": (OTHERS[other], FEW_ORDERS[order], FEW_NUMBERS[number])
            for other in OTHERS
            for order in FEW_ORDERS
            for number in FEW_NUMBERS
        },
        [*(f"{other}, grad of vmap of jit, int" for other in OTHERS), "while_net, jacfwd of vmap of checkpoint, float"],
    ),
)
def test_other_loops_take_numbers_for_arrays(other, order, number):
    def results(value):
        return order(lambda *args: total(other(value, *args)))(PARAMS, ROWS, HIDDEN)

    ours, expected = results(number), results(jnp.asarray(number))
    jax.tree.map(partial(np.testing.assert_allclose, rtol=2e-4, atol=1e-6), ours, expected)
