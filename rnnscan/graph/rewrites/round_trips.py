"""fuse_round_trips(): drop operations that undo each other."""

from collections.abc import Hashable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from rnnscan.graph.core.bodies import with_bodies
from rnnscan.graph.core.graph import Graph
from rnnscan.graph.rewrites.rewire import drop_left_over, rewired
from rnnscan.ir.program import Atom, Equation, Value
from rnnscan.ir.rewrite import replace_inputs


def fuse_round_trips(graph: Graph) -> Graph:
    """Drop operations that give an earlier value back, and let every reader read that value.

    These are conversions to a dtype that holds every value of the first one and back, transpositions that together
    change nothing, and transfers to another memory space and back. Chains of any length count, nested ones too. The
    first half of a chain stays while something else reads it. Bodies of loops, branches and functions with custom rules
    are rewritten too.

    Args:
        graph: the graph.

    Returns:
        The graph without round trips. A graph that has none stays as it is.

    Example:
        >>> import jax.numpy as jnp
        >>> import rnnscan as rs
        >>> def there_and_back(x):
        ...     return jnp.sin(x.T.astype(jnp.float32).astype(jnp.bfloat16).T)
        >>> graph = rs.graph.trace(there_and_back, jnp.ones((2, 3), jnp.bfloat16))
        >>> [node.operation for node in graph.nodes]
        ['transpose', 'convert_element_type', 'convert_element_type', 'transpose', 'sin']
        >>> [node.operation for node in rs.graph.fuse_round_trips(graph).nodes]
        ['sin']
    """
    graph = with_bodies(graph, fuse_round_trips)
    chains = _Chains()
    same: dict[Atom, Atom] = {}
    equations = []
    for equation in graph.program.equations:
        equation = replace_inputs(equation, same)
        earlier = chains.earlier(equation)
        if earlier is None:
            equations.append(equation)
        else:
            same[equation.outputs[0]] = earlier
    return drop_left_over(rewired(graph, equations, same), graph, frozenset(_KEYS))


# A chain of operations: the value that it starts from, and the key of its result.
_Chain: TypeAlias = tuple[Value, Hashable]


class _Chains:
    """The chains of operations of a graph, by result."""

    def __init__(self) -> None:
        self._chains: dict[tuple[str, Value], _Chain] = {}
        self._stops: dict[tuple[str, _Chain], Value] = {}

    def earlier(self, equation: Equation) -> Value | None:
        """The earlier value that an equation gives back; None if there is none, and its result is a new stop."""
        kind = equation.name
        operand = equation.inputs[0] if equation.inputs else None
        if kind not in _KEYS or not isinstance(operand, Value) or len(equation.outputs) != 1:
            return None
        output = equation.outputs[0]
        root, done = self._chains.get((kind, operand), (operand, None))
        key = _KEYS[kind](equation, root, done)
        if key is None:
            return None
        if done is None:
            self._stops.setdefault((kind, (root, _KEYS[kind](None, root, None))), root)
        earlier = self._stops.setdefault((kind, (root, key)), output)
        if earlier is not output and earlier.aval == output.aval:
            return earlier
        self._chains[kind, output] = (root, key)
        return None


def _dtype(equation: Equation | None, root: Value, done: Hashable) -> Hashable:
    """The dtype, if it holds every value of the root's."""
    if equation is None:
        return root.dtype
    new = equation.outputs[0].dtype
    return new if equation.params["sharding"] is None and holds_every_value(new, root.dtype) else None


def _permutation(equation: Equation | None, root: Value, done: Any) -> Hashable:
    """The root's axis at each place."""
    axes = done or tuple(range(len(root.shape)))
    return axes if equation is None else tuple(axes[axis] for axis in equation.params["permutation"])


def _memory_space(equation: Equation | None, root: Value, done: Hashable) -> Hashable:
    """The memory space, if the transfer names one alone."""
    if equation is None:
        return getattr(root.aval, "memory_space", None)
    devices = equation.params["devices"]
    return devices[0] if len(devices) == 1 and isinstance(devices[0], jax.memory.Space) else None


# Operation -> the key of its result: the joint effect of the chain up to it on the value that the chain starts from;
# without an equation: the key of that value itself. Values of one chain with equal keys are equal. None: the result is
# on no chain.
_KEYS = {"convert_element_type": _dtype, "transpose": _permutation, "device_put": _memory_space}

# These hold infinity, NaN and both zeros. Shorter formats lack some of them.
_FLOATS = frozenset(map(jnp.dtype, ("bfloat16", "float16", "float32", "float64")))


def holds_every_value(wide: Any, narrow: Any) -> bool:
    """Whether each value of one dtype is a value of another one.

    Args:
        wide: the dtype that should hold the values.
        narrow: the dtype of the values.
    """
    if wide == narrow:
        return True
    if narrow == jnp.bool_:
        return wide in _FLOATS or jnp.issubdtype(wide, jnp.integer)
    if jnp.issubdtype(narrow, jnp.integer):
        span = jnp.iinfo(narrow)
        if jnp.issubdtype(wide, jnp.integer):
            return bool(jnp.iinfo(wide).min <= span.min and span.max <= jnp.iinfo(wide).max)
        return wide in _FLOATS and int(span.max).bit_length() <= jnp.finfo(wide).nmant + 1
    if jnp.issubdtype(narrow, jnp.floating) and wide in _FLOATS:
        few, many = jnp.finfo(narrow), jnp.finfo(wide)
        smaller = float(many.smallest_subnormal) <= float(few.smallest_subnormal)
        return bool(few.nmant <= many.nmant and float(few.max) <= float(many.max) and smaller)
    return (jnp.dtype(narrow), jnp.dtype(wide)) == (jnp.dtype("complex64"), jnp.dtype("complex128"))
