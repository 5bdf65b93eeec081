"""XLA for a CPU drops `lax.optimization_barrier` before it fuses, and fuses the value in it with its readers."""

import re

import jax
import jax.numpy as jnp
from jax import lax


def shifted(x):
    value = lax.optimization_barrier(jnp.exp(jnp.sin(x)))
    return jnp.pad(value, (1, 0)) + jnp.pad(value, (0, 1))


program = jax.jit(shifted).lower(jnp.ones(1000)).compile().as_text()
computations = re.findall(r"^%?\S.*?^}", program, re.MULTILINE | re.DOTALL)
kinds = [{kind for kind in ("exponential", "pad") if f" {kind}(" in computation} for computation in computations]
assert {"exponential", "pad"} == set().union(*kinds)
print("wrong" if {"exponential", "pad"} in kinds else "right")
