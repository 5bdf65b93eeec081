"""Loops and branches without the results that nothing reads."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
from jax import lax

from rnnscan.graph.core.bodies import program_of_body
from rnnscan.graph.nodes.names import type_of
from rnnscan.ir.bodies import carry_of_scan
from rnnscan.ir.dataflow import needed
from rnnscan.ir.program import Atom, Equation, Program, Value, evaluate, read
from rnnscan.ir.trace import Inliner


# Other parameters, which a later jax may add, could change what a scan does.
_PARAMETERS_OF_SCAN = frozenset(
    {"jaxpr", "length", "reverse", "unroll", "num_carry", "num_consts", "linear", "ft_in", "ft_out", "_split_transpose"}
)


def without_unused_results(equation: Equation, wanted: Collection[Value]) -> Equation:
    """The scan, while loop or cond without the results that nothing reads, and without what only they need.

    A leaf of a carry goes if neither the loop nor anything after it reads it. Any other equation stays as it is, and so
    does one with effects.

    Args:
        equation: the equation.
        wanted: the values that are read later.
    """
    slim = _SLIM.get(equation.name)
    places = [index for index, value in enumerate(equation.outputs) if value in wanted]
    if slim is None or equation.effects or len(places) == len(equation.outputs):
        return equation
    return slim(equation, places) or equation


def _slim_scan(equation: Equation, wanted: Sequence[int]) -> Equation | None:
    params = equation.params
    if not _PARAMETERS_OF_SCAN.issuperset(params) or params.get("_split_transpose"):
        return None
    body = program_of_body(params["jaxpr"])
    places = carry_of_scan(body.known, body.stacked, equation.inputs, equation.outputs)
    first, carries = places.start, len(places)
    kept, inputs = _kept([body], wanted, [{first + index: index for index in range(carries)}])
    carry = [index for index in kept if index < carries]
    outputs = [body.stacked[index] for index in kept]
    xs = [index for index in range(places.stop, len(body.known)) if index in inputs[0]]

    def run(*operands: Any) -> Any:
        values = {index: operand for index, operand in enumerate(operands) if index < first and index in inputs[0]}

        def step(state: Sequence[Any], x: Sequence[Any]) -> tuple[list[Any], list[Any]]:
            carry_values = {**values, **dict(zip([first + index for index in carry], state, strict=True))}
            results = _run(body, carry_values | dict(zip(xs, x, strict=True)), outputs)
            return results[: len(carry)], results[len(carry) :]

        options = {name: params[name] for name in ("length", "reverse", "unroll")}
        init, rows = [operands[first + index] for index in carry], [operands[index] for index in xs]
        return lax.scan(step, init, rows, **options)

    return _traced(run, equation, kept)


def _slim_while(equation: Equation, wanted: Sequence[int]) -> Equation | None:
    params = equation.params
    programs = [program_of_body(params[name]) for name in ("cond_jaxpr", "body_jaxpr")]
    sizes = [params["cond_nconsts"], params["body_nconsts"]]
    carries = len(equation.outputs)
    feeds = [{size + index: index for index in range(carries)} for size in sizes]
    kept, inputs = _kept(programs, wanted, feeds)
    begins = [0, sizes[0]]

    def run(*operands: Any) -> Any:
        def part(which: int, state: Sequence[Any]) -> list[Any]:
            size, begin, program = sizes[which], begins[which], programs[which]
            values = {index: operands[begin + index] for index in range(size) if index in inputs[which]}
            values.update(zip([size + index for index in kept], state, strict=True))
            return _run(program, values, [program.stacked[index] for index in kept] if which else program.stacked)

        init = [operands[sum(sizes) + index] for index in kept]
        return lax.while_loop(lambda state: part(0, state)[0], lambda state: part(1, state), init)

    return _traced(run, equation, kept)


def _slim_cond(equation: Equation, wanted: Sequence[int]) -> Equation | None:
    programs = [program_of_body(branch) for branch in equation.params["branches"]]
    used = set().union(*(_kept([program], wanted, [{}])[1][0] for program in programs))
    inputs = sorted(used)
    branches = []
    for program in programs:
        outputs = [program.stacked[index] for index in wanted]

        def run(*operands: Any, program: Program = program, outputs: Sequence[Atom] = outputs) -> list[Any]:
            return _run(program, dict(zip(inputs, operands, strict=True)), outputs)

        traced = jax.make_jaxpr(run)(*(program.known[index].aval for index in inputs))
        if traced.consts:
            return None
        branches.append(traced)
    return replace(
        equation,
        params={**equation.params, "branches": tuple(branches)},
        inputs=(equation.inputs[0], *(equation.inputs[1 + index] for index in inputs)),
        outputs=tuple(equation.outputs[index] for index in wanted),
    )


_SLIM: Mapping[str, Callable[[Equation, Sequence[int]], Equation | None]] = {
    "scan": _slim_scan,
    "while": _slim_while,
    "cond": _slim_cond,
}


def _kept(
    programs: Sequence[Program], wanted: Sequence[int], feeds: Sequence[Mapping[int, int]]
) -> tuple[list[int], list[set[int]]]:
    """The results to keep, and the inputs of each program that they need.

    Args:
        programs: the body alone, or a loop's condition and then its body. The condition is always needed.
        wanted: positions of results of the body that are read.
        feeds: for each program: position of an input -> position of the result that feeds it at the next step.
    """
    body, *conditions = programs[::-1]
    kept, inputs = set(wanted), [set[int]() for _ in programs]
    makers = [program.maker for program in programs]
    positions: list[dict[Atom, int]] = [
        {value: index for index, value in enumerate(program.known)} for program in programs
    ]
    last = len(programs) - 1
    tasks = [(last, body.stacked[index]) for index in wanted] + [(0, condition.stacked[0]) for condition in conditions]
    seen = set(tasks)
    while tasks:
        which, atom = tasks.pop()
        sources: list[tuple[int, Atom]] = []
        if atom in makers[which]:
            sources = [(which, operand) for operand in makers[which][atom].inputs]
        elif atom in positions[which]:
            index = positions[which][atom]
            inputs[which].add(index)
            if index in feeds[which]:
                kept.add(feeds[which][index])
                sources = [(last, body.stacked[feeds[which][index]])]
        tasks += [source for source in sources if source not in seen]
        seen.update(sources)
    return sorted(kept), inputs


def _run(program: Program, inputs: Mapping[int, Any], outputs: Sequence[Atom]) -> list[Any]:
    """Outputs of a program from those of its inputs that they need."""
    values = {program.known[index]: value for index, value in inputs.items()}
    evaluate(needed(program.equations, outputs), values)
    return [read(atom, values) for atom in outputs]


def _traced(run: Callable[..., Any], equation: Equation, kept: Sequence[int]) -> Equation | None:
    """The one equation that a loop over the operands is, with the results that are kept; None if it is not one."""
    closed = jax.make_jaxpr(run)(*map(type_of, equation.inputs))
    inliner = Inliner()
    results = inliner.inline(closed.jaxpr, [], equation.inputs) if not closed.consts else []
    outputs = tuple(equation.outputs[index] for index in kept)
    if len(inliner.equations) != 1 or [*results] != [*inliner.equations[0].outputs]:
        return None
    if [value.aval for value in inliner.equations[0].outputs] != [value.aval for value in outputs]:
        return None
    return replace(inliner.equations[0], outputs=outputs)
