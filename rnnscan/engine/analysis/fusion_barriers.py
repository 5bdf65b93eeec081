"""Where a loop on a CPU needs a barrier, because XLA would compute costly elementwise work several times.

A fused kernel makes each element of its result from the loop's values. Where it reads a value at several places, such
as `w + shift(w)`, it makes w once for each. JAX transposes a `pad` or `slice` in a step to such sums, and in CTC each
term takes the exp and log1p of a `logaddexp`. Seen in jax 0.10.0: `w = exp(a - logaddexp(a, b)); w + shift(w, 1)` for
16 x 97 elements takes 13 us in one kernel, and 8 with a barrier on w; with `+ shift(w, 2)` too 130 and 8.
"""

from collections.abc import Mapping, Sequence, Set
from math import prod
from typing import TypeAlias

from rnnscan.engine.costs.costs import has_transcendental, is_written
from rnnscan.engine.costs.machine import Machine
from rnnscan.ir.program import Equation, Value, nominal_size
from rnnscan.ir.traits import Kind


# A path from a costly equation: the moves on it, the last one first.
_Path: TypeAlias = tuple[Equation, ...]
# The paths by which a kernel that makes a value reads each costly equation's result, in order: of equally short ones
# the first is taken, so that one step makes one program.
_Paths: TypeAlias = Mapping[Equation, tuple[_Path, ...]]


def fusion_barriers(equations: Sequence[Equation], machine: Machine) -> set[Value]:
    """The values to write to memory, so that no kernel makes a costly value more than once.

    Args:
        equations: the body of a loop, in order.
        machine: the machine that it runs on.
    """
    costly = {equation: machine.nanoseconds(equation) for equation in equations if has_transcendental(equation)}
    place = {output: index for index, equation in enumerate(equations) for output in equation.outputs}
    barriers: set[Value] = set()
    paths: dict[Value, _Paths] = {}
    index = 0 if costly else len(equations)
    while index < len(equations):
        equation = equations[index]
        read = {} if is_written(equation) else _read(equation, paths, barriers)
        more = _moved_for_repeated(read, paths, costly, machine) - barriers
        if more:
            # A barrier changes the paths to the values after its own, so only these are followed again.
            barriers |= more
            index = min(place[value] for value in more) + 1
            continue
        if equation in costly and not is_written(equation):
            read = {**read, equation: ((),)}
        paths.update(dict.fromkeys(equation.outputs, read))
        index += 1
    return barriers


def _read(equation: Equation, paths: Mapping[Value, _Paths], barriers: Set[Value]) -> _Paths:
    """The paths by which the kernel of an equation reads costly results."""
    read = _joined([paths[value] for value in equation.reads if value in paths and value not in barriers])
    if _is_move(equation):
        read = {source: ((equation, *min(source_paths, key=len)),) for source, source_paths in read.items()}
    return read


def _moved_for_repeated(
    read: _Paths, paths: Mapping[Value, _Paths], costly: Mapping[Equation, float], machine: Machine
) -> set[Value]:
    """The moved values to write, if that takes less time than the work that a kernel repeats for them; else none."""
    if max(map(len, read.values()), default=0) < 2:
        return set()
    repeated = {source: source_paths for source, source_paths in read.items() if len(source_paths) > 1}
    moves = {path[-1] for source_paths in repeated.values() for path in source_paths if path}
    moved = {value for move in moves for value in move.reads if not repeated.keys().isdisjoint(paths.get(value, ()))}
    spared = sum(costly[source] * (sum(map(_share, source_paths)) - 1) for source, source_paths in repeated.items())
    return moved if spared > sum(machine.nanoseconds_to_write(value.nbytes) for value in moved) else set()


def _share(path: _Path) -> float:
    """The part of a value that is made for a path from it. Gates that are cut out of one value are each made once."""
    cuts = [move for move in path if move.kind is Kind.PART]
    sizes = ((nominal_size(cut.outputs[0].shape), nominal_size(cut.inputs[0].shape)) for cut in cuts)
    return prod(part / max(1, whole) for part, whole in sizes)  # There may be no elements.


def _is_move(equation: Equation) -> bool:
    """Whether each element of the result is one element of an operand, at another place."""
    return equation.kind in (Kind.PART, Kind.JOIN) or equation.name in ("rev", "transpose")


def _joined(several: Sequence[_Paths]) -> _Paths:
    if len(several) == 1:
        return several[0]
    joined: dict[Equation, tuple[_Path, ...]] = {}
    for paths in several:
        # Only sources that are read twice are looked at: a sum of many leaves has a long list of those read once.
        twice = {source: (*joined[source], *paths[source]) for source in joined.keys() & paths.keys()}
        joined.update(paths)
        joined.update((source, tuple(dict.fromkeys(source_paths))) for source, source_paths in twice.items())
    return joined
