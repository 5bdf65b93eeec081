"""JAX's errors name the user's function, arguments and line, as they do for `lax.scan`."""

import inspect
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import rnnscan as rs


HIDDEN, STEPS = jnp.zeros((2, 3)), jnp.ones((5, 2, 3))


def branches(kernel, hidden, x):
    hidden = jnp.tanh(hidden @ kernel + x)
    return (hidden, hidden) if hidden.sum() > 0 else (-hidden, hidden)


def indexes(kernel, hidden, x):
    hidden = jnp.tanh(hidden @ kernel + x)
    return hidden, [hidden, -hidden][hidden.sum().astype(int)]


def converts(kernel, hidden, x):
    return jnp.asarray(np.asarray(hidden @ kernel + x)), hidden


def concretizes(kernel, hidden, x):
    return hidden * float((hidden @ kernel + x).sum()), hidden


def place_of(function):
    return f"{function.__name__} at {__file__}:{inspect.getsourcelines(function)[1]}"


def scan(step, **options):
    return rs.scan(step, jnp.eye(3), HIDDEN, STEPS, **options)


def message_of(run, errors=Exception):
    with pytest.raises(errors) as error:
        run()
    return str(error.value)


@pytest.mark.parametrize("step", [branches, indexes, converts, concretizes])
@pytest.mark.parametrize("options", [{}, {"memory": None}, {"engine": "lax"}, {"seq_lengths": jnp.array([3, 5])}])
def test_an_error_for_a_traced_value_names_the_step(step, options):
    expected = message_of(lambda: lax.scan(partial(step, jnp.eye(3)), HIDDEN, STEPS))
    actual = message_of(lambda: scan(step, **options), jax.errors.JAXTypeError)
    assert place_of(step) in expected
    assert place_of(step) in actual
    for words in ("arguments", "argument hidden", "argument x"):
        assert (words in actual) == (words in expected)
    assert "rnnscan" not in actual.replace(__file__, "")


@pytest.mark.parametrize("options", [{}, {"memory": None}, {"memory": rs.Memory(segment="sqrt")}])
@pytest.mark.parametrize("transform", [lambda run: run, jax.grad])
def test_a_leaked_tracer_names_the_step_and_the_line(options, transform):
    leaked = []

    def leaks(kernel, hidden, x):
        hidden = jnp.tanh(hidden @ kernel + x)
        leaked.append(hidden)
        return hidden, hidden

    def run(kernel):
        return rs.scan(leaks, kernel, HIDDEN, STEPS, **options)[1].sum()

    transform(run)(jnp.eye(3))
    line = inspect.getsourcelines(leaks)[1] + 1
    for tracer in leaked:
        message = message_of(lambda tracer=tracer: tracer + 1, jax.errors.UnexpectedTracerError)
        assert place_of(leaks) in message
        assert f"created on line {__file__}:{line}" in message
        assert "rnnscan" not in message.replace(__file__, "")


class Cell:
    """A cell that is an object."""

    def __call__(self, kernel, hidden, x):
        return branches(kernel, hidden, x)

    def initial_carry(self, x):
        return HIDDEN


def named_values(kernel, input_t, hidden_t_prev):
    return {"hidden_t": branches(kernel, hidden_t_prev, input_t)[0]}


def body(kernel, hidden):
    return branches(kernel, hidden, STEPS[0])[0]


def holds(kernel, hidden):
    return bool((hidden @ kernel).sum() < 3)


def decoder(kernel, hidden, token):
    return branches(kernel, hidden, token[:, None])


def named_operand(kernel, hidden):
    return {"hidden": body(kernel, hidden)}


KERNEL = jnp.eye(3)
CALLS = {
    "partial": (branches, lambda: scan(partial(partial(branches)))),
    "method": (Cell.__call__, lambda: scan(Cell().__call__)),
    "object": (Cell.__call__, lambda: scan(Cell())),
    "key": (Cell.__call__, lambda: scan(Cell(), key=jax.random.key(0))),
    "reset": (branches, lambda: scan(branches, reset=jnp.zeros((5, 2), bool), reset_to=HIDDEN)),
    "recurrent_net": (
        named_values,
        lambda: rs.recurrent_net(
            named_values,
            KERNEL,
            inputs={"input_t": STEPS},
            initial_cell_inputs={"hidden_t_prev": HIDDEN},
            links={"hidden_t_prev": "hidden_t"},
        ),
    ),
    "body": (
        body,
        lambda: rs.while_net(lambda kernel, hidden: hidden.sum() < 3, body, HIDDEN, params=KERNEL, max_steps=4),
    ),
    "cond": (holds, lambda: rs.while_net(holds, lambda kernel, hidden: hidden + 1, HIDDEN, params=KERNEL, max_steps=4)),
    "scan_until": (
        branches,
        lambda: rs.scan_until(branches, KERNEL, HIDDEN, STEPS, lambda kernel, hidden, y: hidden.sum() > 3, max_steps=5),
    ),
    "cond_net": (named_operand, lambda: rs.cond_net(True, named_operand, None, KERNEL, {"hidden": HIDDEN})),
    "do_net": (
        named_operand,
        lambda: rs.cond_net(True, rs.do_net(named_operand, {"hidden": "outer"}), None, KERNEL, {"outer": HIDDEN}),
    ),
    "decode": (
        decoder,
        lambda: rs.decode(decoder, KERNEL, HIDDEN, start=jnp.zeros(2, int), end=None, max_steps=3),
    ),
}


