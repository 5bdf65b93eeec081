"""A model of a GPU's time: each kernel takes the time of its launch, its bytes or its operations, the longest of them.

A model, and no measurement. It ignores the caches, what a kernel reaches of the device's rates, and the time of the
host.
"""

from dataclasses import dataclass
from functools import partial
from math import prod

from benchmarks.accelerators.hlo import Program, arrays, launches, type_bytes
from rnnscan._util.hlo import Instruction


@dataclass(frozen=True)
class Rates:
    """Published rates of a device.

    Attributes:
        launch: the least and the most seconds of a small kernel in a sequence of them.
        bytes: bytes a second of its memory.
        operations: operations a second of its matrix units, by the dtype of the operands.
    """

    launch: tuple[float, float]
    bytes: float
    operations: dict[str, float]


# Memory and matrix units: NVIDIA's data sheet of the H200, without sparsity; float32 products run in TensorFloat-32.
# Launches: an LSTM as a plain `lax.scan` launches 6 kernels a step forward and 31 trained, and takes 10 and 35 us
# (Poeppel et al. 2024, "FlashRNN", appendix), which is 1.1 to 1.7 us each.
H200 = Rates((1.1e-6, 1.7e-6), 4.8e12, {"bf16": 989e12, "f16": 989e12, "f32": 494e12})


def modelled_seconds(program: Program, rates: Rates) -> tuple[float, float]:
    """The modelled time of a program, with the least and the most of a launch."""
    low, high = 0.0, 0.0
    for placed in program.placed():
        if not launches(placed.instruction):
            continue
        moved = bytes_moved(program, placed.computation, placed.instruction) / rates.bytes
        work = max(moved, product_seconds(program, placed.computation, placed.instruction, rates))
        low += placed.times * max(rates.launch[0], work)
        high += placed.times * max(rates.launch[1], work)
    return low, high


def bytes_moved(program: Program, computation: str, instruction: Instruction) -> int:
    """The bytes that a kernel reads and writes. Of an operand that it slices, only the slice."""
    callee = instruction.attribute("calls") if instruction.kind == "fusion" else None
    if callee is None:
        return _written(program, computation, instruction) + sum(
            _read_bytes(program, computation, operand, [instruction]) for operand in set(instruction.operands)
        )
    body = program.computations[callee]
    reads = partial(_read_bytes, program, callee)
    read = sum(reads(one.name, _users(body, one.name)) for one in body if one.kind == "parameter")
    return read + sum(_written(program, callee, one) for one in _results(program, callee, body))


def product_seconds(program: Program, computation: str, instruction: Instruction, rates: Rates) -> float:
    """The time of a kernel's products on the matrix units."""
    callee = instruction.attribute("calls") if instruction.kind == "fusion" else None
    if callee is not None:
        return sum(product_seconds(program, callee, one, rates) for one in program.computations[callee])
    if instruction.kind != "dot":
        return 0.0
    operand = program.find(computation, instruction.operands[0])
    if operand is None:
        return 0.0
    ((dtype, _),) = arrays(operand.type)
    return product_operations(instruction, operand) / rates.operations.get(dtype, rates.operations["f32"])


def product_operations(product: Instruction, operand: Instruction) -> int:
    """Multiplications and additions of a product, given its first operand."""
    ((_, out),), ((_, given),) = arrays(product.type), arrays(operand.type)
    axes = product.rest.partition("lhs_contracting_dims={")[2].partition("}")[0]
    return 2 * prod(out) * prod(given[int(axis)] for axis in axes.split(",") if axis)


def _read_bytes(program: Program, computation: str, name: str, users: list[Instruction]) -> int:
    """What `users` read of a value."""
    value = program.find(computation, name)
    if value is None:
        return 0
    slices = [one for one in users if one.operands and one.operands[0] == name]
    if users and len(slices) == len(users) and all(one.kind in _SLICES or one.kind in _UPDATES for one in users):
        return sum(type_bytes(one.type) for one in users if one.kind in _SLICES)
    return type_bytes(value.type)


def _written(program: Program, computation: str, result: Instruction) -> int:
    update = program.find(computation, result.operands[1]) if result.kind in _UPDATES else None
    return type_bytes(result.type if update is None else update.type)


def _users(body: tuple[Instruction, ...], name: str) -> list[Instruction]:
    """The instructions that read a value, also through bitcasts."""
    found: list[Instruction] = []
    for one in body:
        if name in one.operands:
            found += _users(body, one.name) if one.kind == "bitcast" else [one]
    return found


def _results(program: Program, computation: str, body: tuple[Instruction, ...]) -> list[Instruction]:
    (root,) = [one for one in body if one.is_root]
    results = [root] if root.kind != "tuple" else [program.find(computation, name) for name in root.operands]
    return [_without_bitcasts(program, computation, one) for one in results if one is not None]


def _without_bitcasts(program: Program, computation: str, one: Instruction) -> Instruction:
    before = program.find(computation, one.operands[0]) if one.kind == "bitcast" else None
    return one if before is None else _without_bitcasts(program, computation, before)


_SLICES = frozenset({"dynamic-slice", "slice", "gather"})
_UPDATES = frozenset({"dynamic-update-slice"})
