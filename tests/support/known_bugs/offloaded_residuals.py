"""Gradients of a scan with offloaded residuals are wrong on a GPU, without an error (openxla/xla#46231)."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name, checkpoint_policies


STEPS, UNITS = 16, 512


def gradient(policy):
    def step(carry, x):
        carry = jnp.sin(checkpoint_name(carry * x, "kept"))
        return carry, None

    def loss(carry, xs):
        return jnp.sum(lax.scan(jax.checkpoint(step, policy=policy), carry, xs)[0])

    random = np.random.default_rng(0)
    return jax.jit(jax.grad(loss, argnums=(0, 1)))(
        jnp.asarray(random.normal(size=UNITS), jnp.float32),
        jnp.asarray(random.normal(size=(STEPS, UNITS)), jnp.float32),
    )


offloaded = checkpoint_policies.save_and_offload_only_these_names(
    names_which_can_be_saved=[], names_which_can_be_offloaded=["kept"], offload_src="device", offload_dst="pinned_host"
)
pairs = zip(gradient(offloaded), gradient(checkpoint_policies.save_only_these_names("kept")), strict=True)
print("right" if all(np.allclose(*pair, atol=1e-5) for pair in pairs) else "wrong")
