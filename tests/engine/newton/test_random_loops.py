"""Random elementwise cells equal their loops, chaotic ones too."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from fuzz.elementwise import Drawn
from zoo.case import Case


CELLS_OF_A_TEST = 10
QUICKLY = {"xla_backend_optimization_level": 0, "xla_cpu_parallel_codegen_split_count": 1}
compiled = partial(jax.jit, compiler_options=QUICKLY)


def check(seed):
    """Compare with the loop, to 1e-10, or to what a change of the carry by 1e-14 makes of the loop's results."""
    drawn = Drawn(seed)
    arguments, options = drawn.arguments(), drawn.options()

    def results(params, carry, xs, **how):
        def loss(*arguments):
            found = rs.scan(drawn.cell, *arguments, **options, **how)
            return Case.loss(found), found

        return jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True)(params, carry, xs)

    plain = compiled(partial(results, memory=None, engine="lax"))
    expected = plain(*arguments)
    moved = plain(arguments[0], jax.tree.map(lambda leaf: leaf * (1 + 1e-14) + 1e-15, arguments[1]), arguments[2])
    found = compiled(partial(results, memory=drawn.memory(), parallel=drawn.newton()))(*arguments)
    for leaf, wanted, other in zip(*map(jax.tree.leaves, (found, expected, moved)), strict=True):
        scale = float(np.max(np.abs(wanted), initial=0, where=np.isfinite(wanted))) or 1.0
        sensitive = float(np.max(np.abs(wanted - other), initial=0, where=np.isfinite(wanted) & np.isfinite(other)))
        if np.isfinite(wanted).all():
            np.testing.assert_allclose(leaf, wanted, rtol=0, atol=1e-10 * scale + 1e4 * sensitive, err_msg=str(seed))


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


@pytest.mark.fuzz
@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 300, CELLS_OF_A_TEST))
def test_random_elementwise_cells_equal_their_loops(first):
    for seed in range(first, first + CELLS_OF_A_TEST):
        check(seed)
    jax.clear_caches()


def test_the_cells_have_blocks_of_every_size_and_some_are_chaotic():
    drawn = [Drawn(seed) for seed in range(300)]
    assert {one.leaves for one in drawn} == {1, 2, 3, 4}
    assert sum(one.gain == 10 for one in drawn) >= 20
    assert jnp.float64 == drawn[0].arguments()[2].dtype
