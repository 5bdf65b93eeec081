"""Named values in host memory, under the fission engine."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend import core

import rnnscan as rs
from tiers import variants


pytestmark = pytest.mark.filterwarnings("ignore:scan. offload:UserWarning")
OFFLOAD = rs.Memory(offload=("gates",))
CELLS = {
    "lstm": (rs.cells.LSTM(4), {}),
    "remainder, reversed": (rs.cells.LSTM(4), {"length": 19, "reverse": True}),
    "one chunk of all": (rs.cells.GRU(4), {"length": 3}),
    "matrix state": (rs.cells.MLSTM(32, heads=2), {"length": 32}),
}


def arguments(cell, length=16, **_):
    random = np.random.default_rng(0)
    params = jax.tree.map(lambda leaf: leaf + 0.3 * random.normal(size=leaf.shape), cell.init(jax.random.key(0), 3))
    return params, jnp.asarray(random.normal(size=(length, 2, 3)))


def gradient(cell, memory, **options):
    options = {name: value for name, value in options.items() if name != "length"}

    def loss(params, xs):
        final, ys = rs.scan(cell, params, cell.initial_carry(xs[0]), xs, memory=memory, **options)
        return sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves((final, ys)))

    return jax.jit(jax.grad(loss, argnums=(0, 1)))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("platform", variants(["cpu", "gpu"], ["cpu"]))
@pytest.mark.parametrize("name", variants(list(CELLS), ["remainder, reversed"]))
def test_gradients_are_those_of_values_on_the_device(name, platform):
    cell, options = CELLS[name]
    given = arguments(cell, **options)
    with rs.tuned_for(platform):
        expected, actual = (gradient(cell, memory, **options)(*given) for memory in (rs.Memory(), OFFLOAD))
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-12), actual, expected)


def values_of(jaxpr):
    """The types of all values of a program, those of its loops too."""
    for equation in jaxpr.eqns:
        yield from (var.aval for var in equation.outvars)
        for value in equation.params.values():
            for body in value if isinstance(value, tuple | list) else [value]:
                body = body.jaxpr if isinstance(body, core.ClosedJaxpr) else body
                if isinstance(body, core.Jaxpr):
                    yield from values_of(body)


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_the_stack_of_all_steps_is_in_host_memory_only(platform):
    cell = rs.cells.LSTM(5)
    params, xs = arguments(cell, length=64)
    with rs.tuned_for(platform):
        program = jax.make_jaxpr(gradient(cell, OFFLOAD))(params, xs)
    stacks = [aval for aval in values_of(program.jaxpr) if aval.size == 64 * 2 * 4 * 5]
    assert stacks
    assert {aval.memory_space for aval in stacks} == {jax.memory.Space.Host}


def test_explain_says_the_engine():
    cell = rs.cells.LSTM(4)
    params, xs = arguments(cell)
    explanation = rs.explain(cell, params, cell.initial_carry(xs[0]), xs, memory=OFFLOAD)
    assert explanation.engine == "fission"


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("platform", ["cpu", "gpu", "tpu"])
def test_forward_over_reverse_reads_what_lies_in_host_memory(platform):
    """With a GPU's choices it multiplied what lay on the host and on the device, and raised."""
    cell = rs.cells.LSTM(4)
    given = jax.tree.map(lambda leaf: leaf.astype(float), arguments(cell, 5))

    def second(memory):
        return jax.jit(lambda *given: jax.jvp(gradient(cell, memory), given, given)[1])(*given)

    with rs.tuned_for(platform):
        actual = second(rs.Memory(offload=("gates",), chunk=2))
    for leaf, expected in zip(*map(jax.tree.leaves, (actual, second(None))), strict=True):
        np.testing.assert_allclose(leaf, expected, rtol=1e-9, atol=1e-11)
