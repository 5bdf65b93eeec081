"""Runs while_net, decode and Flax modules on 8 simulated devices, and on one: `python others_on_devices.py CASES`.

CASES is JSON, from modes to lists of cases. It prints, as JSON, for each the largest difference in results and
gradients, the collectives of the compiled program, and the number of parameters. Modes are those of `on_devices.py`,
and "explicit units", where parameters or carries are sharded explicitly.
"""

import json
import sys
from functools import partial


from on_devices import MEMORIES, collectives, mesh_of  # isort: skip  It sets the number of devices.

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import rnnscan as rs
import rnnscan.linen
import rnnscan.nnx
from drawn import normal
from rnnscan import cells


STEPS, ROWS, FEATURES, UNITS = 4, 8, 3, 16
random = np.random.default_rng(0)
WHOLE, BY_ROWS = PartitionSpec(), PartitionSpec("data")


def draw(*shape):
    return normal(random, shape, jnp.float32, 0.5)


def of_while_net(memory):
    def run(params, carry):
        def body(params, carry):
            return 1.2 * carry + 0.1 * jnp.tanh(rs.name(carry @ params["kernel"] + params["bias"], "inner"))

        held = {"memory": rs.Memory(recompute="all", segment=2) if memory == "segments" else MEMORIES[memory]}
        return rs.while_net(lambda _, carry: (carry**2).sum() < 400, body, carry, params=params, max_steps=12, **held)

    return run, ({"kernel": draw(UNITS, UNITS), "bias": draw(UNITS)}, draw(ROWS, UNITS)), (WHOLE, BY_ROWS)


def of_decode(strategy):
    def decoder(params, carry, token):
        carry, hidden = cells.GRU(UNITS)(params["cell"], carry, params["embedding"][token])
        return carry, 4 * hidden @ params["embedding"].T

    def run(params, carry):
        decoded = rs.decode(decoder, params, carry, start=1, end=0, max_steps=6, strategy=strategy)
        return decoded.tokens, decoded.scores

    embedding = draw(UNITS, UNITS)
    params = {"cell": cells.GRU(UNITS).init(jax.random.key(0), UNITS), "embedding": embedding}
    return run, (params, (draw(ROWS, UNITS),)), (WHOLE, BY_ROWS)


def of_linen(memory):
    module = rnnscan.linen.RNN(nn.OptimizedLSTMCell(UNITS), memory=MEMORIES[memory])
    params = module.init(jax.random.key(0), jnp.ones((ROWS, STEPS, FEATURES)))
    return module.apply, (params, draw(ROWS, STEPS, FEATURES)), (WHOLE, BY_ROWS)


def of_nnx(memory):
    module = rnnscan.nnx.RNN(nnx.GRUCell(FEATURES, UNITS, rngs=nnx.Rngs(0)), memory=MEMORIES[memory])
    graph, params, rest = nnx.split(module, nnx.Param, ...)
    return (
        lambda params, xs: nnx.merge(graph, params, rest)(xs),
        (params, draw(ROWS, STEPS, FEATURES)),
        (WHOLE, BY_ROWS),
    )


def of_scan(memory, *, kernels, carry, cell=cells.LSTM(UNITS)):
    """An LSTM whose kernels and carry are sharded over explicit axes."""
    params = {name: draw(*leaf.shape) for name, leaf in cell.init(jax.random.key(0), FEATURES + 5).items()}
    specs = {name: kernels if leaf.ndim > 1 else WHOLE for name, leaf in params.items()}

    def run(params, carry, xs):
        return rs.scan(cell, params, carry, xs, memory=MEMORIES[memory])

    state = jax.tree.map(lambda leaf: draw(*leaf.shape), cell.initial_carry(jnp.ones((ROWS, FEATURES + 5))))
    rows = PartitionSpec(None, "data")
    return run, (params, state, draw(STEPS, ROWS, FEATURES + 5)), (specs, carry, rows)


CASES = {
    "decode, greedy": partial(of_decode, rs.decoding.Greedy()),
    "decode, beam": partial(of_decode, rs.decoding.Beam(2)),
}
for memory in ("all names", "recompute all", "segments"):
    for name, make in (("while_net", of_while_net), ("linen", of_linen), ("nnx", of_nnx)):
        CASES[f"{name}, {memory}"] = partial(make, memory)
    by_units = {"kernels": PartitionSpec(None, "model"), "carry": PartitionSpec("data", "model")}
    CASES[f"units, {memory}"] = partial(of_scan, memory, **by_units)
    CASES[f"whole carry, {memory}"] = partial(of_scan, memory, **by_units | {"carry": BY_ROWS})
    CASES[f"features, {memory}"] = partial(of_scan, memory, kernels=PartitionSpec("model"), carry=BY_ROWS)


def mesh_for(mode):
    if not mode.startswith("explicit units"):
        return mesh_of(mode)
    kinds = {"explicit units": (AxisType.Explicit,) * 2, "explicit units, mixed": (AxisType.Explicit, AxisType.Auto)}
    return jax.make_mesh((2, 4), ("data", "model"), axis_types=kinds[mode])


def check(mode, case):
    run, arguments, specs = CASES[case]()
    mesh = mesh_for(mode)

    def results(*arguments):
        if case.startswith("decode"):
            return run(*arguments)

        def loss(*arguments):
            found = run(*arguments)
            floats = [leaf for leaf in jax.tree.leaves(found) if jnp.issubdtype(leaf.dtype, jnp.floating)]
            return sum(jnp.sum(jnp.sin(leaf + 0.3)) for leaf in floats), found

        return jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(*arguments)

    def place(tree, spec):
        at = lambda leaf, spec: jax.device_put(leaf, NamedSharding(mesh, spec))  # noqa: E731
        if isinstance(spec, PartitionSpec):
            return jax.tree.map(lambda leaf: at(leaf, spec), tree)
        return jax.tree.map(at, tree, spec)

    expected = jax.jit(results)(*arguments)
    placed = [place(tree, spec) for tree, spec in zip(arguments, specs, strict=True)]
    with jax.set_mesh(mesh):
        compiled = jax.jit(results).lower(*placed).compile()
        found = compiled(*placed)
    pairs = zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True)
    differences = [np.max(np.abs(np.asarray(a) - np.asarray(b)) / (1 + np.abs(np.asarray(a)))) for a, b in pairs]
    return {
        "difference": float(max(differences)),
        "collectives": collectives(compiled.as_text()),
        "parameters": len(jax.tree.leaves(arguments[0])),
    }


def attempt(mode, case):
    """What is found, or the error."""
    try:
        return check(mode, case)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    print(
        json.dumps(
            {mode: {case: attempt(mode, case) for case in cases} for mode, cases in json.loads(sys.argv[1]).items()}
        )
    )
