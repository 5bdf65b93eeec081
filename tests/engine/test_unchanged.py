"""Sums in a carry. Their cotangents are the same at every step, so products that read them need no stack of them."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from jaxprs import running
from tiers import variants


LENGTH, ROWS, WIDTH, WIDER = 11, 2, 3, 5


def accumulate(params, total, x):
    """The sum of the gradients of a loss in its weights."""
    value, gradient = jax.value_and_grad(lambda kernel: jnp.mean(jnp.tanh(x @ kernel) ** 2))(params["kernel"])
    return total + gradient, value


def moments(params, carry, x):
    """A recurrent state, and the sum of its products with the inputs. The state is no output."""
    state, total = carry
    state = jnp.tanh(x @ params["kernel"] + state @ params["recurrent"])
    return (state, total - x.T @ state), ()


STEPS = {"gradients": accumulate, "moments": moments}


def arguments_of(step, length=LENGTH, rows=ROWS, width=WIDTH, wider=WIDER):
    random = np.random.default_rng(0)

    def draw(*shape):
        return jnp.asarray(random.normal(size=shape))

    params = {"kernel": draw(width, wider), "recurrent": draw(wider, wider)}
    total, xs = draw(width, wider), draw(length, rows, width)
    return params, total if step is accumulate else (draw(rows, wider), total), xs


def gradient_of(step, *, twice=False, **options):
    def loss(*arguments):
        return sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(rs.scan(step, *arguments, **options)))

    def squares(*arguments):
        return sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(jax.grad(loss, (0, 1, 2))(*arguments)))

    return jax.grad(squares if twice else loss, (0, 1, 2))


OPTIONS = {
    "plain": {},
    "reversed": {"reverse": True},
    "chunks with a remainder": {"memory": rs.Memory(chunk=3)},
    "segments": {"memory": rs.Memory(segment=4)},
    "twice": {"twice": True},
}
TELLING = ["gradients, chunks with a remainder", "moments, reversed", "moments, twice"]


@pytest.mark.parametrize(
    ("step", "options"),
    variants({f"{name}, {one}": (STEPS[name], OPTIONS[one]) for name in STEPS for one in OPTIONS}, TELLING),
)
def test_gradients_are_those_of_plain_autodiff(step, options):
    arguments = arguments_of(step)
    own, expected = (
        jax.jit(gradient_of(step, **given))(*arguments) for given in (options, {**options, "memory": None})
    )
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-5), own, expected)


def test_no_cotangent_of_a_sum_is_stacked():
    """Not for the products that read it, which run for a chunk of 4 steps at once."""
    arguments = arguments_of(moments, length=20, rows=8, width=16, wider=32)
    program = str(running(gradient_of(moments, memory=rs.Memory(chunk=4)))(*arguments))
    assert re.search(r"f32\[16,32\]", program), "the sum itself is there"
    assert not re.search(r"f32\[4,16,32\]", program)


@pytest.mark.parametrize(("rows", "chunk"), [(2, 8), (32, 1)])
def test_steps_without_a_loop_run_in_chunks_where_they_have_few_rows(rows, chunk):
    """More rows than 31 read a matrix often enough at each step. A chunk of one step has no axis of steps."""
    program = str(running(gradient_of(accumulate))(*arguments_of(accumulate, length=64, rows=rows)))
    sizes = {int(size) for size in re.findall(rf"f32\[(\d+),{rows},{WIDER}\] = tanh", program)}
    assert sizes == {chunk} - {1}
    assert sizes or f"f32[{rows},{WIDER}] = tanh" in program
