"""What devices send each other in a training step, and a projection to many: `python -m benchmarks.meshes`.

Nothing runs. The steps are compiled for described slices of TPU v5e, and for 16 devices of the CPU to compare.
"""

import json
import os
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from importlib.metadata import version
from math import ceil, prod, sqrt
from pathlib import Path
from typing import Annotated, Any

from benchmarks.accelerators.target import environment


os.environ |= environment("tpu")
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=16".strip()

import jax
import jax.numpy as jnp
import numpy as np
import typer
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import rnnscan as rs
from benchmarks.accelerators.hlo import Program, cycles, type_bytes
from rnnscan._util.hlo import Instruction
from rnnscan.engine.costs import heuristics


STEPS, ROWS, UNITS = 128, 32, 1024  # Rows of each device of "data"; as many features as units.
CELLS = {"LSTM": rs.cells.LSTM(UNITS), "minGRU": rs.cells.MinGRU(UNITS)}
CACHE = Path(".accelerators/meshes.json")
SLICES = {8: "v5e:2x4", 16: "v5e:4x4", 64: "v5e:8x8"}
# Of a TPU v5e: cycles a second, and bytes a second that a chip receives from its neighbours. Both follow from
# https://cloud.google.com/tpu/docs/v5e: 197 teraflops in bfloat16, by four units of 128 x 128; and 400 GB/s in both
# directions together. The latency of a hop is an assumption.
CLOCK, LINKS, HOP = 1.5e9, 200e9, 1e-6
KINDS = ("all-reduce", "all-gather", "all-to-all", "collective-permute", "reduce-scatter")
BEGIN, END = "<!-- python -m benchmarks.meshes -->", "<!-- end -->"


@dataclass(frozen=True)
class Collective:
    """A collective of a compiled program.

    Attributes:
        kind: its opcode.
        times: how often it runs in a training step.
        received: the bytes that a device receives each time.
        devices: those of a group.
        in_loop: whether a loop holds it.
    """

    kind: str
    times: int
    received: float
    devices: int
    in_loop: bool


@dataclass(frozen=True)
class Found:
    """What is read off a compiled step: its collectives, and the TPU compiler's estimate of its cycles without them."""

    collectives: list[Collective]
    cycles: int


def lowered(cell: Any, data: int, model: int, devices: Any) -> Any:
    """A step of SGD, lowered for a mesh."""
    mesh = Mesh(np.array(devices).reshape(data, model), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    specs = rs.sharding.rules(cell, mesh, input_size=UNITS)
    shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)
    params = jax.eval_shape(lambda: cell.init(jax.random.key(0), UNITS))
    params = jax.tree.map(
        lambda leaf, where: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where), params, shardings
    )
    rows = NamedSharding(mesh, PartitionSpec(None, "data"))
    xs = jax.ShapeDtypeStruct((STEPS, ROWS * data, UNITS), jnp.float32, sharding=rows)

    def step(params: Any, xs: Any) -> Any:
        loss = lambda params: jnp.mean(rs.scan(cell, params, cell.initial_carry(xs[0]), xs)[1] ** 2)  # noqa: E731
        return jax.tree.map(lambda leaf, gradient: leaf - 0.1 * gradient, params, jax.grad(loss)(params))

    with heuristics.using(heuristics.for_platform("tpu")):
        traced = jax.jit(step, out_shardings=shardings).trace(params, xs)
        return traced.lower(lowering_platforms=(mesh.devices.flat[0].platform,))


def collectives(program: Program) -> list[Collective]:
    """All that run in a step.

    On a TPU a gather may begin before a loop and end after it. Its parts are in several fusions, and have one channel.
    """
    every = (one for body in program.computations.values() for one in body)
    loops = {str(one.attribute("body")) for one in every if one.kind == "while"}
    found: dict[str, Collective] = {}
    for placed in program.placed():
        inside: tuple[Instruction, ...] = (placed.instruction,)
        if placed.instruction.kind == "fusion":
            inside = program.computations.get(str(placed.instruction.attribute("calls")), ())
        for one in inside:
            kind = one.kind.removesuffix("-start")
            devices = _group(one) if kind in KINDS else 1
            if devices > 1:
                channel = re.search(r"channel_id=(\d+)", one.rest)
                key = channel[1] if channel else one.name
                made = Collective(
                    kind, placed.times, _received(kind, one, devices), devices, placed.computation in loops
                )
                found[key] = min(found.get(key, made), made, key=lambda one: one.times)
    return list(found.values())


def _group(one: Instruction) -> int:
    """The devices of each group of a collective, in the three ways in which XLA prints groups."""
    if one.kind.startswith("collective-permute"):
        return 2
    if listed := re.search(r"replica_groups=\{\{([\d,]*)\}", one.rest):
        return len(listed[1].split(","))
    if numbered := re.search(r"replica_groups=\[\d+,(\d+)\]", one.rest):
        return int(numbered[1])
    named = re.search(r"replica_groups=mesh\[(.*?)\].*?\{(.*?)\}", one.rest)
    if named is None:
        raise ValueError(f"meshes: expected a collective with groups; got {one.rest}. Add its form to `_group`.")
    sizes = dict(re.findall(r"'(\w+)'=(\d+)", named[1]))
    return prod(int(sizes[axis]) for axis in re.findall(r"'(\w+)'", named[2]))


