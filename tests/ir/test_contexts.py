"""Equations keep their context in every plan: named scopes, source lines, random-bit modes, places and metadata."""

import inspect
import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental.compute_on import compute_on
from jax.experimental.xla_metadata import set_xla_metadata
from jax.sharding import NamedSharding, PartitionSpec

import rnnscan as rs


STEPS = jnp.linspace(-1.0, 1.0, 9 * 2 * 3).reshape(9, 2, 3)
MEMORIES = {"default": rs.Memory(), "all": rs.Memory(recompute="all"), "sqrt": rs.Memory(segment="sqrt"), "none": None}
CASES = [("grad", name) for name in MEMORIES] + [("value", "default"), ("jvp", "default")]
TRANSFORMS = {
    "value": lambda loss: loss,
    "grad": jax.grad,
    "jvp": lambda loss: lambda kernel: jax.jvp(loss, (kernel,), (kernel,))[1],
}


@pytest.fixture(params=CASES, ids=lambda case: "-".join(case))
def lowered(request):
    """`lowered(step)`: the program of a function of the kernel, with scopes and lines."""
    transform, memory = request.param

    def text(step, loss=None):
        loss = loss or loss_of(step, MEMORIES[memory])
        return jax.jit(TRANSFORMS[transform](loss)).lower(jnp.eye(3)).as_text(debug_info=True)

    limit = jax.config.jax_traceback_in_locations_limit
    jax.config.update("jax_traceback_in_locations_limit", 10)
    yield text
    jax.config.update("jax_traceback_in_locations_limit", limit)


def loss_of(step, memory):
    return lambda kernel: rs.scan(step, kernel, jnp.zeros((2, 3)), STEPS, memory=memory)[1].sum()


def plain_loss_of(step):
    return lambda kernel: lax.scan(partial(step, kernel), jnp.zeros((2, 3)), STEPS)[1].sum()


def split_step(kernel, hidden, x):
    """A step of two parts: one batched over time, and one in the loop."""
    with jax.named_scope("parallel_part"):
        drive = jnp.sin(x @ kernel)
    with jax.named_scope("recurrent_part"):
        hidden = jnp.tanh(hidden @ kernel + drive)
    return hidden, hidden


LINES, FIRST_LINE = inspect.getsourcelines(split_step)
LINE_OF_SIN, LINE_OF_TANH = (
    FIRST_LINE + next(place for place, line in enumerate(LINES) if word in line) for word in ("jnp.sin", "jnp.tanh")
)


def test_named_scopes_and_source_lines_reach_the_program(lowered):
    text = lowered(split_step)
    assert re.search(r'loc\("[^"]*recurrent_part\)*/(tanh|mul|sub|dot_general)', text)
    assert re.search(r'loc\("[^"]*parallel_part\)*/(sin|cos|dot_general)', text)
    for line in (LINE_OF_SIN, LINE_OF_TANH):
        assert f'test_contexts.py":{line}:' in text


def named_step(kernel, hidden, x):
    drive = rs.name(x @ kernel, "drive")
    hidden = jnp.tanh(hidden @ kernel + drive)
    return hidden, rs.name(jnp.sin(hidden), "seen")


@pytest.mark.parametrize("lowered", [case for case in CASES if case[1] != "none"], indirect=True)
def test_cells_and_names_are_scopes(lowered):
    text = lowered(named_step)
    assert re.search(r'loc\("[^"]*named_step\)*/', text)
    # The product is what the first name needs, and the other product what the second needs beside it.
    assert re.search(r'loc\("[^"]*drive\)*/dot_general', text)
    assert re.search(r'loc\("[^"]*seen\)*/(dot_general|tanh|sin|cos)', text)
    assert not re.search(r'loc\("[^"]*drive\)*/(tanh|sin|cos)', text)


def test_plain_autodiff_has_the_scope_of_the_cell_alone():
    text = jax.jit(jax.grad(loss_of(named_step, None))).lower(jnp.eye(3)).as_text(debug_info=True)
    assert "named_step" in text
    assert not re.search(r"\b(drive|seen)\)*/", text)


def test_scopes_of_calls_within_a_step_are_paths():
    @jax.jit
    def inner(x):
        with jax.named_scope("inside"):
            return jnp.tanh(x)

    def step(kernel, hidden, x):
        with jax.named_scope("around"):
            hidden = inner(hidden @ kernel + x)
        return hidden, hidden

    for transform, path in (("value", "around/inside/tanh"), ("grad", r"transpose\(jvp\(around\)\)/inside/mul")):
        text = jax.jit(TRANSFORMS[transform](loss_of(step, rs.Memory()))).lower(jnp.eye(3)).as_text(debug_info=True)
        assert re.search(path, text)


def test_an_error_within_a_transformed_step_shows_the_line_of_the_step():
    def step(kernel, hidden, x):
        hidden = jax.pure_callback(np.asarray, jax.ShapeDtypeStruct(hidden.shape, hidden.dtype), hidden @ kernel + x)
        return hidden, hidden

    with pytest.raises(ValueError, match="Pure callbacks do not support JVP") as actual:
        jax.grad(loss_of(step, rs.Memory()))(jnp.eye(3))
    causes, error = [], actual.value
    while error is not None:
        causes.append(error)
        error = error.__cause__
    frames = [frame for cause in causes for frame in _frames(cause.__traceback__)]
    line = inspect.getsourcelines(step)[1] + 1
    assert (__file__, line) in frames


def _frames(traceback):
    while traceback is not None:
        yield traceback.tb_frame.f_code.co_filename, traceback.tb_lineno
        traceback = traceback.tb_next


