"""Linear recurrences: `c' = a * c + b`, elementwise, with `a` and `b` free of c."""

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from rnnscan.engine.fission.analysis.components import Components
from rnnscan.engine.fission.analysis.split import needed
from rnnscan.engine.fission.execute.batched_values import Chunk
from rnnscan.engine.fission.execute.chunked_scan import before_each
from rnnscan.engine.fission.trace import Atom, Equation, Value


_SUMS = frozenset({"add", "add_any", "sub"})
_SAME = frozenset({"neg", "copy", "convert_element_type", "stop_gradient"})


def is_linear(equations: Iterable[Equation], leaf: Value, new_leaf: Atom) -> bool:
    """Whether `new_leaf = a * leaf + b`, elementwise, by the equations that lie between the two.

    Padding and resets are selections around that, whose predicate is free of the leaf, so they keep the form.
    """
    dependent = {leaf}
    for equation in equations:
        operands = [atom in dependent for atom in equation.inputs]
        if not any(operands):
            continue
        primitive = equation.primitive.name
        linear = (
            primitive in _SUMS | _SAME
            or (primitive == "mul" and operands.count(True) == 1)
            or (primitive == "div" and not operands[1])
            or (primitive == "select_n" and not operands[0])
        )
        result = equation.outputs[0]
        if not linear or result.shape != leaf.shape or not jnp.issubdtype(result.dtype, jnp.number):
            return False
        dependent.update(equation.outputs)
    return new_leaf in dependent


def follows_linearly(
    equations: Sequence[Equation], carry: Sequence[Value], new_carry: Sequence[Atom], *, candidates: Sequence[int]
) -> list[int]:
    """Leaves of the carry that need not be kept, because they follow from the others by linear recurrences.

    An LSTM's c is the example: once h is known at every step so are its gates, and `c' = f * c + i * g` is cheap.
    Leaves are tried in order; one is left out if each loop among all that are left out is a linear one.

    Args:
        equations: one step, in order.
        carry: the leaves that it is given.
        new_carry: the leaves that it returns.
        candidates: positions of the leaves to try.

    Returns:
        Positions in `carry`.
    """
    left_out: list[int] = []
    for candidate in candidates:
        trial = [*left_out, candidate]
        if _all_linear(equations, [carry[index] for index in trial], [new_carry[index] for index in trial]):
            left_out = trial
    return left_out


def associative_scan(
    equations: Sequence[Equation], leaf: Value, new_leaf: Atom, chunk: Chunk, start: Any, *, reverse: bool
) -> tuple[Any, Any]:
    """Run a linear recurrence over a chunk of steps in a logarithmic number of rounds.

    Two steps `c -> a c + b` and `c -> a' c + b'` make one, `c -> (a' a) c + (a' b + b')`.

    Args:
        equations: those between the leaf and the new leaf.
        leaf: the carry that a step is given.
        new_leaf: the carry that it returns, `a * leaf + b`.
        chunk: has what `a` and `b` follow from.
        start: the carry before the first step to run.
        reverse: whether the steps run from the last to the first.

    Returns:
        The carry before each step, stacked, and the carry after the last one.
    """

    def after_both(first: tuple[Any, Any], second: tuple[Any, Any]) -> tuple[Any, Any]:
        (factor, term), (next_factor, next_term) = first, second
        return next_factor * factor, next_factor * term + next_term

    step = _factor_and_term(equations, leaf, new_leaf, chunk, start)
    factors, terms = lax.associative_scan(after_both, step, reverse=reverse)
    after = factors * start + terms
    return before_each(after, start, reverse=reverse), after[0 if reverse else -1]


def _factor_and_term(
    equations: Sequence[Equation], leaf: Value, new_leaf: Atom, chunk: Chunk, start: Any
) -> tuple[Any, Any]:
    """The a and b of `new_leaf = a * leaf + b` at each step: what the equations make of `1 * leaf + 0`."""
    zeros = jnp.broadcast_to(lax.full_like(start, 0), (chunk.steps, *leaf.shape))
    pairs: dict[Atom, tuple[Any, Any]] = {leaf: (zeros + 1, zeros)}
    for equation in equations:
        if not any(atom in pairs for atom in equation.inputs):
            continue
        pairs[equation.outputs[0]] = (
            _evaluate_part(equation, pairs, chunk, part=0),
            _evaluate_part(equation, pairs, chunk, part=1),
        )
    return pairs[new_leaf]


def _evaluate_part(equation: Equation, pairs: dict[Atom, tuple[Any, Any]], chunk: Chunk, part: int) -> Any:
    """The factor (part 0) or the term (part 1) of an equation's result.

    A free operand scales the factor as it scales the term, and is added to the term only.
    """
    scales = part == 1 or equation.primitive.name in ("mul", "div")
    operands, axes = [], []
    for position, atom in enumerate(equation.inputs):
        if atom in pairs:
            operands.append(pairs[atom][part])
        else:
            is_predicate = equation.primitive.name == "select_n" and position == 0
            free = chunk.read(atom)
            operands.append(free if scales or is_predicate else jnp.zeros_like(free))
        axes.append(0 if atom in pairs or chunk.varies(atom) else None)
    return jax.vmap(equation.evaluate, in_axes=axes)(*operands)[0]


def _all_linear(equations: Sequence[Equation], carry: Sequence[Value], new_carry: Sequence[Atom]) -> bool:
    equations = needed(equations, new_carry)
    components = Components(equations, carry, new_carry)
    return all(
        len(members) == 1
        and is_linear(
            [equation for equation in equations if components.has(members, equation)],
            carry[members[0]],
            new_carry[members[0]],
        )
        for members in components.members
    )
