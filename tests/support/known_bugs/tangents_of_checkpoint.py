"""With JAX_REMAT3=1, forward mode through `jax.checkpoint` gives a tangent to what has none."""

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero


@jax.custom_jvp
def constant(time):
    return time


def refuse(primals, tangents):
    if not isinstance(tangents[0], SymbolicZero):
        raise TypeError("the time has a tangent")
    return primals[0], tangents[0]


constant.defjvp(refuse, symbolic_zeros=True)
product = jax.checkpoint(lambda x, time: x * constant(time))
try:
    jax.jvp(lambda x: product(x, jnp.float32(3)), (jnp.float32(2),), (jnp.float32(1),))
except TypeError as error:
    if "the time has a tangent" not in str(error):
        raise
    print("wrong")
else:
    print("right")
