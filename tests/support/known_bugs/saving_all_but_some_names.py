"""The policy `save_anything_except_these_names` saves everything (jax#37888)."""

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name, checkpoint_policies


def kept(policy):
    """The number of residuals, one of which is the product with a name, where it is kept."""

    def function(x):
        product = checkpoint_name(x @ x, "dropped")
        return jnp.sum(product * product)

    return len(jax.tree.leaves(jax.vjp(jax.checkpoint(function, policy=policy), jnp.ones((3, 3)))[1]))


assert kept(checkpoint_policies.nothing_saveable) < kept(checkpoint_policies.everything_saveable)
dropping = kept(checkpoint_policies.save_anything_except_these_names("dropped"))
print("right" if dropping < kept(checkpoint_policies.everything_saveable) else "wrong")
