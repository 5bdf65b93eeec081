"""The gradient of a scan whose rows are on an explicit axis raises without `jax.set_mesh` around it."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec


mesh = jax.make_mesh((1,), ("rows",), axis_types=(AxisType.Explicit,))
xs = jax.device_put(jnp.ones((6, 4, 8)), NamedSharding(mesh, PartitionSpec(None, "rows")))


def loss(params):
    kernel, recurrent_kernel = params

    def step(h, x):
        h = jnp.tanh(x @ kernel + h @ recurrent_kernel)
        return h, h

    return jnp.mean(lax.scan(step, jnp.zeros_like(xs[0]), xs)[1] ** 2)


params = jax.device_put((jnp.ones((8, 8)), jnp.ones((8, 8))), NamedSharding(mesh, PartitionSpec()))
try:
    jax.jit(jax.grad(loss))(params)
    print("right")
except Exception as error:  # JAX exports no name for it.
    print("wrong" if "Contracting dimensions are sharded" in str(error) else error)
