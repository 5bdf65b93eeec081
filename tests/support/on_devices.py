"""Runs scans and nets with the batch on 8 simulated devices, and on one: `python on_devices.py CASES`.

CASES is JSON, from modes to cases to lists of memory choices.
It prints, as JSON, for each case and memory choice the largest difference between the two in results and gradients, and
the collectives of the compiled program. A process of its own, because a process has its number of devices for good.
"""

import json
import os
import re
import sys
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

from xla_flags import flags


os.environ["XLA_FLAGS"] = flags(devices=8)

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import rnnscan as rs
from drawn import normal
from rnnscan import attention, cells
from rnnscan.engine.costs import heuristics


# Two chunks; rows for 8 devices.
STEPS, ROWS, FEATURES, UNITS = 4, 24, 3, 4
MEMORIES = {
    "all names": rs.Memory(chunk=2),
    "recompute all": rs.Memory(recompute="all", chunk=2),
    "segments": rs.Memory(segment=2),
    "plain autodiff": None,
}


def of_cell(cell, padding=None, parallel=None):
    """Parameters, and a run of `(params, xs, lengths, memory)`."""

    def run(params, xs, lengths, memory):
        options = {"seq_lengths": lengths, "padding": padding} if padding else {}
        if memory is not None:  # Plain autodiff is the reference.
            options["parallel"] = parallel
        return rs.scan(cell, params, cell.initial_carry(xs[0]), xs, memory=memory, **options)

    return cell.init(jax.random.key(0), FEATURES), run


def of_net(net):
    """The same for a net, with lengths."""
    run = lambda params, xs, lengths, memory: net(params, xs, seq_lengths=lengths, memory=memory)  # noqa: E731
    return net.init(jax.random.key(0), FEATURES), run


def of_decoder():
    """The same for a decoder with attention over the inputs."""
    decoder = attention.decoder(cells.LSTM(UNITS), attention.Additive(FEATURES, 8))

    def run(params, xs, lengths, memory):
        cell = decoder.over(params, xs)
        return rs.scan(cell, params, cell.initial_carry(xs[0]), xs, memory=memory)

    return decoder.init(jax.random.key(0), FEATURES), run


def of_named_values():
    """A recurrent_net, whose initial state is a parameter that the rows share."""

    def cell_net(params, input_t, hidden_t_prev):
        return {"hidden_t": jnp.tanh(input_t @ params["kernel"] + hidden_t_prev @ params["recurrent_kernel"])}

    def run(params, xs, lengths, memory):
        results = rs.recurrent_net(
            cell_net,
            params,
            inputs={"input_t": xs},
            initial_cell_inputs={"hidden_t_prev": params["initial"]},
            links={"hidden_t_prev": "hidden_t"},
            seq_lengths=lengths,
            memory=memory,
        )
        return results["hidden_t_last"], results["hidden_t_all"]

    params = {"kernel": (FEATURES, UNITS), "recurrent_kernel": (UNITS, UNITS), "initial": (UNITS,)}
    return {name: jnp.zeros(shape) for name, shape in params.items()}, run


def of_function():
    """A function without names, whose sums are kept because they take long to make again."""

    def cell(params, carry, x):
        summed = jnp.cumsum(x @ params["kernel"], axis=-1)
        carry = jnp.tanh(carry * summed + summed)
        return carry, carry

    def run(params, xs, lengths, memory):
        return rs.scan(cell, params, params["initial"], xs, memory=memory)

    return {"kernel": jnp.zeros((FEATURES, UNITS)), "initial": jnp.zeros((UNITS,))}, run


