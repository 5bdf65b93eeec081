"""replace() and matches(): a user's function in place of all that a pattern matches, or of some nodes."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from rnnscan._util.messages import describe, listing
from rnnscan.graph.core.bodies import with_bodies
from rnnscan.graph.core.graph import Graph
from rnnscan.graph.rewrites.match import Match, sites
from rnnscan.graph.rewrites.pattern import Pattern
from rnnscan.graph.rewrites.substitution import Substitution
from rnnscan.ir.bodies import LOOPS_AND_CALLS
from rnnscan.ir.program import Equation, Value


def replace(
    graph: Graph,
    pattern: Callable[..., Any] | Iterable[int],
    replacement: Callable[..., Any],
    *,
    types: Sequence[Any] | None = None,
) -> Graph:
    """Put a function in place of all that a pattern matches.

    A pattern is a function of arrays, such as `lambda x, w: jnp.tanh(x @ w)`. It is traced for each place that looks
    like it, on the types that the values there have, so one pattern matches every shape and dtype. A match does the
    pattern's operations, with equal parameters:
    - An argument matches any value or number of its type, and the same one wherever the pattern reads it.
    - Numbers and arrays in the pattern match equal ones.
    - The operands of a sum, product, maximum and other commutative operations match in either order.
    - Nothing outside reads or labels the values in between. Return a value from the pattern to let others read it.
    - Rules for derivatives are not compared, but the functions that they belong to are.

    Of matches that overlap, the first is replaced. Replacements are not searched again. Bodies of loops, branches and
    `jax.checkpoint` are searched too; a replacement that closes over arrays leaves these as they are. Functions with
    derivative rules of their own stay whole.

    Args:
        graph: the graph.
        pattern: a function with one argument for each input, each an array. It returns an array, or several: then all
            its operations lead to the first, and the others are values in between that may have other readers. Or the
            ids of nodes, such as `Graph.path` gives; no value may leave them and come back.
        replacement: takes what the pattern takes, and returns what it returns. For ids: takes the inputs of
            `Graph.subgraph_io(ids)`, in order, and returns its outputs. Only the types of its results are checked.
        types: an array or a `jax.ShapeDtypeStruct` for each argument of the pattern, as an example; other types match
            too. Needed for patterns of many arguments, and for those that need certain sizes along some axes.

    Returns:
        The graph with the replacement's operations. Replaced values keep their names. Without a match, the same graph.

    Raises:
        ValueError: if the pattern fails on all ranks and dtypes of the graph, or on `types`; if there are too many
            choices of them; or if its operations do not all lead to its first result. With ids: if
            the graph has no such node, if nothing reads the nodes' results, or if a value leaves them and comes back.
        TypeError: if the pattern has other than positional arguments, or if the replacement returns another number of
            results, or a result of another type.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import rnnscan as rs
        >>> graph = rs.graph.trace(lambda x: 2 * (x * (1 / (1 + jnp.exp(-x)))), jnp.ones(3))
        >>> swish = lambda x: x * (1 / (1 + jnp.exp(-x)))
        >>> [node.operation for node in rs.graph.replace(graph, swish, lambda x: x * jax.lax.logistic(x)).nodes]
        ['logistic', 'mul', 'mul']
        >>> ids = graph.path(["x"], ["mul.1"])
        >>> [node.operation for node in rs.graph.replace(graph, ids, lambda x: x * jax.lax.logistic(x)).nodes]
        ['logistic', 'mul', 'mul']
    """
    if not callable(pattern):
        if types is not None:
            raise TypeError("graph.replace: `types` is for patterns; got ids of nodes as well. Leave `types` out.")
        if isinstance(pattern, str) or not isinstance(pattern, Iterable):
            raise TypeError(
                f"graph.replace: the pattern must be a function, or the ids of nodes; got {describe(pattern)}. Write "
                "replace(graph, pattern, replacement)."
            )
        return _replace_nodes(graph, pattern, replacement)
    searched = Pattern("replace", pattern, types)
    graph = _replace_matches(graph, searched, replacement)
    searched.check()
    return graph


def matches(graph: Graph, pattern: Callable[..., Any], *, types: Sequence[Any] | None = None) -> list[Match]:
    """What `replace` would replace in a graph, bodies of its loops and branches aside.

    Args:
        graph: the graph; one of `rnnscan.graph.bodies` for the matches in a body.
        pattern: as in `replace`.
        types: as in `replace`.

    Returns:
        The matches, none of which overlap, in the order of their last nodes.

    Raises:
        ValueError: as in `replace`.
        TypeError: as in `replace`.

    Example:
        >>> import jax.numpy as jnp
        >>> import rnnscan as rs
        >>> graph = rs.graph.trace(lambda x, w: jnp.tanh(jnp.tanh(x @ w) @ w), jnp.ones((2, 3)), jnp.ones((3, 3)))
        >>> for match in rs.graph.matches(graph, lambda x, w: jnp.tanh(x @ w)):
        ...     print(match.ids, *match.inputs, "->", *match.outputs)
        (0, 1) x w -> tanh.1
        (2, 3) tanh.1 w -> result.1
    """
    if not callable(pattern):
        raise TypeError(
            f"graph.matches: the pattern must be a function; got {describe(pattern)}. Write matches(graph, pattern)."
        )
    searched = Pattern("matches", pattern, types)
    named_sites = [site.named(graph.names) for site in sites(graph, searched)]
    searched.check()
    return named_sites


def _replace_matches(graph: Graph, pattern: Pattern, replacement: Callable[..., Any]) -> Graph:
    graph = with_bodies(graph, lambda body: _replace_matches(body, pattern, replacement), LOOPS_AND_CALLS)
    matched = sites(graph, pattern)
    if not matched:
        return graph
    gone = {node_id for site in matched for node_id in site.ids}
    by_position = {site.position: site for site in matched}
    substitution, equations = Substitution(graph, replacement), []
    for node_id, equation in enumerate(graph.program.equations):
        if node_id in by_position:
            site = by_position[node_id]
            equations += substitution.put(site.inputs, site.outputs, equation.origin)
        if node_id not in gone:
            equations.append(equation)
    return substitution.finish(equations)


def _replace_nodes(graph: Graph, ids: Iterable[int], function: Callable[..., Any]) -> Graph:
    inside = set(graph.checked_ids("replace", ids))
    inputs, outputs = graph.subgraph_io(inside)
    if not outputs:
        raise ValueError(
            f"graph.replace: the nodes must make a value that is read; got {listing(map(str, sorted(inside)))}, whose "
            "results nothing reads. Pass other nodes, or use remove_dead_ends."
        )
    before, after = _around(graph, inside)
    substitution = Substitution(graph, function)
    origin = graph.program.equations[min(inside)].origin
    replacement = substitution.put(
        [graph.value(name) for name in inputs], [graph.value(name) for name in outputs], origin
    )
    return substitution.finish([*before, *replacement, *after])


def _around(graph: Graph, inside: set[int]) -> tuple[list[Equation], list[Equation]]:
    """The nodes to run before and after the ones inside.

    Raises:
        ValueError: if a node outside lies between two inside.
    """
    before, after = [], []
    late: set[Value] = set()
    returning: dict[Value, int] = {}
    has_late_effects = False
    for node_id, equation in enumerate(graph.program.equations):
        operands = equation.reads
        if node_id in inside:
            back = [returning[value] for value in operands if value in returning]
            if back:
                raise ValueError(
                    f"graph.replace: no value may leave the nodes and come back; got node {back[0]}, which is not "
                    f"among them and leads back to node {node_id}. Add it to the nodes."
                )
            late.update(equation.outputs)
        elif not late.isdisjoint(operands) or (equation.effects and has_late_effects):
            after.append(equation)
            late.update(equation.outputs)
            returning.update(dict.fromkeys(equation.outputs, node_id))
            has_late_effects = has_late_effects or bool(equation.effects)
        else:
            before.append(equation)
    return before, after
