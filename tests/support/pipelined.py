"""Runs chains as pipelines on 8 simulated devices, and plainly: `python pipelined.py CASES`, with CASES as JSON.

It prints, as JSON, for each case the largest difference in results and gradients, the trips of the loops that send,
and with "stacked" whether each device holds the weights of its layer only, and their gradients.
"""

import json
import os
import re
import sys

from xla_flags import flags


os.environ["XLA_FLAGS"] = flags(devices=8)

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import rnnscan as rs
from drawn import normal
from rnnscan import cells


STEPS, ROWS, UNITS, LAYERS, CHUNKS = 10, 4, 3, 4, 5
CELLS = {"LSTM": cells.LSTM(UNITS), "GRU": cells.GRU(UNITS), "MinGRU": cells.MinGRU(UNITS)}
MEMORIES = {"all names": rs.Memory(), "recompute all": rs.Memory(recompute="all"), "segments": rs.Memory(segment=1)}


def rounds(compiled):
    """The known trip counts of the loops with a collective-permute, in the compiled program."""
    senders, name = set(), None
    for line in compiled.splitlines():
        if line.endswith("{") and not line.startswith(" "):
            name = re.sub("^ENTRY ", "", line).split()[0].lstrip("%")
        elif " collective-permute" in line:
            senders.add(name)
    loops = [line for line in compiled.splitlines() if " while(" in line]
    found = []
    for line in loops:
        body = re.search(r"body=%?([\w.\-]+)", line)[1]
        count = re.search(r'known_trip_count":\{"n":"(\d+)"', line)
        if body in senders:
            found.append(int(count[1]) if count else None)
    return found


def check(case):
    name, memory, *options = case.split(", ")
    layers = [rs.layer(CELLS[name])] * LAYERS
    plain, piped = rs.chain(*layers), rs.chain(*layers, pipeline="layers", chunks=CHUNKS)
    random = np.random.default_rng(0)
    draw = lambda leaf: normal(random, leaf.shape, leaf.dtype, 0.7)  # noqa: E731
    xs = draw(np.zeros((STEPS, ROWS, UNITS), np.float32))
    params, carry = (
        jax.tree.map(draw, tree) for tree in (plain.init(jax.random.key(0), UNITS), plain.initial_carry(xs))
    )
    more = {"memory": MEMORIES[memory]}
    if "rows" in options:
        more |= {"seq_lengths": jnp.array([10, 0, 7, 3]), "reset": jnp.asarray(random.random((STEPS, ROWS)) > 0.8)}
    sizes = (4, 2) if "data" in options else (4,)
    mesh = jax.make_mesh(sizes, ("layers", "data")[: len(sizes)], axis_types=(AxisType.Auto,) * len(sizes))

    def gradient(net):
        def loss(params, carry, xs):
            results = net(params, xs, carry=carry, **more)
            return sum(jnp.sum(jnp.sin(leaf + 0.3)) for leaf in jax.tree.leaves(results)), results

        return jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True))

    expected = gradient(plain)(params, carry, xs)
    own = NamedSharding(mesh, PartitionSpec("layers"))
    given = jax.device_put(rs.sharding.stack_layers(params), own) if "stacked" in options else params
    with jax.set_mesh(mesh):
        compiled = gradient(piped).lower(given, carry, xs).compile()
        found = compiled(given, carry, xs)
    if "stacked" in options:
        (loss, results), (of_params, *others) = found
        stay = all(leaf.sharding.is_equivalent_to(own, leaf.ndim) for leaf in jax.tree.leaves(of_params))
        found = (loss, results), (rs.sharding.unstack_layers(of_params), *others)
    pairs = zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True)
    return {
        "difference": max(float(np.max(np.abs(a - np.asarray(b)) / (1 + np.abs(a)))) for a, b in pairs),
        "rounds": rounds(compiled.as_text()),
        "stay": "stacked" not in options or (stay and "all-gather" not in compiled.as_text()),
    }


if __name__ == "__main__":
    print(json.dumps({case: check(case) for case in json.loads(sys.argv[1])}))