CASES = {
    "LSTM": lambda: of_cell(cells.LSTM(UNITS)),
    "GRU": lambda: of_cell(cells.GRU(UNITS)),
    "LayerNormLSTM": lambda: of_cell(cells.LayerNormLSTM(UNITS)),
    "MinGRU": lambda: of_cell(cells.MinGRU(UNITS)),
    "stack": lambda: of_cell(rs.stack(cells.GRU(UNITS), cells.LSTM(UNITS))),
    "decoder": of_decoder,
    "lengths": lambda: of_cell(cells.LSTM(UNITS), padding="zero"),
    "lengths, hold": lambda: of_cell(cells.GRU(UNITS), padding="hold"),
    "recurrent_net": of_named_values,
    "without names": of_function,
    "layer": lambda: of_net(rs.layer(cells.GRU(UNITS))),
    "chain": lambda: of_net(rs.chain(rs.layer(cells.GRU(UNITS)), rs.layer(cells.RNN(UNITS)))),
    "LSTM as on a GPU": lambda: of_cell(cells.LSTM(UNITS)),
    "MinGRU as on a GPU": lambda: of_cell(cells.MinGRU(UNITS)),
    "LSTM as on a TPU": lambda: of_cell(cells.LSTM(UNITS)),
    "GLA in chunks": lambda: of_cell(cells.GLA(UNITS), padding="zero"),
    "ParaLSTM by Newton": lambda: of_cell(cells.ParaLSTM(UNITS), padding="zero", parallel=rs.Newton()),
    "parameters on no mesh": lambda: of_cell(cells.GRU(UNITS)),
    "bidirectional": lambda: of_net(rs.bidirectional(cells.GRU(UNITS), cells.RNN(UNITS))),
    "as many units as rows": lambda: of_cell(cells.LSTM(ROWS)),
}


HEURISTICS = {
    "LSTM as on a GPU": heuristics.BACKENDS["gpu"],
    "MinGRU as on a GPU": heuristics.BACKENDS["gpu"],
    "LSTM as on a TPU": heuristics.BACKENDS["tpu"],
    "GLA in chunks": replace(heuristics.BACKENDS["cpu"], least_state=2, state_chunk=2, longest_window=2),
}


# The cells and nets of cases with sharded units.
RULES = {
    "LSTM": lambda: cells.LSTM(UNITS),
    "GRU": lambda: cells.GRU(UNITS),
    "LayerNormLSTM": lambda: cells.LayerNormLSTM(UNITS),
    "MinGRU": lambda: cells.MinGRU(UNITS),
    "stack": lambda: rs.stack(cells.GRU(UNITS), cells.LSTM(UNITS)),
    "decoder": lambda: attention.decoder(cells.LSTM(UNITS), attention.Additive(FEATURES, 8)),
    "lengths": lambda: cells.LSTM(UNITS),
    "chain": lambda: rs.chain(rs.layer(cells.GRU(UNITS)), rs.layer(cells.RNN(UNITS))),
    "LSTM as on a GPU": lambda: cells.LSTM(UNITS),
    "LSTM as on a TPU": lambda: cells.LSTM(UNITS),
    "GLA in chunks": lambda: cells.GLA(UNITS),
    "ParaLSTM by Newton": lambda: cells.ParaLSTM(UNITS),
    "bidirectional": lambda: rs.bidirectional(cells.GRU(UNITS), cells.RNN(UNITS)),
}


def collectives(compiled):
    """The types of what each kind of collective makes, apart for those in loops, and those in loops around loops."""
    computations, lines = {}, []
    for line in compiled.splitlines():
        if line.endswith("{") and not line.startswith(" "):
            lines = computations.setdefault(re.sub("^ENTRY ", "", line).split()[0].lstrip("%"), [])
        lines.append(line)
    called = re.compile(r"(?:body|condition|calls|to_apply)=%?([\w.\-]+)")
    to_see = re.findall(r"(?:body|condition)=%?([\w.\-]+)", compiled)
    in_loops = set()
    while to_see:
        name = to_see.pop()
        if name in computations and name not in in_loops:
            in_loops.add(name)
            to_see += called.findall("\n".join(computations[name]))
    kinds = "all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter"
    found = {}
    for name, lines in computations.items():
        for made, kind in re.findall(rf"= (.*?) ({kinds})(?:-start)?\(", "\n".join(lines)):
            around = " around a loop" if any(" while(" in line for line in lines) else ""
            place = f"{kind} in a loop{around}" if name in in_loops else kind
            found.setdefault(place, []).extend(re.findall(r"\w+\[[\d,]*\]", made))
    return found


def mesh_of(mode):
    """The mesh of a mode. That of "units 2x4" has 4 devices for the units."""
    if not mode.startswith("units"):
        return jax.make_mesh((8,), ("data",), axis_types=(AxisType.Explicit if mode == "explicit" else AxisType.Auto,))
    sizes = tuple(map(int, mode.removeprefix("units ").split("x")))
    return jax.make_mesh(sizes, ("data", "model"), axis_types=(AxisType.Auto, AxisType.Auto))


