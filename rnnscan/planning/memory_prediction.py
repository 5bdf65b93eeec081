"""Predict the memory of a program from the live ranges of its jaxpr, without compiling it.

XLA fuses elementwise work. A value is in memory only if the program returns it, or if an operation that is not fused,
such as a product or a loop, writes or reads it. It is live until the last operation that reads it, directly or through
fused work.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax.extend import core

from rnnscan.ir.dataflow import depending, needed
from rnnscan.ir.jaxprs import inner_bodies, without_dead_code
from rnnscan.ir.program import Atom, Equation, Program, Value, values_of
from rnnscan.ir.trace import trace
from rnnscan.ir.traits import Kind


# They read their operands from memory, and write their results there.
_NOT_FUSED = frozenset({Kind.PRODUCT, Kind.LOOP, Kind.BRANCH, Kind.SORT, Kind.SCATTER, Kind.KERNEL})
# Fused with their operands, but not with their readers.
_WRITTEN = frozenset({Kind.JOIN, Kind.REDUCE, Kind.CUMULATIVE})


@dataclass(frozen=True)
class Need:
    """The peak memory of a program besides its arguments and results.

    Attributes:
        nbytes: the bytes.
        fixed: the bytes that do not grow with the number of examples.
    """

    nbytes: int
    fixed: int


def predict_temporary(function: Callable[..., Sequence[Any]], *arguments: Any, fixed: int = 0) -> Need:
    """Predict the peak memory of a function besides its arguments and results.

    Args:
        function: takes arrays, returns a sequence of arrays.
        arguments: arrays or `jax.ShapeDtypeStruct`.
        fixed: the number of leading arguments that do not grow with the number of examples.

    Returns:
        The prediction.

    Example:
        >>> import jax.numpy as jnp
        >>> square = jnp.ones((8, 8))
        >>> predict_temporary(lambda a, b: [jnp.tanh(a @ b) @ b], square, square)  # the first product, tanh over it
        Need(nbytes=256, fixed=0)
    """
    # JAX leaves out what nothing reads before it lowers a program: outputs, under a loss on the last carry.
    program = _program(without_dead_code(jax.make_jaxpr(function)(*arguments)))
    return _need(program, [*program.known, *values_of(program.outputs)], varying=program.known[fixed:])


def _need(program: Program, elsewhere: Iterable[Value], varying: Iterable[Value]) -> Need:
    """The peak of the live values. The memory of values that are `elsewhere` does not count."""
    ranges = _Ranges(program)
    held = {ranges.home(value) for value in elsewhere}
    replaced = {index: ranges.replaced(index) for index in ranges.running}
    for pairs in reversed(replaced.values()):
        held.update(old for new, old in pairs.items() if new in held)
    varies = depending(program.equations, varying)
    most = Need(0, 0)
    for index, pairs in replaced.items():
        live = ranges.live(index) - held - {*pairs.values()}
        nbytes = sum(map(_device_bytes, live)) + _inside(program.equations[index])
        if nbytes > most.nbytes:
            most = Need(nbytes, sum(_device_bytes(value) for value in live if value not in varies))
    return most


class _Ranges:
    """The values of a program that are in memory, with their live ranges.

    Attributes:
        running: numbers of the equations that write to memory; others are fused with their readers.
    """

    def __init__(self, program: Program) -> None:
        self._equations = program.equations
        self._inputs = frozenset(program.known)
        self._maker = {output: equation for equation in program.equations for output in equation.outputs}
        self._returned = {self.home(value) for value in values_of(program.outputs)}
        self._placed = {*program.known, *self._returned, *self._with_places()}
        loops = [equation for equation in program.equations if equation.kind is Kind.LOOP]
        self._unread = self._unread_stacks(loops)
        # A `while` has its stacks in its state.
        self._stacks = {
            stack for loop in loops for stack in loop.outputs[_carry_size(loop) if loop.name == "scan" else 0 :]
        }
        self._roots: dict[Value, frozenset[Value]] = {}
        self.running = [index for index, equation in enumerate(self._equations) if self._runs(equation)]
        self._born = dict.fromkeys(program.known, 0)
        self._last: dict[Value, int] = {}
        for index in self.running:
            equation = self._equations[index]
            outputs = [output for output in equation.outputs if output not in self._unread]
            self._born.update(dict.fromkeys(outputs, index))
            self._last.update(dict.fromkeys([*outputs, *self._roots_of(equation)], index))
        self._last.update(dict.fromkeys(self._returned, len(self._equations)))

    def home(self, value: Value) -> Value:
        """The value whose memory a view shares."""
        while value in self._maker and _is_view(self._maker[value]):
            (source,) = self._maker[value].inputs[:1]
            if not isinstance(source, Value):
                break
            value = source
        return value

    def live(self, index: int) -> set[Value]:
        """The values that are in memory while an equation runs. A view of a constant is a part of the program."""
        born = self._born
        return {value for value, last in self._last.items() if value in born and born[value] <= index <= last}

    def replaced(self, index: int) -> dict[Value, Value]:
        """Results of an equation, with the operands of the same size that they overwrite.

        XLA on a CPU does not overwrite the stacked results of a loop.
        """
        equation = self._equations[index]
        if equation.kind is Kind.LOOP:
            operands = {self.home(value) for value in values_of(_of_loop(equation, equation.inputs).carry)}
        else:
            operands = {*()} if _is_not_fused(equation) else {*self._roots_of(equation)}
        kept = {*self._inputs, *self._stacks}
        free = [value for value in self._last if value in operands - kept and self._last[value] == index]
        pairs: dict[Value, Value] = {}
        for output in equation.outputs:
            old = next((value for value in free if value.nbytes == output.nbytes), None)
            if old is not None:
                pairs[output] = old
                free.remove(old)
        return pairs

    def is_read_after(self, value: Value, other: Value) -> bool:
        """Whether an equation reads a value after another value is made."""
        return self._last.get(value, 0) > self._born.get(self.home(other), 0)

    def _unread_stacks(self, loops: Sequence[Equation]) -> set[Value]:
        """Stacked results of loops that nothing reads, which XLA drops: outputs, under a loss on the last carry."""
        read = {value for equation in self._equations for value in equation.reads} | self._returned
        return {stack for loop in loops for stack in loop.outputs[_carry_size(loop) :] if stack not in read}

    def _with_places(self) -> Iterator[Value]:
        readers: dict[Value, int] = defaultdict(int)
        for equation in self._equations:
            if _is_not_fused(equation) or equation.kind in _WRITTEN:
                yield from equation.outputs
            for value in map(self.home, equation.reads):
                if _is_not_fused(equation):
                    yield value
                readers[value] += not _is_view(equation)
        for equation in self._equations:
            if equation.traits.is_transcendental and readers[equation.outputs[0]] > 1:
                yield equation.outputs[0]

    def _runs(self, equation: Equation) -> bool:
        return not _is_view(equation) and any(output in self._placed for output in equation.outputs)

    def _roots_of(self, equation: Equation) -> frozenset[Value]:
        """The values in memory that an equation reads: its operands, or those of the work fused with it."""
        return frozenset().union(*(self._roots_of_value(self.home(value)) for value in equation.reads))

    def _roots_of_value(self, value: Value) -> frozenset[Value]:
        if value in self._placed or value not in self._maker:
            return frozenset({value})
        if value not in self._roots:
            self._roots[value] = self._roots_of(self._maker[value])
        return self._roots[value]


def _inside(equation: Equation) -> int:
    """The memory inside an equation with inner programs: that of one run of the largest."""
    if equation.kind is Kind.LOOP:
        return _in_loop(equation)
    programs = [_program(body) for body in inner_bodies(equation.params) if isinstance(body, core.ClosedJaxpr)]
    return max((_need(program, program.known, varying=()).nbytes for program in programs), default=0)


def _in_loop(equation: Equation) -> int:
    """The memory of one iteration of a loop: input slices that are not fused, and carries that are not in place."""
    program = _program(_body(equation))
    ranges = _Ranges(program)
    inputs = _of_loop(equation, program.known)
    carried = zip(inputs.carry, program.outputs, strict=False)
    in_place = [new for old, new in carried if isinstance(new, Value) and not ranges.is_read_after(old, new)]
    read_whole = {ranges.home(value) for each in program.equations if _is_not_fused(each) for value in each.reads}
    fused = [value for value in inputs.xs if value not in read_whole]
    return _need(program, [*inputs.constants, *inputs.carry, *in_place, *fused], varying=()).nbytes


@dataclass(frozen=True)
class _OfLoop:
    constants: Sequence[Any]
    carry: Sequence[Any]
    xs: Sequence[Any]


def _of_loop(equation: Equation, inputs: Sequence[Any]) -> _OfLoop:
    """The inputs of a loop, or of its body, by role. The constants of a while loop's condition are left out.

    The primitive's parameters differ between versions of JAX, so shapes tell: stacked inputs have one more axis outside
    of the body.
    """
    avals = _body(equation).in_avals
    outside, inputs = equation.inputs[-len(avals) :], inputs[-len(avals) :]
    last = sum(atom.shape == tuple(aval.shape) for atom, aval in zip(outside, avals, strict=True))
    first = last - _carry_size(equation)
    return _OfLoop(inputs[:first], inputs[first:last], inputs[last:])


def _body(loop: Equation) -> core.ClosedJaxpr:
    return loop.params["jaxpr" if loop.name == "scan" else "body_jaxpr"]


def _carry_size(equation: Equation) -> int:
    avals = _body(equation).out_avals
    return sum(output.shape == tuple(aval.shape) for output, aval in zip(equation.outputs, avals, strict=True))


def _program(body: Any) -> Program:
    return _inlined(trace(core.jaxpr_as_fun(body), *body.in_avals))


def _inlined(program: Program) -> Program:
    """The program as XLA sees it: calls and loops of one iteration inlined, dead code removed."""
    equations: list[Equation] = []
    now: dict[Atom, Atom] = {}

    def inline(program: Program) -> None:
        for equation in program.equations:
            inputs = tuple(now.get(atom, atom) for atom in equation.inputs)
            function = _inlinable(equation)
            if function is None:
                equations.append(replace(equation, inputs=inputs))
                continue
            inner = trace(function, *(jax.ShapeDtypeStruct(atom.shape, atom.dtype) for atom in inputs))
            now.update(zip(inner.known, inputs, strict=True))
            inline(inner)
            now.update(
                (output, now.get(result, result))
                for output, result in zip(equation.outputs, inner.outputs, strict=True)
            )

    inline(program)
    outputs = tuple(now.get(atom, atom) for atom in program.outputs)
    return replace(program, equations=tuple(needed(equations, outputs)), stacked=outputs)


def _inlinable(equation: Equation) -> Callable[..., Sequence[Any]] | None:
    """The function of an equation that is a call or a loop of one iteration; None for others."""
    if "call_jaxpr" in equation.params:
        return core.jaxpr_as_fun(equation.params["call_jaxpr"])
    program = getattr(equation.primitive, "program", None)
    if program is not None:
        return core.jaxpr_as_fun(program([atom.aval for atom in equation.inputs], equation.params))
    if equation.name != "scan" or equation.params["length"] != 1:
        return None
    body, carry_size = core.jaxpr_as_fun(_body(equation)), _carry_size(equation)

    def iteration(*leaves: Any) -> list[Any]:
        inputs = _of_loop(equation, leaves)
        results = body(*inputs.constants, *inputs.carry, *(leaf.reshape(leaf.shape[1:]) for leaf in inputs.xs))
        return [*results[:carry_size], *(leaf.reshape(1, *leaf.shape) for leaf in results[carry_size:])]

    return iteration


def host_is_device() -> bool:
    """Whether host and device share one memory, so that offloading moves nothing."""
    return jax.default_backend() == "cpu"


def _device_bytes(value: Value) -> int:
    offloaded = getattr(value.aval, "memory_space", None) == jax.memory.Space.Host
    return 0 if offloaded and not host_is_device() else value.nbytes


def _is_view(equation: Equation) -> bool:
    return equation.traits.is_free


def _is_not_fused(equation: Equation) -> bool:
    return equation.kind in _NOT_FUSED