@pytest.mark.parametrize("call", CALLS)
def test_every_way_to_run_a_step_names_it(call):
    function, run = CALLS[call]
    assert place_of(function) in message_of(run, jax.errors.TracerBoolConversionError)


def log_of_negative(kernel, hidden, x):
    hidden = jnp.tanh(hidden @ kernel + x)
    hidden = jnp.log(hidden - 2)
    return hidden, hidden


def log_in_parallel(kernel, hidden, x):
    drive = jnp.log(x - 2)
    hidden = jnp.tanh(hidden @ kernel + drive)
    return hidden, hidden


def late(kernel, hidden, x):
    hidden = hidden + jax.nn.sigmoid(x)
    return hidden, jnp.sqrt(3 - hidden) @ kernel


def root_at_zero(kernel, hidden, x):
    hidden = jnp.tanh(hidden @ kernel + x)
    return hidden, jnp.sqrt(hidden * 0)


def loss(step, memory=rs.Memory()):
    return lambda kernel: scan_with(step, kernel, memory)[1].sum()


def scan_with(step, kernel, memory):
    return rs.scan(step, kernel, HIDDEN, STEPS, memory=memory)


def value(run):
    return run


def jitted_gradient(run):
    return jax.jit(jax.grad(run))


def tangent(run):
    return lambda kernel: jax.jvp(run, (kernel,), (kernel,))


@pytest.mark.parametrize(
    ("step", "primitive", "line", "transform", "memory"),
    [
        (log_of_negative, "log", 2, value, rs.Memory()),
        (log_of_negative, "log", 2, jax.jit, rs.Memory()),
        (log_of_negative, "log", 2, jax.grad, rs.Memory(recompute="all")),
        (log_of_negative, "log", 2, jitted_gradient, rs.Memory(segment="sqrt")),
        (log_of_negative, "log", 2, partial(jax.vmap, axis_size=2, in_axes=None), rs.Memory()),
        (log_in_parallel, "log", 1, value, rs.Memory()),
        (late, "sqrt", 2, value, rs.Memory()),
        (root_at_zero, "mul", 2, jax.grad, rs.Memory()),
        (root_at_zero, "mul", 2, jitted_gradient, rs.Memory(recompute="all")),
        (root_at_zero, "mul", 2, tangent, rs.Memory()),
    ],
)
def test_debug_nans_names_the_operation_and_the_line(step, primitive, line, transform, memory):
    with jax.debug_nans(True):
        message = message_of(lambda: transform(loss(step, memory))(jnp.eye(3)), FloatingPointError)
    line += inspect.getsourcelines(step)[1]
    assert message.startswith(f"invalid value (nan) encountered in {primitive}, from {__file__}:{line}")
    assert step.__name__ in message


def test_debug_infs_names_the_operation_and_the_line():
    def step(kernel, hidden, x):
        hidden = jnp.exp(hidden @ kernel + 10 * x)
        return hidden, hidden

    with jax.debug_infs(True):
        message = message_of(lambda: loss(step)(jnp.eye(3)), FloatingPointError)
    line = inspect.getsourcelines(step)[1] + 1
    assert message.startswith(f"invalid value (inf) encountered in exp, from {__file__}:{line}")


def test_debug_nans_searches_loops_and_branches_of_a_step():
    def step(kernel, hidden, x):
        def divide(values):
            return lax.fori_loop(0, 3, lambda index, values: jnp.sqrt(values - index), values)

        hidden = lax.cond(hidden.sum() < 100, divide, lambda values: values, hidden @ kernel + x)
        return hidden, hidden

    with jax.debug_nans(True):
        message = message_of(lambda: loss(step)(jnp.eye(3)), FloatingPointError)
    line = inspect.getsourcelines(step)[1] + 2
    assert message.startswith(f"invalid value (nan) encountered in sqrt, from {__file__}:{line}")


def test_debug_nans_raises_nothing_for_a_value_that_a_step_discards():
    def step(kernel, hidden, x):
        hidden = jnp.where(hidden > 5, jnp.log(hidden - 5), jnp.tanh(hidden @ kernel + x))
        return hidden, hidden

    with jax.debug_nans(True):
        assert np.isfinite(loss(step)(jnp.eye(3)))
        assert np.isfinite(lax.scan(partial(step, jnp.eye(3)), HIDDEN, STEPS)[1].sum())