def draws_in_the_loop(_, key, x):
    with jax.threefry_partitionable(False):
        drawn = jax.random.uniform(key, (3,))
    with jax.threefry_partitionable(True):
        drawn += jax.random.uniform(key, (3,))
    return jax.random.fold_in(key, 1), drawn * x.sum()


def draws_batched_over_time(_, carry, x):
    key = jax.random.fold_in(jax.random.key(1), x[0, 0].astype(int))
    with jax.threefry_partitionable(False):
        drawn = jax.random.uniform(key, (3,))
    return carry, drawn + jax.random.uniform(key, (3,))


def draws_by_another_generator(_, carry, x):
    with jax.default_prng_impl("rbg"):
        key = jax.random.key(3)
    return carry + 1, jax.random.uniform(jax.random.fold_in(key, carry), (3,)) * x.sum()


@pytest.mark.parametrize("memory", ["default", "sqrt"])
@pytest.mark.parametrize(
    ("step", "carry"),
    [
        (draws_in_the_loop, jax.random.key(0)),
        (draws_batched_over_time, jnp.zeros(2)),
        (draws_by_another_generator, 0),
    ],
)
@pytest.mark.core("contexts of operations")
def test_random_bits_are_those_of_lax_scan(step, carry, memory):
    actual = rs.scan(step, None, carry, STEPS, memory=MEMORIES[memory])[1]
    np.testing.assert_array_equal(actual, lax.scan(partial(step, None), carry, STEPS)[1])


def test_the_backward_pass_draws_the_bits_of_the_forward_pass():
    """A step that is traced under a random-bit mode keeps it where JAX differentiates it later."""

    def step(kernel, hidden, x):
        noise = jax.random.uniform(jax.random.fold_in(jax.random.key(0), x[0, 0].astype(int)), (3,))
        hidden = jnp.tanh(hidden @ kernel * noise + x)
        return hidden, hidden

    gradients = []
    for loss in (loss_of(step, rs.Memory(recompute="all")), plain_loss_of(step)):
        with jax.threefry_partitionable(False):
            _, backward = jax.vjp(loss, jnp.eye(3))
        gradients.append(backward(1.0)[0])
    np.testing.assert_allclose(*gradients, rtol=1e-5)


def test_equations_under_different_random_bit_modes_are_not_merged():
    def step(_, key, x):
        with jax.threefry_partitionable(False):
            old = jax.random.uniform(key, (3,))
        with jax.threefry_partitionable(True):
            new = jax.random.uniform(key, (3,))
        return jax.random.fold_in(key, 1), (old, new)

    old, new = rs.scan(step, None, jax.random.key(0), STEPS)[1]
    assert not np.array_equal(old, new)
    graph = rs.graph.trace(lambda key, x: step(None, key, x), jax.random.key(0), STEPS[0])
    _, (old, new) = rs.graph.merge_common(graph).to_cell()(jax.random.key(0), STEPS[0])
    assert not np.array_equal(old, new)


def test_xla_metadata_reaches_the_program(lowered):
    def step(kernel, hidden, x):
        with set_xla_metadata(mark="parallel"):
            drive = jnp.sin(x @ kernel)
        with set_xla_metadata(mark="recurrent"):
            hidden = jnp.tanh(hidden @ kernel + drive)
        return hidden, hidden

    text = lowered(step)
    assert 'mark = "parallel"' in text
    assert 'mark = "recurrent"' in text


def on_host(function):
    if "f" in inspect.signature(compute_on).parameters:  # jax 0.11 and later.
        return compute_on(function, compute_type="device_host", out_memory_spaces=jax.memory.Space.Device)

    def run(*operands):
        with compute_on("device_host"):
            return function(*operands)

    return run


def test_work_on_the_host_is_marked_so_in_the_program(lowered):
    def step(kernel, hidden, x):
        drive = on_host(lambda x, kernel: jnp.sin(x @ kernel))(x, kernel)
        hidden = jnp.tanh(hidden @ kernel + drive)
        return hidden, hidden

    mark = '_xla_compute_type = "host"'
    assert mark in lowered(step, plain_loss_of(step))
    assert mark in lowered(step)


def test_shardings_of_an_inner_jit_reach_the_program(lowered):
    sharding = NamedSharding(jax.make_mesh((1,), ("rows",)), PartitionSpec("rows"))

    def step(kernel, hidden, x):
        drive = jax.jit(lambda x: jnp.sin(x @ kernel), out_shardings=sharding)(x)
        hidden = jax.jit(jnp.tanh, in_shardings=sharding)(hidden @ kernel + drive)
        return hidden, hidden

    assert '"rows"' in lowered(step, plain_loss_of(step))
    assert '"rows"' in lowered(step)


@pytest.mark.parametrize("memory", MEMORIES)
def test_a_step_with_several_contexts_has_the_gradient_of_lax_scan(memory):
    sharding = NamedSharding(jax.make_mesh((1,), ("rows",)), PartitionSpec("rows"))

    def step(kernel, hidden, x):
        with jax.named_scope("host"):
            drive = on_host(lambda x, kernel: jnp.sin(x @ kernel))(x, kernel)
        with set_xla_metadata(mark="recurrent"):
            hidden = jax.jit(jnp.tanh, out_shardings=sharding)(hidden @ kernel + drive + x @ kernel)
        return hidden, hidden

    actual, expected = (jax.grad(loss)(jnp.eye(3)) for loss in (loss_of(step, MEMORIES[memory]), plain_loss_of(step)))
    np.testing.assert_allclose(actual, expected, rtol=1e-5)
