"""scan() in JAX's modes: strict promotion, guards of transfers, and without jit. Each works as with `lax.scan`."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import rnnscan as rs
from scanned import MEMORIES, value_and_gradients
from slow_reference import arguments, assert_close, cell, loss
from tiers import variants


ENGINES = variants(["auto", "lax"], ["auto"])
DTYPES = [jnp.float32, jnp.float64, jnp.bfloat16, jnp.float16, jnp.complex64, jnp.complex128]
TOLERANCES = {2: 3e-2, 4: 2e-5, 8: 1e-5, 16: 1e-10}


# ---- strict promotion


def recurrence(params, carry, x):
    hidden = jnp.tanh(params["kernel"] @ carry["hidden"] + params["bias"] * x)
    return {"hidden": hidden, "count": carry["count"] + jnp.int32(1)}, hidden


def draw(dtype, *shape, seed):
    random = np.random.default_rng(seed)
    values = random.normal(size=shape) + 1j * random.normal(size=shape)
    return jnp.asarray(values if jnp.issubdtype(dtype, jnp.complexfloating) else values.real).astype(dtype) / 2


@pytest.mark.core("dtypes")
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("memory", [rs.Memory(), rs.Memory(recompute="all"), rs.Memory(segment=3)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: jnp.dtype(dtype).name)
def test_gradients_of_all_dtypes_under_strict_promotion(dtype, memory, engine):
    params = {"kernel": draw(dtype, 3, 3, seed=0), "bias": draw(dtype, 3, seed=1)}
    carry, xs = {"hidden": draw(dtype, 3, seed=2), "count": jnp.int32(0)}, draw(dtype, 7, 3, seed=3)

    def plain(params, carry, xs):
        return lax.scan(functools.partial(recurrence, params), carry, xs)

    def gradients(run):
        def loss(params, hidden, xs):
            final, ys = run(params, carry | {"hidden": hidden}, xs)
            return jnp.sum(jnp.abs(final["hidden"])) + jnp.sum(jnp.abs(ys))

        return jax.jit(jax.grad(loss, argnums=(0, 1, 2)))(params, carry["hidden"], xs)

    with jax.numpy_dtype_promotion("strict"):
        actual = gradients(functools.partial(rs.scan, recurrence, memory=memory, engine=engine))
        expected = gradients(plain)
    tolerance = TOLERANCES[jnp.dtype(dtype).itemsize // (2 if jnp.issubdtype(dtype, jnp.complexfloating) else 1)]
    for own, leaf in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert own.dtype == leaf.dtype == dtype
        wide = jnp.result_type(dtype, jnp.complex128)
        assert np.any(np.asarray(leaf, wide))
        scale = np.max(np.abs(np.asarray(leaf, wide)))
        np.testing.assert_allclose(np.asarray(own, wide), np.asarray(leaf, wide), rtol=0, atol=tolerance * scale)


OPTIONS = {"none": {}, "lengths": {"seq_lengths": (2, 6)}, "truncated": {"truncate": 3}}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("options", "choice"),
    variants(
        {f"{name}, {choice}": (OPTIONS[name], choice) for name in OPTIONS for choice in MEMORIES},
        [*(f"{name}, keep names" for name in OPTIONS), "lengths, nested segments"],
    ),
)
def test_options_under_strict_promotion(options, choice):
    params, carry, xs = arguments(0, 7, 2)
    xs["token"] = xs["token"].astype(carry["count"].dtype)
    if "seq_lengths" in options:
        options = {"seq_lengths": jnp.array(options["seq_lengths"])}
    run = functools.partial(rs.scan, cell, memory=MEMORIES[choice], **options)
    expected = value_and_gradients(run, params, carry, xs)
    with jax.numpy_dtype_promotion("strict"):
        assert_close(value_and_gradients(run, params, carry, xs), expected)


# ---- transfers


@pytest.mark.core("modes of JAX")
@pytest.mark.parametrize("choice", variants(MEMORIES.keys(), ["plain autodiff", "keep names", "segments"]))
def test_nothing_moves_to_the_device_in_an_eager_scan(choice):
    given = arguments(0, 7, 2)
    run = functools.partial(rs.scan, cell, memory=MEMORIES[choice])
    expected = run(*given)
    with jax.transfer_guard("disallow"):
        assert_close(run(*given), expected)
        # Without a cached program.
        fresh = functools.partial(rs.scan, lambda params, carry, x: cell(params, carry, x), memory=MEMORIES[choice])
        assert_close(fresh(*given), expected)


@pytest.mark.core("modes of JAX")
@pytest.mark.parametrize("engine", ENGINES)
def test_nothing_moves_to_the_device_in_a_gradient(engine):
    params, carry, xs = jnp.float32(0.5), jnp.ones(3), jnp.linspace(0, 1, 21).reshape(7, 3)
    hidden = lambda params, carry, x: (jnp.tanh(params * carry + x),) * 2  # noqa: E731

    def closed(params):
        return rs.scan(lambda _, carry, x: hidden(params, carry, x), None, carry, xs, engine=engine)[0].sum()

    def opened(params):
        return rs.scan(hidden, params, carry, xs, engine=engine)[0].sum()

    def plain(params):
        return lax.scan(lambda carry, x: hidden(params, carry, x), carry, xs)[0].sum()

    expected = jax.grad(plain)(params)
    with jax.transfer_guard("disallow"):
        actual = [jax.jit(jax.grad(run))(params) for run in (plain, closed, opened)]
    assert_close(actual, [expected] * 3)


# ---- without jit


def branching(params, carry, x):
    """A step that needs values, and counts its calls."""
    params["calls"].append(float(x))
    return (carry * params["decay"] + x if float(carry) > 0 else carry - 1.0), carry


XS = jnp.array([0.5, -3.0, 1.0, 0.25])


@pytest.mark.core("modes of JAX")
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("memory", [None, rs.Memory(), rs.Memory(recompute="all"), rs.Memory(segment=2)], ids=str)
@pytest.mark.parametrize("engine", ["auto", "lax"])
def test_without_jit_a_cell_runs_on_values_once_a_step(memory, reverse, engine):
    calls, carry, decay = [], jnp.float32(1.0), jnp.float32(0.9)

    def plain(decay):
        step = lambda carry, x: branching({"calls": [], "decay": decay}, carry, x)  # noqa: E731
        return lax.scan(step, carry, XS, reverse=reverse)

    def run(decay):
        step = lambda _, carry, x: branching({"calls": calls, "decay": decay}, carry, x)  # noqa: E731
        return rs.scan(step, None, carry, XS, reverse=reverse, memory=memory, engine=engine)

    with jax.disable_jit():
        assert_close(run(decay), plain(decay))
        assert calls == [*map(float, XS[::-1] if reverse else XS)]


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    "options",
    variants(
        {
            "none": {},
            "lengths": {"seq_lengths": jnp.array([2, 5, 0])},
            "held": {"seq_lengths": jnp.array([2, 5, 0]), "padding": "hold", "reverse": True},
            "truncated": {"truncate": 2},
            "reset": {"reset": jnp.zeros((5, 3), bool).at[2, 1].set(True)},
        },
        ["held", "truncated", "reset"],
    ),
)
def test_options_without_jit(options):
    params, carry, xs = arguments(0, 5, 3)
    if "reset" in options:
        options = options | {"reset_to": arguments(1, 5, 3)[1]}
    run = functools.partial(rs.scan, cell, **options)
    expected = value_and_gradients(run, params, carry, xs)
    with jax.disable_jit():
        assert_close(value_and_gradients(run, params, carry, xs, jit=False), expected)


def test_a_shared_carry_and_python_numbers_without_jit():
    step = lambda params, carry, x: ((carry[0] * params + x, carry[1] + 1), carry[0])  # noqa: E731
    run = lambda: rs.scan(step, 0.5, (jnp.array([1.0, 2.0]), 0), jnp.arange(24.0).reshape(4, 3, 2))  # noqa: E731
    expected = run()
    with jax.disable_jit():
        actual = run()
    assert_close(actual, expected)
    assert [leaf.dtype for leaf in jax.tree.leaves(actual)] == [leaf.dtype for leaf in jax.tree.leaves(expected)]


@pytest.mark.core("modes of JAX")
def test_errors_without_jit_are_those_with_it():
    params, carry, xs = arguments(0, 5, 3)
    wrong = lambda params, carry, x: (carry | {"hidden": carry["hidden"].astype(jnp.int32)}, None)  # noqa: E731
    with pytest.raises(TypeError) as expected:
        rs.scan(wrong, params, carry, xs)
    with jax.disable_jit(), pytest.raises(TypeError) as actual:
        rs.scan(wrong, params, carry, xs)
    assert str(actual.value) == str(expected.value)
    with jax.disable_jit(), pytest.raises(ValueError, match="Did you mean 'gate'"):
        rs.scan(cell, params, carry, xs, memory=rs.Memory(recompute=("gat",)))


@pytest.mark.core("modes of JAX")
@pytest.mark.usefixtures("x64")
def test_gradients_without_jit_are_those_with_it():
    given = arguments(0, 5, 2)
    gradient = jax.grad(lambda params: loss(rs.scan(cell, params, *given[1:], memory=rs.Memory(segment=2))))
    expected = gradient(given[0])
    with jax.disable_jit():
        assert_close(gradient(given[0]), expected)
