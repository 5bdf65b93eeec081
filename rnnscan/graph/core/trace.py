"""trace(): a cell, or any function, as a graph."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
from jax.ad_checkpoint import checkpoint_name

from rnnscan._util.messages import describe, leaves_with_places
from rnnscan.graph.core.graph import Graph
from rnnscan.graph.nodes.names import Name, complete, is_name_equation
from rnnscan.graph.nodes.run import GraphFunction
from rnnscan.graph.nodes.signature import Signature, as_array, names_of_arguments
from rnnscan.ir.program import Atom, Constant, Equation, Program, Value
from rnnscan.ir.trace import Inliner
from rnnscan.naming import reading


def trace(function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Graph:
    """Trace a cell, or any function of arrays, into a graph. Nothing is computed.

    A function of three arguments that returns a pair, whose first is of the types of the second argument, is a cell:
    `(params, carry, x) -> (carry, y)`. Calls of `jax.jit` and `jax.checkpoint` are inlined, so a graph has no memory
    choice. Arrays that the function closes over become inputs of the graph, and still get gradients through
    `Graph.to_cell`.

    Args:
        function: a cell, or any function from pytrees of arrays to a pytree of arrays.
        *arguments: its arguments, any pytrees of arrays, numbers or `jax.ShapeDtypeStruct`. For a cell: the parameters,
            the carry `(N, ...)`, and one step's input `(N, ...)`.
        **named: its named arguments, likewise.

    Returns:
        The graph. It holds for these shapes and dtypes.

    Raises:
        TypeError: if the function is not callable, or if a leaf of its arguments or results is not an array.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import rnnscan as rs
        >>> def cell(params, carry, x):
        ...     gates = rs.name(x @ params["kernel"] + carry, "gates")
        ...     hidden = jnp.tanh(gates)
        ...     return hidden, hidden
        >>> graph = rs.graph.trace(cell, {"kernel": jnp.ones((3, 4))}, jnp.zeros((2, 4)), jnp.ones((2, 3)))
        >>> print(graph)
        inputs
          params['kernel'] : float32[3,4]
          carry            : float32[2,4]
          x                : float32[2,3]
        nodes
          0  dot_general.1 = dot_general(x, params['kernel']) : float32[2,4]
          1  add.1         = add(dot_general.1, carry)        : float32[2,4]
          2  gates.1       = name[name=gates](add.1)          : float32[2,4]
          3  carry.1       = tanh(gates.1)                    : float32[2,4]
        outputs
          carry = carry.1
          y     = carry.1
    """
    if not callable(function):
        raise TypeError(
            f"graph.trace: the first argument must be a cell or a function; got {describe(function)}. "
            "Write trace(cell, params, carry, x)."
        )
    leaves, structure = jax.tree.flatten((arguments, named))
    names = function.signature.argument_names if isinstance(function, GraphFunction) else ()
    names = names if len(names) == len(arguments) else names_of_arguments(function, len(arguments))
    signature = Signature(False, structure, None, names)
    leaves = [as_array("trace", *each) for each in zip(leaves, signature.argument_places(), strict=True)]
    results: Any = None

    def flat(*leaves: Any) -> list[Any]:
        nonlocal results
        arguments, named = jax.tree.unflatten(structure, leaves)
        returned = function(*arguments, **named)
        for place, leaf in leaves_with_places(returned, "result"):
            as_array("trace", leaf, place.strip("`"), what="the results")
        results = jax.tree.map(jax.typeof, returned)
        return jax.tree.leaves(returned)

    with reading(_READER):
        closed = jax.make_jaxpr(flat)(*leaves)
    is_cell = not named and _is_cell(jax.tree.unflatten(structure, closed.in_avals)[0], results)
    return _graph_of(closed, replace(signature, is_cell=is_cell, results=jax.tree.structure(results)))


class _EmitNames:
    """Emits every label as an equation. Nested scans see that they are in a step, so their labels stay apart."""

    depth = 0

    def read(self, leaf: Any, label: str) -> Any:
        return checkpoint_name(leaf, label)

    def forget(self) -> None:
        pass


# One for all traces: JAX's caches have it in their keys.
_READER = _EmitNames()


def _is_cell(arguments: Sequence[Any], results: Any) -> bool:
    if len(arguments) != 3 or not isinstance(results, tuple) or len(results) != 2:
        return False
    old: Any = jax.tree.structure(arguments[1])
    pairs = zip(jax.tree.leaves(arguments[1]), jax.tree.leaves(results[0]), strict=False)
    same_types = all((leaf.shape, leaf.dtype) == (other.shape, other.dtype) for leaf, other in pairs)
    return same_types and bool(old == jax.tree.structure(results[0]))


def _graph_of(closed: Any, signature: Signature) -> Graph:
    captured = _Captured()
    inliner = Inliner()
    inputs = [Value(var.aval) for var in closed.jaxpr.invars]
    results = inliner.inline(closed.jaxpr, [Constant(const) for const in closed.consts], inputs)
    equations = tuple(
        replace(equation, inputs=tuple(map(captured.as_input, equation.inputs))) for equation in inliner.equations
    )
    outputs = tuple(map(captured.as_input, results))
    if signature.is_cell:
        params, carry = signature.sizes()[:2]
        program = Program(
            equations,
            invariant=(*captured.inputs, *inputs[:params]),
            carry=tuple(inputs[params : params + carry]),
            known=tuple(inputs[params + carry :]),
            new_carry=outputs[:carry],
            stacked=outputs[carry:],
        )
    else:
        program = Program(equations, invariant=tuple(captured.inputs), known=tuple(inputs), stacked=outputs)
    places = signature.argument_places()
    root = "captured"
    while any(place.startswith(root) for place in places):
        root += "_"
    argument_places = [*zip(inputs, places, strict=True), *((v, f"{root}[{i}]") for i, v in enumerate(captured.inputs))]
    bases = _bases(equations, outputs, signature.result_places())
    names = complete(program, {value: Name(place) for value, place in argument_places}, bases)
    return Graph(program, signature, tuple(captured.arrays), names)


class _Captured:
    """Makes inputs of arrays that are closed over, each once."""

    def __init__(self) -> None:
        self.inputs: list[Value] = []
        self.arrays: list[Any] = []
        self._by_id: dict[int, Value] = {}

    def as_input(self, atom: Atom) -> Atom:
        """The input for a closed-over array; other atoms, numbers among them, stay as they are."""
        if not isinstance(atom, Constant) or not (isinstance(atom.value, jax.Array) or atom.shape):
            return atom
        if id(atom.value) not in self._by_id:
            self._by_id[id(atom.value)] = Value(jax.typeof(atom.value))
            self.inputs.append(self._by_id[id(atom.value)])
            self.arrays.append(atom.value)
        return self._by_id[id(atom.value)]


def _bases(equations: Sequence[Equation], outputs: Sequence[Atom], places: Sequence[str]) -> dict[Value, str]:
    """The bases of results: their labels, else their places among the results."""
    bases: dict[Value, str] = {}
    for equation in equations:
        if is_name_equation(equation):
            bases[equation.outputs[0]] = equation.params["name"]
    for atom, place in zip(outputs, places, strict=True):
        if isinstance(atom, Value):
            bases.setdefault(atom, place)
    return bases
