"""Run by test_plan_on_meshes.py, in a process of its own: plans inside shard_map, pmap and explicit meshes."""

import json
import os

from xla_flags import flags


os.environ["XLA_FLAGS"] = flags(devices=4)
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import rnnscan as rs
from rnnscan.insight import temporary_bytes


# Its plan takes a second.
NET = rs.layer(rs.cells.GRU(6))
XS = jax.random.normal(jax.random.key(0), (16, 8, 5))
PARAMS = NET.init(jax.random.key(1), 5)
ROWS, REPLICATED = PartitionSpec(None, "d"), PartitionSpec()


def gradient(params, xs, memory):
    return jax.grad(lambda params: jnp.mean(NET(params, xs, memory=memory)[1] ** 2))(params)


def in_shard_map(memory):
    mesh = jax.make_mesh((4,), ("d",), axis_types=(AxisType.Auto,))
    mapped = jax.shard_map(
        lambda params, xs: jax.lax.pmean(gradient(params, xs, memory), "d"),
        mesh=mesh,
        in_specs=(REPLICATED, ROWS),
        out_specs=REPLICATED,
        check_vma=False,
    )
    return jax.jit(mapped), (PARAMS, XS)


def in_pmap(memory):
    mapped = jax.pmap(lambda params, xs: jax.lax.pmean(gradient(params, xs, memory), "d"), "d", in_axes=(None, 1))
    return mapped, (PARAMS, XS.reshape(16, 4, 2, 5))


def on_explicit_mesh(memory):
    mesh = jax.make_mesh((4,), ("d",))
    jax.set_mesh(mesh)
    given = (jax.device_put(PARAMS, NamedSharding(mesh, REPLICATED)), jax.device_put(XS, NamedSharding(mesh, ROWS)))
    return jax.jit(lambda params, xs: gradient(params, xs, memory)), given


kept = jax.jit(lambda params, xs: gradient(params, xs, rs.Memory()))
expected = kept(PARAMS, XS)
of_one = temporary_bytes(kept.lower(PARAMS, jax.ShapeDtypeStruct((16, 2, 5), jnp.float32)).compile())
BUDGET = int(0.97 * of_one)
report = {"budget": BUDGET, "names kept": of_one}
for name, build in {"shard_map": in_shard_map, "pmap": in_pmap, "explicit": on_explicit_mesh}.items():
    step, given = build(rs.Memory.fit(BUDGET))
    compiled = step.lower(*given).compile()  # One plan for running it and for its analysis.
    found = jax.tree.map(lambda leaf: leaf[0], compiled(*given)) if name == "pmap" else compiled(*given)
    difference = max(
        float(abs(jax.device_get(a) - b).max())
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(jax.device_get(expected)), strict=True)
    )
    report[name] = {"difference": difference, "needed": temporary_bytes(compiled)}
print(json.dumps(report))
