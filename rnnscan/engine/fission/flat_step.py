"""One step as flat functions of arrays: forward, and with kept values restored, as the backward pass needs it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax.extend import core

from rnnscan._messages import is_count
from rnnscan._step_wrappers import Step
from rnnscan.engine.fission.name_capture import marking, restoring
from rnnscan.engine.fission.trace import Atom, Program, Value, trace
from rnnscan.naming import Names


@dataclass(frozen=True)
class FlatStep:
    """A step, traced. What it closes over is its first argument, so that it gets gradients.

    It does not hold these arrays: the backward pass lives on in JAX's caches, and must not hold a trace through them.

    Attributes:
        program: `(constants, carry, x) -> (new carry, y, kept named values)`.
        constants_size: number of arrays that the step closes over.
        carry_size: number of leaves of the carry.
        y_structure: the structure of y.
        kept_labels: the labels of the named values to keep, in their order.
        has_effects: whether the step does more than compute.
        keeps_all: whether every named value to keep can be taken out of the step. One within a vmap or a branch cannot.
    """

    program: Program
    constants_size: int
    carry_size: int
    y_structure: Any
    kept_labels: tuple[str, ...]
    has_effects: bool
    keeps_all: bool
    _restored: Any

    @property
    def y_size(self) -> int:
        """Number of leaves of y."""
        return int(self.y_structure.num_leaves)

    @property
    def constants(self) -> tuple[Value, ...]:
        """What the step closes over."""
        return self.program.inputs[: self.constants_size]

    @property
    def carry(self) -> tuple[Value, ...]:
        """The carry that the step is given."""
        return self.program.inputs[self.constants_size :][: self.carry_size]

    @property
    def x(self) -> tuple[Value, ...]:
        """The input that the step is given."""
        return self.program.inputs[self.constants_size + self.carry_size :]

    @property
    def new_carry(self) -> tuple[Atom, ...]:
        """The carry that the step returns."""
        return self.program.outputs[: self.carry_size]

    @property
    def y(self) -> tuple[Atom, ...]:
        """The y that the step returns."""
        return self.program.outputs[self.carry_size :][: self.y_size]

    @property
    def kept(self) -> tuple[Atom, ...]:
        """The named values to keep."""
        return self.program.outputs[self.carry_size + self.y_size :]

    @property
    def repeats(self) -> dict[int, int]:
        """Carry leaf -> y leaf that is the same value."""
        y_leaves = {atom: index for index, atom in reversed(list(enumerate(self.y)))}
        return {
            index: y_leaves[atom]
            for index, atom in enumerate(self.new_carry)
            if isinstance(atom, Value) and atom in y_leaves
        }

    @property
    def repeated_ys(self) -> list[int]:
        """The y leaves that carry leaves repeat, in order."""
        return sorted(set(self.repeats.values()))

    @property
    def unchanged(self) -> list[int]:
        """Carry leaves that the step returns as it got them."""
        return [index for index, leaf in enumerate(self.carry) if self.new_carry[index] is leaf]

    def restored(
        self, constants: Sequence[Any], carry: Sequence[Any], x: Sequence[Any], kept: Sequence[Any]
    ) -> tuple[list[Any], list[Any]]:
        """The new carry and y, with kept values in place of what made them; the function to differentiate."""
        opened, places = self._restored
        arguments = [*(constants[index] for index in places), *carry, *x, *kept]
        results = list(core.jaxpr_as_fun(opened)(*arguments))
        return results[: self.carry_size], results[self.carry_size :]


def flatten_step(step: Step, carry: Any, x: Any, *, kept: frozenset[str], names: Names) -> tuple[FlatStep, list[Any]]:
    """Trace a step.

    Args:
        step: `(carry, x) -> (carry, y)`.
        carry: a carry, or its shapes.
        x: one step's input, or its shapes.
        kept: labels of the values to keep.
        names: the names that the step uses.

    Returns:
        The step as flat functions, and the arrays that it closes over.
    """
    structure = jax.tree.structure((carry, x))
    leaves = jax.tree.leaves((carry, x))
    shapes: dict[int, tuple[int, ...]] = {}
    y_structure: Any = None

    def forward(*leaves: Any) -> list[Any]:
        nonlocal y_structure
        with marking(kept, names) as named:
            new_carry, y = step(*jax.tree.unflatten(structure, leaves))
        shapes.update(named)
        y_structure = jax.tree.structure(y)
        return [*jax.tree.leaves(new_carry), *jax.tree.leaves(y)]

    traced = jax.make_jaxpr(forward)(*leaves)
    program = trace(core.jaxpr_as_fun(_opened(traced, leaves)), *traced.consts, *leaves)
    # A value within a vmap has one axis less than the marked one, and a value within a branch is not seen at all.
    marked = {position: program.marked.get(str(position)) for position in shapes}
    can_keep = {position: atom is not None and atom.shape == shapes[position] for position, atom in marked.items()}
    kept_values = {
        position: atom for position, atom in marked.items() if isinstance(atom, Value) and can_keep[position]
    }

    def restored(*leaves: Any) -> list[Any]:
        given = leaves[len(leaves) - len(kept_values) :]
        with restoring(kept, names, dict(zip(kept_values, given, strict=True))):
            new_carry, y = step(*jax.tree.unflatten(structure, leaves[: len(leaves) - len(kept_values)]))
        return [*jax.tree.leaves(new_carry), *jax.tree.leaves(y)]

    kept_types = [atom.aval for atom in kept_values.values()]
    retraced = jax.make_jaxpr(restored)(*leaves, *kept_types)
    constants = list({id(const): const for const in [*traced.consts, *retraced.consts]}.values())
    place = {id(const): index for index, const in enumerate(constants)}
    more = [Value(jax.typeof(const)) for const in constants[len(traced.consts) :]]
    given = program.inputs
    flat = FlatStep(
        program=replace(
            program,
            inputs=(*given[: len(traced.consts)], *more, *given[len(traced.consts) :]),
            outputs=(*program.outputs, *kept_values.values()),
        ),
        constants_size=len(constants),
        carry_size=len(jax.tree.leaves(carry)),
        y_structure=y_structure,
        kept_labels=tuple(names.labels[position] for position in kept_values),
        has_effects=bool(traced.effects),
        keeps_all=all(can_keep.values()),
        _restored=(_opened(retraced, [*leaves, *kept_types]), [place[id(const)] for const in retraced.consts]),
    )
    return flat, constants


def one_step(leaf: Any) -> Any:
    """The type of one step of a stack `(T, ...)`, as it is sharded, with the axes over which `shard_map` varies it."""
    if is_count(leaf.shape[0], least=0) and not leaf.shape[0]:  # Then there is no step to take.
        return jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype)
    return jax.eval_shape(lambda leaf: leaf[0], leaf)


def _opened(traced: Any, arguments: Sequence[Any]) -> Any:
    """The same with what it closes over as its first arguments. A jaxpr of jax 0.12 holds its constants by itself."""
    count = len(traced.consts)

    def opened(*given: Any) -> Any:
        return core.jaxpr_as_fun(core.ClosedJaxpr(traced.jaxpr, list(given[:count])))(*given[count:])

    return jax.make_jaxpr(opened)(*traced.consts, *arguments)
