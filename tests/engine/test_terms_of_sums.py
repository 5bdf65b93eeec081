"""Sums with terms that repeat, that are smaller than the sum, or that only look like what a pass rewrites."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import rnnscan as rs
from matrix_states import assert_equal, compiled
from rnnscan.engine.costs.heuristics import BACKENDS, using
from rnnscan.engine.passes.concatenate_pads import concatenate_pads
from rnnscan.ir.trace import trace
from tiers import variants


ROWS, SIZE, STEPS = 32, 256, 5


def numbers(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape) * 0.3)


def twice_in_parts(params, h, x):
    z = h @ params["w"] + x
    h = jnp.concatenate([jnp.tanh((z + z)[:, : SIZE // 2]), jnp.sin(z[:, SIZE // 2 :])], 1)
    return h, h


def one_row_padded(params, h, x):
    h, half = jnp.tanh(h @ params["w"] + x), SIZE // 2
    return h, jnp.sin(jnp.pad(h[:, :half], ((0, 0), (0, half))) + jnp.pad(h[:1, half:], ((0, 0), (half, 0))))


def one_row_beside_all(params, carry, x):
    h, g = carry
    h = jnp.sin(h @ params["w"] + g @ params["u"] + x)
    return (h, jnp.tanh(g + h.mean(0, keepdims=True))), h


def counts_for_all_rows(params, carry, x):
    h, counts = carry
    h = jnp.tanh(h @ params["w"] + x)
    return (h, counts + jnp.zeros((1, SIZE)).at[0, jnp.argmax(x[0])].add(1.0)), h


def softplus_of_one_row(params, h, x):
    h = jnp.tanh(h @ params["w"] + x)
    derivative = jax.grad(lambda h: jnp.sum(jnp.logaddexp(h[:1], jnp.zeros((ROWS, SIZE)))))(h)
    return h, derivative


def slice_of_a_scalar(params, h, x):
    h = jnp.tanh(h @ params["w"] + x * lax.dynamic_slice(params["scale"], (), ()))
    return h, h


ONE = numbers(ROWS, SIZE, seed=1)
CARRIES = {one_row_beside_all: (ONE, numbers(1, SIZE, seed=2)), counts_for_all_rows: (ONE, jnp.zeros((ROWS, SIZE)))}
CELLS = [
    twice_in_parts,
    one_row_padded,
    one_row_beside_all,
    counts_for_all_rows,
    softplus_of_one_row,
    slice_of_a_scalar,
]
CHOICES = {name: replace(choices, one_kernel=False) for name, choices in BACKENDS.items()}


@pytest.mark.core("the engine")
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("platform", variants([*CHOICES], ["cpu"]))
@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.__name__)
def test_values_and_gradients_are_those_of_the_loop(cell, platform):
    params = {"w": numbers(SIZE, SIZE) / 4, "u": numbers(SIZE, SIZE, seed=3) / 4, "scale": jnp.asarray(0.5)}
    carry, xs = CARRIES.get(cell, ONE), numbers(STEPS, ROWS, SIZE, seed=4)

    def run(scan):
        def loss(*arguments):
            return sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(scan(*arguments)))

        arguments = jax.tree.map(lambda leaf: leaf.astype(float), (params, carry, xs))
        return compiled(scan)(*arguments), compiled(jax.value_and_grad(loss, (0, 1, 2)))(*arguments)

    expected = run(lambda params, carry, xs: lax.scan(lambda carry, x: cell(params, carry, x), carry, xs))
    with using(CHOICES[platform]):
        found = run(lambda params, carry, xs: rs.scan(cell, params, carry, xs))
    assert_equal(found, expected)


def test_pieces_with_many_dead_ends_are_joined_at_once():
    """Each place has two pieces, and the last place none: two to the power of the places are the rows to try."""
    places = 40

    def cotangent(values):
        terms = [jnp.pad(value, (place, places - place)) for place in range(places) for value in values]
        return sum(terms[1:], terms[0])

    one = jax.ShapeDtypeStruct((1,), jnp.float32)
    program = trace(lambda *values: [cotangent(values)], one, one)
    assert len(concatenate_pads(program).equations) == len(program.equations)
