"""Find loops whose carry leaves depend on each other element by element.

Each value that depends on a leaf has a *place*: for each axis of the leaf the axis along which it lies in the value. An
axis of the value may be several times as long as that of the leaf, as that of gates in a row. Then its position p holds
the element p modulo the length of the leaf's axis.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from math import prod
from typing import Any, TypeAlias

from rnnscan.ir.axes import axes_in_step
from rnnscan.ir.program import Atom, Equation, Value
from rnnscan.ir.trace import inlined
from rnnscan.ir.traits import Kind


# For each axis of the leaf with more than one element, its axis in the value.
Place: TypeAlias = tuple[int, ...]


class MixesError(Exception):
    """Raised where a loop is not elementwise. Its text says why."""


def check_elementwise(equations: Sequence[Equation], leaves: Sequence[Value], new_leaves: Sequence[Atom]) -> None:
    """Check that each element of the new leaves depends on the leaves at the same element only.

    Args:
        equations: the equations between the leaves and the new leaves.
        leaves: carry leaves of one shape.
        new_leaves: their new values.

    Raises:
        MixesError: if not.
    """
    shape, places = leaves[0].shape, Places(leaves)
    if any(leaf.shape != shape for leaf in leaves):
        raise MixesError("its leaves have several shapes")
    places.follow(equations)
    for atom in new_leaves:
        if atom in places.of and (places.of[atom] != places.leaf or atom.shape != shape):
            raise MixesError("its elements change places")


class Places:
    """Follows the elements of leaves of one shape through equations.

    Args:
        leaves: the leaves.

    Attributes:
        leaf: the place of a leaf itself.
        sizes: the lengths of the leaf's axes with more than one element.
        of: the place of each value that depends on a leaf.
    """

    def __init__(self, leaves: Sequence[Value]) -> None:
        shape = leaves[0].shape
        self.leaf: Place = tuple(axis for axis, size in enumerate(shape) if size != 1)
        self.sizes = tuple(shape[axis] for axis in self.leaf)
        self.of: dict[Atom, Place] = dict.fromkeys(leaves, self.leaf)

    def follow(self, equations: Sequence[Equation]) -> None:
        """Add the places of all results that depend on the leaf.

        Raises:
            MixesError: if an equation mixes elements.
        """
        for equation in equations:
            if not any(atom in self.of for atom in equation.inputs):
                continue
            name = equation.name
            if name == "custom_jvp_call":
                self._follow_call(equation)
                continue
            rule = _RULES_OF_KINDS.get(equation.kind) or _RULES.get(name)
            if rule is None:
                raise MixesError(f"{name} mixes its elements")
            place = rule(self, equation)
            self.of.update(dict.fromkeys(equation.outputs, place))

    def _follow_call(self, equation: Equation) -> None:
        equations, outputs = inlined(equation.params["call_jaxpr"], equation.inputs)
        self.follow(equations)
        pairs = zip(equation.outputs, outputs, strict=True)
        self.of.update((output, self.of[inner]) for output, inner in pairs if inner in self.of)

    def elementwise(self, equation: Equation) -> Place:
        """Each element from those at its place."""
        place = self._common(equation)
        if any(len(atom.shape) != len(equation.outputs[0].shape) for atom in equation.inputs if atom in self.of):
            raise MixesError(f"{equation.name} broadcasts it")
        return place

    def _common(self, equation: Equation) -> Place:
        """The place that all dependent operands share."""
        places = {self.of[atom] for atom in equation.inputs if atom in self.of}
        if len(places) > 1:
            raise MixesError(f"{equation.name} combines several elements of it")
        (place,) = places
        return place

    def moved(self, equation: Equation) -> Place:
        """Axes change places. Those that the leaf does not have may be added, dropped, summed or contracted."""
        operand, *others = (atom for atom in equation.inputs if atom in self.of)
        place, outputs = self.of[operand], equation.outputs
        target = {
            axis: after
            for (atom, axis), (result, after) in axes_in_step(equation)
            if atom is operand and result in outputs
        }
        if others or not target.keys() >= {*place}:
            does = "sums" if equation.kind is Kind.REDUCE else "mixes"
            raise MixesError(f"{equation.name} {does} its elements")
        return tuple(target[axis] for axis in place)

    def _cuts(self, place: Place, axis: int, lengths: Iterable[Any]) -> bool:
        """Whether lengths along an axis of a place are no whole copies of the leaf."""
        return any(_remainder(length, self.sizes[place.index(axis)]) for length in lengths)

    def copies(self, equation: Equation) -> Place:
        """Whole copies of the leaf in a row are cut out, or put side by side."""
        place, params, atoms = self._common(equation), equation.params, (*equation.inputs, *equation.outputs)
        for axis in place:
            begin = params["start_indices"][axis] if equation.name == "slice" else 0
            if self._cuts(place, axis, (begin, *(atom.shape[axis] for atom in atoms))):
                does = "shifts its elements" if equation.kind is Kind.JOIN else "cuts it"
                raise MixesError(f"{equation.name} {does}")
            if params.get("strides") and params["strides"][axis] != 1:
                raise MixesError(f"{equation.name} skips elements of it")
        return place

    def stack(self, equation: Equation) -> Place:
        """Copies of the leaf along a new axis."""
        new = equation.params["axis"]
        return tuple(axis + (axis >= new) for axis in self._common(equation))

    def unstack(self, equation: Equation) -> Place:
        """The parts along an axis that the leaf does not have."""
        place, gone = self.of[equation.inputs[0]], equation.params["axis"]
        if gone in place:
            raise MixesError("unstack takes it apart")
        return tuple(axis - (axis > gone) for axis in place)

    def reshape(self, equation: Equation) -> Place:
        """An axis of the leaf is the last of those that are merged, or of those that it is split into."""
        operand, result = equation.inputs[0].shape, equation.outputs[0].shape
        target: dict[int, int] = {}
        for before, after in _groups(operand, result):
            leaf_axes = [axis for axis in self.of[equation.inputs[0]] if axis in before]
            last = [axis for axis in before if operand[axis] != 1][-1:]
            last_after = [axis for axis in after if result[axis] != 1][-1:]
            if leaf_axes and (leaf_axes != last or not last_after):
                raise MixesError("reshape mixes its axes")
            target.update(zip(leaf_axes, last_after, strict=False))
        place = tuple(target[axis] for axis in self.of[equation.inputs[0]])
        if any(self._cuts(place, axis, [result[axis]]) for axis in place):
            raise MixesError("reshape mixes its axes")
        return place


_RULES: dict[str, Callable[..., Place]] = {
    **dict.fromkeys(("broadcast_in_dim", "transpose", "squeeze", "dot_general"), Places.moved),
    **dict.fromkeys(("slice", "split", "concatenate", "tile"), Places.copies),
    "stack": Places.stack,
    "unstack": Places.unstack,
    "reshape": Places.reshape,
}
_RULES_OF_KINDS: dict[Kind, Callable[..., Place]] = {
    **dict.fromkeys((Kind.ELEMENTWISE, Kind.SAME, Kind.PLACE), Places.elementwise),
    Kind.REDUCE: Places.moved,
}


def _remainder(number: Any, size: Any) -> bool:
    """Whether a number is not a multiple of a size, as far as symbolic dimensions tell."""
    try:
        return bool(number % size != 0)
    except Exception:  # jax.export decides some comparisons of symbolic dimensions, and raises for others.
        return True


def _groups(before: Sequence[Any], after: Sequence[Any]) -> list[tuple[list[int], list[int]]]:
    """The axes of two shapes of equal size in the smallest groups of equal size."""
    ends = [[prod(shape[:count]) for count in range(len(shape) + 1)] for shape in (before, after)]
    common = [size for size in dict.fromkeys(ends[0]) if size in ends[1]]
    groups = []
    for low, high in pairwise(common):
        axes = [
            [axis for axis in range(len(shape)) if low in ends_of[: axis + 1] and high in ends_of[axis + 1 :]]
            for shape, ends_of in zip((before, after), ends, strict=True)
        ]
        groups.append((axes[0], axes[1]))
    return groups
