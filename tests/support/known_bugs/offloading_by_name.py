"""With JAX_REMAT3=1, `save_and_offload_only_these_names` offloads nothing."""

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name, checkpoint_policies


policy = checkpoint_policies.save_and_offload_only_these_names(
    names_which_can_be_saved=[], names_which_can_be_offloaded=["kept"], offload_src="device", offload_dst="pinned_host"
)
function = jax.checkpoint(lambda x: jnp.sum(jnp.sin(checkpoint_name(jnp.sin(x), "kept"))), policy=policy)
print("right" if "host" in str(jax.make_jaxpr(jax.grad(function))(jnp.ones(3))) else "wrong")
