"""The gradient of a table that a step reads by index takes no time with the table's size."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import rnnscan as rs
from jaxprs import body_of, equations_of, is_loop, running
from matrix_states import assert_equal, compiled
from rnnscan.engine.costs.heuristics import BACKENDS, using
from tiers import variants


STEPS, SIZE, ROWS = 40, 3, 90
READS = {
    "a row": lambda table, i: table[i],
    "a column": lambda table, i: table.T[:, i],
    "a row by gather": lambda table, i: table[i[None]][0],
    "a row within bounds": lambda table, i: table.at[i].get(mode="clip"),
    "two rows": lambda table, i: lax.dynamic_slice_in_dim(table, i, 2).sum(0),
    "a row of a scaled table": lambda table, i: (2.0 * table)[i],
    "two reads": lambda table, i: table[i] * table[ROWS - 1 - i],
    "the table too": lambda table, i: table[i] + jnp.tanh(table).sum(0),
    "a row, and its transpose after": lambda table, i: table[i] + jnp.tanh(table @ table[i]) @ table,
    "a row for each of several": lambda table, i: jax.vmap(lambda j: table[j])(jnp.stack([i, i + 1])).sum(0),
}
LARGE = ("a row", "a column", "a row by gather", "a row within bounds", "two rows", "two reads")


def loss(read, **options):
    def cell(params, carry, i):
        carry = jnp.tanh(0.5 * carry + read(params, i))
        return carry, carry * read(params, -i)

    def run(table, carry, indices):
        carry, ys = rs.scan(cell, table, carry, indices, **options)
        return jnp.sum(jnp.sin(carry)) + jnp.sum(jnp.sin(ys))

    return jax.value_and_grad(run, argnums=(0, 1))


def arguments():
    random = np.random.default_rng(0)
    # Repeated rows, and some beyond the ends.
    indices = jnp.asarray(random.integers(-ROWS - 5, ROWS + 5, STEPS) // 2)
    return jnp.asarray(random.normal(size=(ROWS, SIZE)) / 3), jnp.asarray(random.normal(size=SIZE)), indices


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("platform", variants(["cpu", "gpu"], ["cpu"]))
@pytest.mark.parametrize("name", READS)
def test_it_equals_the_plain_gradient(name, platform):
    with using(BACKENDS[platform]):
        actual = [compiled(loss(READS[name], memory=rs.Memory(chunk=chunk)))(*arguments()) for chunk in (None, 7)]
    expected = compiled(loss(READS[name], engine="lax", memory=None))(*arguments())
    for each in actual:
        assert_equal(each, expected)


@pytest.mark.parametrize("name", LARGE)
def test_no_step_writes_a_table(name):
    # Chunks of one step would be the innermost loop, which adds to the cotangent of the table.
    program = running(loss(READS[name], memory=rs.Memory(chunk=8)))(*arguments()).jaxpr
    bodies = [body_of(equation) for equation in equations_of(program) if is_loop(equation)]
    steps = [body for body in bodies if not any(map(is_loop, body.eqns))]
    assert steps
    for equation in (equation for body in steps for equation in body.eqns):
        is_table = any(variable.aval.shape in ((ROWS, SIZE), (SIZE, ROWS)) for variable in equation.outvars)
        assert not is_table or equation.primitive.name == "transpose", equation


@pytest.mark.usefixtures("x64")
def test_under_vmap():
    table, carry, indices = arguments()
    run = loss(READS["a row"])
    several = jnp.stack([indices, indices[::-1]])
    mapped = jax.vmap(run, (None, None, 0))(table, carry, several)
    alone = [jax.tree.leaves(run(table, carry, one)) for one in several]
    assert_equal(mapped, [jnp.stack(both) for both in zip(*alone, strict=True)])
