"""Tools that read values say that they do not run within `jax.jit`."""

import jax
import jax.numpy as jnp
import pytest

import rnnscan as rs


CELL, XS = rs.cells.ParaGRU(4), jnp.ones((8, 2, 3))
TOOLS = {
    "first_nonfinite": lambda params, carry, xs: rs.first_nonfinite(CELL, params, carry, xs),
    "newton_iterations": lambda params, carry, xs: rs.newton_iterations(CELL, params, carry, xs).most,
    "check": lambda params, carry, xs: rs.check(CELL, params, carry, xs, only="rows").ok,
    "profile": lambda params, carry, xs: rs.profile(lambda xs: rs.scan(CELL, params, carry, xs)[1], xs).total,
}


@pytest.mark.bad_input
@pytest.mark.parametrize("name", TOOLS)
def test_traced_arguments_are_refused(name):
    given = CELL.init(jax.random.key(0), 3), CELL.initial_carry(XS[0]), XS
    with pytest.raises(TypeError, match=rf"^{name}: the arguments must be arrays with values; got traced ones\. Call"):
        jax.jit(TOOLS[name])(*given)