def sharded(mode, mesh, run, params_specs=None):
    """A run with the batch on the devices of a mesh, and how to place its arguments."""
    if params_specs is not None:
        inputs, rows = PartitionSpec(None, "data"), PartitionSpec("data")
        return run, lambda params, xs, lengths: [
            rs.sharding.place(params, mesh, params_specs),
            rs.sharding.place_inputs(xs, mesh, inputs),
            rs.sharding.place(lengths, mesh, rows),
        ]
    specs = (PartitionSpec(), PartitionSpec(None, "data"), PartitionSpec("data"))
    if mode == "shard_map":
        return jax.shard_map(run, mesh=mesh, in_specs=specs, out_specs=(specs[2], specs[1])), lambda *given: given
    place = lambda leaf, spec: jax.device_put(leaf, NamedSharding(mesh, spec))  # noqa: E731
    return run, lambda *given: [
        jax.tree.map(lambda leaf, s=s: place(leaf, s), one) for one, s in zip(given, specs, strict=True)
    ]


def check(mode, case, memories):
    """What is found for each memory choice."""
    params, run = CASES[case]()
    random = np.random.default_rng(0)
    draw = lambda leaf: normal(random, leaf.shape, jnp.float32, 0.5)  # noqa: E731
    given = jax.tree.map(draw, params), draw(np.zeros((STEPS, ROWS, FEATURES))), jnp.arange(ROWS) % (STEPS + 2)

    # The gradient of the inputs is a sum over units, with a collective of its own.
    wanted = 0 if mode.startswith("units") else (0, 1)

    def gradient(run):
        def loss(params, xs, lengths):
            results = run(params, xs, lengths)
            return sum(jnp.sum(jnp.sin(leaf + 0.3)) for leaf in jax.tree.leaves(results)), results

        return jax.jit(jax.value_and_grad(loss, argnums=wanted, has_aux=True))

    expected = gradient(partial(run, memory=None))(*given)
    mesh = mesh_of(mode)
    specs = rs.sharding.rules(RULES[case](), mesh) if mode.startswith("units") else None
    found = {}
    for memory in memories:
        this_run, placed = sharded(mode, mesh, partial(run, memory=MEMORIES[memory]), specs)
        place = placed
        if case == "parameters on no mesh":
            place = lambda *given, placed=placed: (given[0], *placed(*given)[1:])  # noqa: E731
        chosen = heuristics.using(HEURISTICS[case]) if case in HEURISTICS else nullcontext()
        # JAX asks for the mesh where axes are explicit.
        with jax.set_mesh(mesh) if mode == "explicit" else nullcontext(), chosen:
            compiled = gradient(this_run).lower(*place(*given)).compile()
        pairs = zip(jax.tree.leaves(expected), jax.tree.leaves(compiled(*placed(*given))), strict=True)
        found[f"{case}, {memory}"] = {
            "difference": max(float(np.max(np.abs(a - np.asarray(b)) / (1 + np.abs(a)))) for a, b in pairs),
            "collectives": collectives(compiled.as_text()),
            "parameters": sorted(f"f32{[*leaf.shape]}".replace(" ", "") for leaf in jax.tree.leaves(params)),
        }
    return found


def initial_carries(mode):
    """Over which axes of the mesh the carries are sharded that a cell makes from a sharded input, outside of jit."""
    kind = AxisType.Explicit if mode == "explicit" else AxisType.Auto
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(kind, kind))
    x = jax.device_put(jnp.ones((ROWS, FEATURES)), NamedSharding(mesh, PartitionSpec("data")))
    inner = rs.stack(cells.GRU(UNITS), cells.LSTM(UNITS))
    decoder = attention.decoder(inner, attention.Coverage(FEATURES, 5))
    outputs = jax.device_put(jnp.ones((STEPS, ROWS, FEATURES)), NamedSharding(mesh, PartitionSpec(None, "data")))
    with jax.set_mesh(mesh):
        made = decoder.over(decoder.init(jax.random.key(0), FEATURES), outputs).initial_carry(x)
    return [[axes for axes in leaf.sharding.spec if axes] for leaf in jax.tree.leaves(made)]


def of_mode(mode, asked):
    global UNITS
    UNITS = 16 if mode.startswith("units") else 4  # Units for 8 devices.
    found = {"initial carries": initial_carries(mode)} if mode in ("explicit", "auto") else {}
    for case, memories in asked.items():
        found |= check(mode, case, memories)
    return found


if __name__ == "__main__":
    print(json.dumps({mode: of_mode(mode, asked) for mode, asked in json.loads(sys.argv[1]).items()}))
