"""A `jax.checkpoint` with a policy within a cell saves what its policy says."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name

import rnnscan as rs


pytestmark = pytest.mark.core("transformations within a step")

T, ROWS, HIDDEN, WIDE = 12, 3, 4, 10
POLICIES = {
    # The stacks of wide values, and those of narrow ones but for the carry.
    "products": (jax.checkpoint_policies.dots_saveable, 1),
    "a name": (jax.checkpoint_policies.save_only_these_names("middle"), 1),
    "an offloaded name": (
        jax.checkpoint_policies.save_and_offload_only_these_names(
            names_which_can_be_saved=["middle"],
            names_which_can_be_offloaded=[],
            offload_src="device",
            offload_dst="pinned_host",
        ),
        1,
    ),
    "everything": (jax.checkpoint_policies.everything_saveable, 2),
    "nothing": (jax.checkpoint_policies.nothing_saveable, 0),
}


def setting(policy):
    keys = jax.random.split(jax.random.key(0), 4)
    params = {
        "wide": jax.random.normal(keys[0], (HIDDEN, WIDE)),
        "narrow": jax.random.normal(keys[1], (WIDE, HIDDEN)) / 3,
    }

    def block(params, hidden):
        middle = checkpoint_name(jnp.sin(hidden @ params["wide"]), "middle")
        return jnp.sin(middle @ params["narrow"])

    def cell(params, hidden, x):
        hidden = jax.checkpoint(block, policy=policy)(params, hidden) + x
        return hidden, hidden

    return cell, params, jax.random.normal(keys[2], (ROWS, HIDDEN)), jax.random.normal(keys[3], (T, ROWS, HIDDEN))


def wide_stacks(loss, params):
    kept = jax.eval_shape(lambda params: jax.vjp(loss, params)[1], params)
    return [leaf.shape for leaf in jax.tree.leaves(kept)].count((T, ROWS, WIDE))


@pytest.mark.parametrize(("policy", "wide"), POLICIES.values(), ids=POLICIES)
def test_a_scan_saves_what_lax_scan_saves(policy, wide, x64):
    cell, params, hidden, xs = setting(policy)

    def plain(params):
        return jnp.sum(lax.scan(lambda carry, x: cell(params, carry, x), hidden, xs)[1] ** 2)

    def loss(params):
        return jnp.sum(rs.scan(cell, params, hidden, xs)[1] ** 2)

    assert wide_stacks(loss, params) == wide_stacks(plain, params) == wide
    ours, expected = jax.jit(jax.grad(loss))(params), jax.jit(jax.grad(plain))(params)
    jax.tree.map(lambda own, other: np.testing.assert_allclose(own, other, rtol=2e-4, atol=1e-5), ours, expected)


@pytest.mark.parametrize("memory", [rs.Memory(recompute="all"), rs.Memory(segment=4)], ids=str)
def test_a_choice_to_recompute_is_stronger(memory):
    cell, params, hidden, xs = setting(jax.checkpoint_policies.everything_saveable)
    assert wide_stacks(lambda params: jnp.sum(rs.scan(cell, params, hidden, xs, memory=memory)[1] ** 2), params) == 0


def test_reports_show_it():
    cell, params, hidden, xs = setting(jax.checkpoint_policies.dots_saveable)
    report = rs.memory_report(cell, params, hidden, xs)
    assert "jax.checkpoint policy" in str(report)
