"""Graphs of bodies: of loops, branches, calls, and functions with derivative rules of their own."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import jax
from jax.extend import core

from rnnscan.graph.core.graph import Graph
from rnnscan.graph.nodes.names import Name, complete
from rnnscan.graph.nodes.signature import Signature
from rnnscan.ir.bodies import BODIES
from rnnscan.ir.jaxprs import opened_jaxpr
from rnnscan.ir.program import Program, Value, evaluate, read
from rnnscan.ir.trace import program_of


# What a call of `jax.checkpoint` saves is a choice of the user's, so it is not inlined in a body.
_WHOLE = frozenset({"remat2"})


def bodies(graph: Graph, node: int) -> dict[str, Graph]:
    """The bodies of a node: of a loop, of branches, of `jax.checkpoint` in a loop, or of a function with its own rule.

    Args:
        graph: the graph.
        node: the id of the node.

    Returns:
        Parameter of the operation -> the graph of its body; none for other operations. A rewrite of such a graph does
        not change the node: rewrites of the whole graph go into bodies.

    Raises:
        ValueError: if the graph has no such node.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import rnnscan as rs
        >>> def function(x):
        ...     return jax.lax.while_loop(lambda x: x < 9, lambda x: x * jnp.exp(x), x)
        >>> graph = rs.graph.trace(function, 1.0)
        >>> {name: len(body.nodes) for name, body in rs.graph.bodies(graph, 0).items()}
        {'cond_jaxpr': 1, 'body_jaxpr': 2}
    """
    [node] = graph.checked_ids("bodies", [node])
    equation = graph.program.equations[node]
    graphs = {}
    for parameter in BODIES.get(equation.name, ()):
        body = equation.params[parameter]
        if isinstance(body, tuple | list):
            graphs.update({f"{parameter}[{index}]": graph_of_body(each) for index, each in enumerate(body)})
        else:
            graphs[parameter] = graph_of_body(body)
    return graphs


def graph_of_body(body: Any) -> Graph:
    """The graph of a jaxpr. Calls of `jax.jit` are inlined, and those of `jax.checkpoint` are not."""
    program = program_of_body(body)
    inputs, outputs = program.known, program.stacked
    signature = Signature(
        False,
        jax.tree.structure((tuple(inputs), {})),
        jax.tree.structure(list(outputs)),
        tuple(f"input[{index}]" for index in range(len(inputs))),
    )
    places = zip(outputs, signature.result_places(), strict=True)
    argument_names = {value: Name(place) for value, place in zip(inputs, signature.argument_places(), strict=True)}
    names = complete(program, argument_names, {atom: place for atom, place in places if isinstance(atom, Value)})
    return Graph(program, signature, (), names)


def program_of_body(body: Any) -> Program:
    """The program of a jaxpr. Calls of `jax.jit` are inlined, and those of `jax.checkpoint` are not."""
    return program_of(body, whole=_WHOLE)


def with_bodies(
    graph: Graph, rewrite: Callable[[Graph], Graph], operations: Mapping[str, tuple[str, ...]] = BODIES
) -> Graph:
    """The graph with rewritten bodies. Each body is rewritten once, however many nodes have it.

    Args:
        graph: the graph.
        rewrite: takes the graph of a body, and returns a graph with as many inputs and results.
        operations: the operations whose bodies are rewritten, and their parameters.
    """
    done: dict[int, Any] = {}

    def rewritten(body: Any) -> Any:
        if isinstance(body, tuple | list):
            each = [rewritten(inner) for inner in body]
            return body if all(a is b for a, b in zip(each, body, strict=True)) else type(body)(each)
        if id(body) not in done:
            done[id(body)] = _rewritten(body, rewrite)
        return done[id(body)]

    equations = []
    for equation in graph.program.equations:
        parameters = operations.get(equation.name, ())
        new_bodies = {name: rewritten(equation.params[name]) for name in parameters}
        if any(body is not equation.params[name] for name, body in new_bodies.items()):
            equation = replace(equation, params={**equation.params, **new_bodies})
        equations.append(equation)
    if all(new is old for new, old in zip(equations, graph.program.equations, strict=True)):
        return graph
    return graph.rewritten(replace(graph.program, equations=tuple(equations)))


def _rewritten(body: Any, rewrite: Callable[[Graph], Graph]) -> Any:
    """The jaxpr of the rewritten body; the body itself if nothing changes, or if the jaxpr would need other inputs."""
    graph = graph_of_body(body)
    program = rewrite(graph).program
    if (program.equations, program.outputs) == (graph.program.equations, graph.program.outputs):
        return body
    if program.invariant:
        return body

    def run(*leaves: Any) -> list[Any]:
        values = dict(zip(program.known, leaves, strict=True))
        evaluate(program.equations, values)
        return [read(atom, values) for atom in program.outputs]

    traced = jax.make_jaxpr(run)(*(value.aval for value in program.known))
    (jaxpr, _), types = opened_jaxpr(body), [value.aval for value in traced.jaxpr.outvars]
    if traced.consts or types != [value.aval for value in jaxpr.outvars]:
        return body
    return traced if isinstance(body, core.ClosedJaxpr) else traced.jaxpr