def _received(kind: str, one: Instruction, devices: int) -> float:
    size = type_bytes(one.type)
    if one.kind == "all-gather-start":  # Its type is that of the operand and that of the result.
        size = size * devices / (devices + 1)
    share = (devices - 1) / devices
    return {"all-reduce": 2 * size * share, "reduce-scatter": size * (devices - 1), "collective-permute": size}.get(
        kind, size * share
    )


def found(name: str, data: int, model: int, platform: str, report: Callable[[str], None]) -> Found:
    """What a compiled step has. Programs that were compiled before are remembered."""
    known = json.loads(CACHE.read_text()) if CACHE.exists() else {}
    chips = topologies.get_topology_desc(SLICES[data * model], platform="tpu").devices
    program = lowered(CELLS[name], data, model, chips if platform == "tpu" else jax.devices("cpu")[: data * model])
    key = sha256(f"{platform} {version('jax')} {data} {model} {program.as_text()}".encode()).hexdigest()[:32]
    if key not in known:
        report(f"{name}, {data}x{model}, {platform}")
        parsed = Program.parse(program.compile().as_text())
        known[key] = asdict(Found(collectives(parsed), parsed.cost(cycles)[0]))
        CACHE.parent.mkdir(exist_ok=True)
        CACHE.write_text(json.dumps(known))
    return Found([Collective(**one) for one in known[key]["collectives"]], known[key]["cycles"])


def in_words(made: Iterable[Collective]) -> str:
    """The kinds of collectives, and how often each runs."""
    counts: dict[str, int] = {}
    for one in made:
        counts[one.kind] = counts.get(one.kind, 0) + one.times
    return ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())) or "none"


def comparison(report: Callable[[str], None]) -> str:
    """The collectives in the loops of 16 TPU chips and of 16 CPU devices."""
    lines = ["| net | data x model | in loops, TPU | in loops, CPU |", "| --- | --- | --- | --- |"]
    for name in CELLS:
        for data, model in ((16, 1), (4, 4)):
            made = [found(name, data, model, platform, report).collectives for platform in ("tpu", "cpu")]
            looped = [in_words(one for one in of_platform if one.in_loop) for of_platform in made]
            lines.append(f"| {name} | {data} x {model} | {looped[0]} | {looped[1]} |")
    return "\n".join(lines)


def projection(report: Callable[[str], None]) -> str:
    """The table of meshes with 8, 64 and 512 devices. Those of 512 follow from those of 64."""
    lines = [
        "| net | devices | data x model | in loops | once | MB received | compute | sending | share |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name in CELLS:
        for model in (1, 4):
            for devices in (8, 64, 512):
                data, compiled_data = devices // model, min(devices, 64) // model
                step = found(name, compiled_data, model, "tpu", report)
                made = [wider(one, compiled_data, data) for one in step.collectives]
                received = sum(one.times * one.received for one in made)
                compute, sending = step.cycles / CLOCK, received / LINKS + sum(map(latency, made))
                looped = in_words(one for one in made if one.in_loop)
                once = in_words(one for one in made if not one.in_loop)
                lines.append(
                    f"| {name} | {devices} | {data} x {model} | {looped} | {once} | {received / 1e6:.1f} | "
                    f"{compute * 1e3:.2f} ms | {sending * 1e3:.2f} ms | {sending / (compute + sending):.0%} |"
                )
    return "\n".join(lines)


def wider(one: Collective, data: int, wanted: int) -> Collective:
    """A collective of a mesh with more devices of "data", which has the same local shapes."""
    if one.devices != data or wanted == data:
        return one
    growth = ((wanted - 1) / wanted) / ((data - 1) / data)
    return replace(one, devices=wanted, received=one.received * growth)


def latency(one: Collective) -> float:
    """The seconds that messages travel: on a square torus they pass all rings of both dimensions, sums twice."""
    hops = 2 * (ceil(sqrt(one.devices)) - 1) * (2 if one.kind == "all-reduce" else 1)
    return one.times * hops * HOP


def main(
    write: Annotated[Path | None, typer.Option(help="The page to write into, such as docs/sharding.md.")] = None,
) -> None:
    """Print the tables, or write them between the marks of a page."""
    report = lambda line: print(line, file=sys.stderr, flush=True)  # noqa: E731
    tables = f"{comparison(report)}\n\n{projection(report)}"
    if write is None:
        print(tables)
        return
    before, _, rest = write.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    write.write_text(f"{before}{BEGIN}\n\n{tables}\n\n{END}{after}")


if __name__ == "__main__":
    typer.run(main)
