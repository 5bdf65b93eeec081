"""The split of one step's program into the work that must run step by step and the work that need not.

A step's values depend on nothing but invariant inputs, on inputs that are known for every step, or on the carry of the
loop. By that its equations become, in the order in which they run:

    invariant   once, before everything
    before      for a whole chunk of steps at once: what is heavy and free of the loop's carry, with what feeds it
    body        step by step: what the new carry needs, with the light work around it
    after       for a whole chunk at once, or summed over its steps: what nothing in the loop waits for

Light work that is known for every step stays in the loop: to batch it would write and read a chunk of every value, and
the loop would do it for next to nothing (docs/decisions.md, "The fission engine, so far").
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rnnscan.engine.trace import Atom, Equation, Program, Value, values_of


# Products, whose work grows faster than what they read and write.
HEAVY = frozenset({"dot_general", "conv_general_dilated"})

# Batching these changes what they cost: a vmapped cond runs both branches, a vmapped while runs to the longest.
UNBATCHED = frozenset({"cond", "while", "scan", "sort", "custom_vjp_call", "pallas_call"})


@dataclass(frozen=True)
class Roles:
    """What the inputs and outputs of a step's program are to the loop.

    Attributes:
        invariant: inputs that are the same at every step.
        known: inputs that are known for every step.
        carry: inputs that are the loop's carry.
        new_carry: outputs that are the carry of the next step to run, in the order of `carry`.
        summed: outputs of which only the sum over the steps is wanted.
        stacked: outputs that are wanted for every step.
    """

    invariant: Sequence[Value]
    known: Sequence[Value]
    carry: Sequence[Value]
    new_carry: Sequence[Atom]
    summed: Sequence[Atom]
    stacked: Sequence[Atom]


@dataclass(frozen=True)
class Split:
    """A step's program, split. See the module's docstring.

    Attributes:
        invariant: equations that run once.
        before: equations that run for a chunk, before the loop.
        body: the loop's equations.
        after: equations that run for a chunk, after the loop.
        to_body: values that enter the loop step by step.
        from_body: values of the loop that `after` reads, stacked over the chunk.
        accumulated: positions in `Roles.summed` that are summed up in the loop.
    """

    invariant: tuple[Equation, ...]
    before: tuple[Equation, ...]
    body: tuple[Equation, ...]
    after: tuple[Equation, ...]
    to_body: tuple[Value, ...]
    from_body: tuple[Value, ...]
    accumulated: tuple[int, ...]


def split(program: Program, roles: Roles, accumulated: Sequence[int] = ()) -> Split:
    """Split a step's program.

    Args:
        program: one step.
        roles: what its inputs and outputs are.
        accumulated: positions in `roles.summed` to sum up in the loop; the others are summed after it.

    Returns:
        The split.
    """
    in_loop = [*roles.new_carry, *(roles.summed[position] for position in accumulated)]
    later = [atom for position, atom in enumerate(roles.summed) if position not in set(accumulated)]
    later += roles.stacked
    equations = needed(program.equations, [*in_loop, *later])
    invariant, known, looped = _by_dependence(equations, roles)

    before = _heavy(known)
    light = _without(known, before)
    in_loop_only = [equation for equation in [*light, *looped] if equation.primitive.name in UNBATCHED]
    body_core = needed(looped, [*in_loop, *_outputs(in_loop_only)])
    after_core = _without(looped, body_core)
    wanted = _read(body_core) | set(values_of(in_loop)) | set(_outputs(in_loop_only))
    body = _in_order(equations, needed(light, wanted), body_core)
    light = _without(light, in_loop_only)
    after = _in_order(equations, needed(light, _read(after_core) | set(values_of(later))), after_core)

    given = set(roles.known) | _made(before)
    wanted_in_body = _read(body) | set(values_of(in_loop))
    wanted_after, made_after = _read(after) | set(values_of(later)), _made(after)
    return Split(
        invariant=tuple(invariant),
        before=tuple(before),
        body=tuple(body),
        after=tuple(after),
        to_body=tuple(value for value in [*roles.known, *_outputs(before)] if value in wanted_in_body & given),
        from_body=tuple(
            value for value in [*roles.carry, *_outputs(body)] if value in wanted_after and value not in made_after
        ),
        accumulated=tuple(accumulated),
    )


def needed(equations: Sequence[Equation], wanted: Iterable[Atom]) -> list[Equation]:
    """The equations that the wanted values follow from, in order."""
    open_values = set(values_of(wanted))
    kept = []
    for equation in reversed(equations):
        if any(output in open_values for output in equation.outputs):
            kept.append(equation)
            open_values.update(values_of(equation.inputs))
    return kept[::-1]


def _by_dependence(
    equations: Sequence[Equation], roles: Roles
) -> tuple[list[Equation], list[Equation], list[Equation]]:
    invariant_values, known_values = set(roles.invariant), set(roles.known)
    invariant, known, looped = [], [], []
    for equation in equations:
        inputs = set(values_of(equation.inputs))
        if inputs <= invariant_values:
            invariant.append(equation)
            invariant_values.update(equation.outputs)
        elif inputs <= invariant_values | known_values:
            known.append(equation)
            known_values.update(equation.outputs)
        else:
            looped.append(equation)
    return invariant, known, looped


def _heavy(known: Sequence[Equation]) -> list[Equation]:
    """The products among known equations, with what feeds them, unless that must not be batched."""
    chosen: set[Equation] = set()
    for equation in known:
        if equation.primitive.name in HEAVY:
            feeding = needed(known, equation.outputs)
            if not any(feeder.primitive.name in UNBATCHED for feeder in feeding):
                chosen.update(feeding)
    return [equation for equation in known if equation in chosen]


def _read(equations: Iterable[Equation]) -> set[Value]:
    return {value for equation in equations for value in values_of(equation.inputs)}


def _outputs(equations: Iterable[Equation]) -> list[Value]:
    return [output for equation in equations for output in equation.outputs]


def _made(equations: Iterable[Equation]) -> set[Value]:
    return set(_outputs(equations))


def _without(equations: Sequence[Equation], others: Iterable[Equation]) -> list[Equation]:
    left_out = set(others)
    return [equation for equation in equations if equation not in left_out]


def _in_order(equations: Sequence[Equation], *groups: Iterable[Equation]) -> list[Equation]:
    chosen = {equation for group in groups for equation in group}
    return [equation for equation in equations if equation in chosen]
