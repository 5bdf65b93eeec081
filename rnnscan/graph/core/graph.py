"""Graph: a cell as data, the public view of the engine's program."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

from rnnscan._util.reports import Shown, Table
from rnnscan.graph.draw.build import diagram_of
from rnnscan.graph.draw.of_graph import content_of_graph
from rnnscan.graph.draw.picture import Direction, Format, Picture, PictureOptions
from rnnscan.graph.draw.simplify import simplified
from rnnscan.graph.draw.table import blocks_of
from rnnscan.graph.nodes.convert import to_networkx
from rnnscan.graph.nodes.facts import kinds_of_work
from rnnscan.graph.nodes.names import Directory, Name, Operand, complete, operand
from rnnscan.graph.nodes.node import Captured, Node, SubgraphIO, nodes_of
from rnnscan.graph.nodes.run import GraphFunction
from rnnscan.graph.nodes.signature import Signature
from rnnscan.graph.nodes.slices import ids_between, io_of
from rnnscan.graph.nodes.text import as_text
from rnnscan.ir.program import Program, Value
from rnnscan.ir.structure import structure_of
from rnnscan.memory import Memory


@dataclass(frozen=True, eq=False, repr=False)
class Graph(Shown):
    """A cell, or any function, as a graph of operations. `rnnscan.graph.trace` makes it, and it never changes.

    In a notebook it shows as a table; `draw` draws it.

    Two graphs are equal if they have the same structure: the same operations on the same values, arguments and results
    of the same types. Names, the values of captured arrays and rules for derivatives are not compared.

    Attributes:
        program: the engine's program. Its form may change; the methods of a graph stay.
        signature: the structure of the arguments and of the results.
        arrays: the arrays that are closed over, for the first of `program.invariant`.
        names: the name of each value.
        labels: labels of `rnnscan.name` that have no equation of their own any more, by value (`fuse_names`).

    Example:
        >>> import jax.numpy as jnp
        >>> import rnnscan as rs
        >>> graph = rs.graph.trace(lambda x, y: jnp.sin(x) * y, 1.0, 2.0)
        >>> graph
        Graph of 2 nodes: x, y -> result
        >>> [node.operation for node in graph.nodes]
        ['sin', 'mul']
        >>> graph == rs.graph.trace(lambda a, b: jnp.sin(a) * b, 1.0, 2.0)
        True
    """

    program: Program
    signature: Signature
    arrays: tuple[Any, ...]
    names: Mapping[Value, Name]
    labels: Mapping[Value, tuple[str, ...]] = field(default_factory=dict)

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """The operations in running order; the id of a node is its position."""
        return nodes_of(self.program, self.names)

    @property
    def inputs(self) -> tuple[Name, ...]:
        """The names of all arguments, in their order, then of the captured arrays."""
        return tuple(self.names[value] for value in (*self.arguments, *self._captured_values))

    @property
    def outputs(self) -> dict[str, Operand]:
        """Place of each result, such as `carry[0]` or `y` -> its value."""
        atoms = (*self.program.new_carry, *self.program.stacked)
        operands = [operand(atom, self.names) for atom in atoms]
        return dict(zip(self.signature.result_places(), operands, strict=True))

    @property
    def arguments(self) -> tuple[Value, ...]:
        """The engine's values of the arguments' leaves."""
        program = self.program
        return (*program.invariant[len(self.arrays) :], *program.carry, *program.known)

    @property
    def _captured_values(self) -> tuple[Value, ...]:
        return self.program.invariant[: len(self.arrays)]

    @cached_property
    def _directory(self) -> Directory:
        return Directory(self.names)

    def value(self, name: Name | str, function: str = "value") -> Value:
        """The engine's value of a name. Text is the name as it is written, else the base of the latest version.

        Args:
            name: the name.
            function: the caller's name, for messages.

        Raises:
            ValueError: if the graph has no such value.
        """
        return self._directory.find(function, name)

    def type_of(self, name: Name | str) -> Any:
        """The type of a value, as `jax.typeof` gives it.

        Raises:
            ValueError: if the graph has no such value.
        """
        return self.value(name, "type_of").aval

    def ssa(self) -> list[tuple[tuple[Operand, ...], tuple[Name, ...]]]:
        """What each node reads and writes, in static single assignment form. Numbers stay among the inputs.

        Example:
            >>> import rnnscan as rs
            >>> for inputs, outputs in rs.graph.trace(lambda x: 2 * (x * x), 1.0).ssa():
            ...     print(*inputs, "->", *outputs)
            x x -> mul.1
            2.0 mul.1 -> result.1
        """
        return [(node.inputs, node.outputs) for node in self.nodes]

    def undefined(self) -> list[Name]:
        """The names that are read or returned, and that no node makes: the inputs in use, each once."""
        read = [name for node in self.nodes for name in node.inputs] + list(self.outputs.values())
        return [name for name in dict.fromkeys(read) if isinstance(name, Name) and name not in self.producers()]

    def producers(self) -> Mapping[Name, tuple[int, int]]:
        """Name -> the node that makes it, and the position among its outputs. Inputs have none."""
        return self._producers

    @cached_property
    def _producers(self) -> Mapping[Name, tuple[int, int]]:
        producers = {name: (node.id, index) for node in self.nodes for index, name in enumerate(node.outputs)}
        return MappingProxyType(producers)

    def consumers(self) -> Mapping[Name, tuple[tuple[int, int], ...]]:
        """Name -> the nodes that read it, each with the position among its inputs. A result has none for being one."""
        return self._consumers

    @cached_property
    def _consumers(self) -> Mapping[Name, tuple[tuple[int, int], ...]]:
        consumers: dict[Name, list[tuple[int, int]]] = {name: [] for name in self.names.values()}
        for node in self.nodes:
            for index, name in enumerate(node.inputs):
                if isinstance(name, Name):
                    consumers[name].append((node.id, index))
        return MappingProxyType({name: tuple(readers) for name, readers in consumers.items()})

    def path(self, inputs: Iterable[Name | str], outputs: Iterable[Name | str]) -> list[int]:
        """The ids of the nodes that the outputs depend on, going back no further than the inputs: a slice.

        Args:
            inputs: names of values to stop at.
            outputs: names of values to compute from them.

        Returns:
            The ids, in running order.

        Raises:
            ValueError: if a name is unknown.

        Example:
            >>> import jax.numpy as jnp
            >>> import rnnscan as rs
            >>> graph = rs.graph.trace(lambda x: jnp.tanh(jnp.sin(jnp.cos(x))), 1.0)
            >>> graph.path(inputs=["cos.1"], outputs=["sin.1"])
            [1]
        """
        stops = [self.value(name, "path") for name in _each("path", "inputs", inputs)]
        wanted = [self.value(name, "path") for name in _each("path", "outputs", outputs)]
        return ids_between(self.program.equations, stops, wanted)

    def subgraph_io(self, ids: Iterable[int]) -> SubgraphIO:
        """What a part of the graph reads from outside, and what it makes that is read outside or returned.

        Args:
            ids: the ids of its nodes.

        Returns:
            Its inputs, in the order of their first reading, and its outputs, in the order of the nodes.

        Raises:
            ValueError: if the graph has no such node.

        Example:
            >>> import jax.numpy as jnp
            >>> import rnnscan as rs
            >>> graph = rs.graph.trace(lambda x: jnp.tanh(jnp.sin(jnp.cos(x))), 1.0)
            >>> graph.subgraph_io([1])
            SubgraphIO(inputs=(Name(base='cos', version=1),), outputs=(Name(base='sin', version=1),))
        """
        part = [self.nodes[node_id] for node_id in sorted(set(self.checked_ids("subgraph_io", ids)))]
        return io_of(part, self.outputs.values(), self.consumers())

    def checked_ids(self, function: str, ids: Iterable[int]) -> list[int]:
        """The ids of nodes, if there are such nodes.

        Args:
            function: the caller's name, for messages.
            ids: the ids.

        Raises:
            ValueError: if not.
        """
        every = list(ids)
        unknown = [node_id for node_id in every if node_id not in range(len(self.program.equations))]
        if unknown:
            raise ValueError(
                f"graph.{function}: the ids of nodes go from 0 to {len(self.program.equations) - 1}; got "
                f"{', '.join(map(repr, unknown))}. `graph.path` and `graph.nodes` give ids."
            )
        return every

    def captured(self) -> list[Captured]:
        """The arrays that the function closes over, the largest first.

        Example:
            >>> import jax.numpy as jnp
            >>> import rnnscan as rs
            >>> table = jnp.ones((10, 4))
            >>> [one] = rs.graph.trace(lambda token: table[token], 3).captured()
            >>> str(one.name), one.shape, one.nbytes
            ('captured[0]', (10, 4), 160)
        """
        captured = [
            Captured(self.names[value], value.shape, value.dtype, value.nbytes, array)
            for value, array in zip(self._captured_values, self.arrays, strict=True)
        ]
        return sorted(captured, key=lambda entry: -entry.nbytes)

    def to_cell(self) -> Callable[..., Any]:
        """The graph as a function of the arguments that were traced: a cell again, if it was one.

        Returns:
            A function with equal values and gradients. It takes arguments of the traced shapes and dtypes; others are a
            `TypeError`. Labels of `rnnscan.name` are emitted, so a memory choice finds them.

        Example:
            >>> import jax
            >>> import jax.numpy as jnp
            >>> import rnnscan as rs
            >>> cell, xs = rs.cells.GRU(4), jnp.ones((5, 2, 3))
            >>> params = cell.init(jax.random.key(0), input_size=3)
            >>> carry = cell.initial_carry(xs[0])
            >>> graph = rs.graph.trace(cell, params, carry, xs[0])
            >>> last, ys = rs.scan(graph.to_cell(), params, carry, xs, memory=rs.Memory(recompute=("gates",)))
            >>> ys.shape
            (5, 2, 4)
        """
        return GraphFunction(self.program, self.signature, self.arguments, self.arrays, self.labels, repr(self))

    def draw(
        self,
        format: Format = "svg",
        *,
        direction: Direction = "down",
        collapse: bool | int | None = None,
        memory: Memory | None = None,
        details: bool = True,
        title: str = "",
    ) -> Picture:
        """Draw the graph. Graphviz, which the extra `plot` installs, draws SVG; the others need no other package.

        Colors are the kinds of work of a cell, as `rnnscan.explain` has them. Thick arrows are values that are kept
        for the backward pass of a scan, by the rule of memory. Other functions have one color, and plain arrows.

        Args:
            format: "svg"; "mermaid" for a page in Markdown; "dot" for Graphviz.
            direction: "down" or "right".
            collapse: the number of enclosing `jax.named_scope` to tell apart. Operations that are in as many are drawn
                as one box; True is 1, and False draws every operation. None: as many as leave at most 200 boxes, for a
                graph with more operations.
            memory: the memory choice of a cell; None: `Memory()`.
            details: whether to draw operations that only move or cast values, and the parameters of a cell as boxes of
                their own. Without, parameters are written into the boxes that read them.
            title: the title.

        Returns:
            The picture, with `text` and `save(path)`. One in SVG shows itself in a notebook, with types as tooltips.

        Raises:
            TypeError: if `collapse` is not a number, or `memory` not a `Memory`.
            ValueError: if an option has none of its values, if the graph is not of a cell and gets a memory choice, or
                if the choice has a name that the graph does not have.

        Example:
            >>> import jax.numpy as jnp
            >>> import rnnscan as rs
            >>> graph = rs.graph.trace(lambda x, y: jnp.sin(x) * y, 1.0, 2.0)
            >>> print(graph.draw("mermaid", direction="right").text)
            flowchart LR
                a0(["x"]):::given
                a1(["y"]):::given
                n0["sin"]:::plain
                n1["#215;"]:::plain
                r0(["result"]):::given
                a0 --> n0
                n0 --> n1
                a1 --> n1
                n1 --> r0
                classDef given fill:#ffffff,stroke:#737373,color:#000
                classDef plain fill:#dbe4ee,stroke:#52687f,color:#000
            <BLANKLINE>
        """
        options = PictureOptions(format, direction, collapse, title).checked("graph.draw")
        arguments = (*self.arguments, *self._captured_values)
        places = self.signature.result_places()
        diagram = diagram_of(
            content_of_graph(
                self.program, arguments, places, self.names, self.labels, is_cell=self.signature.is_cell, memory=memory
            )
        )
        return options.picture(diagram if details else simplified(diagram))

    def to_networkx(self) -> Any:
        """The graph as a `networkx.DiGraph`, which needs the extra `graph`.

        Returns:
            A bipartite graph. Values are nodes by their `Name`, with `kind="value"`, `type` and `output`, whether they
            are returned. Operations are nodes by their ids, with `kind="operation"` and `operation`. Edges go from a
            value to its readers, and from an operation to its results.

        Raises:
            ImportError: if networkx is not installed.

        Example:
            >>> import networkx
            >>> import rnnscan as rs
            >>> graph = rs.graph.trace(lambda x: 2 * (x * x), 1.0)
            >>> networkx.dag_longest_path_length(graph.to_networkx())
            4
        """
        types = {name: value.aval for value, name in self.names.items()}
        return to_networkx(self.nodes, types, set(self.outputs.values()))

    def rewritten(
        self,
        program: Program,
        *,
        labels: Mapping[Value, tuple[str, ...]] | None = None,
        names: Mapping[Value, Name] | None = None,
    ) -> "Graph":
        """The graph of another program for the same function. Values that stay keep their names and labels.

        Args:
            program: the program, with the same inputs, and as many outputs.
            labels: labels to hold in place of the graph's.
            names: names to hold in place of the graph's.
        """
        every = complete(program, self.names if names is None else names, {})
        held = self.labels if labels is None else labels
        return replace(
            self,
            program=program,
            names=MappingProxyType(every),
            labels=MappingProxyType({value: labels for value, labels in held.items() if value in every}),
        )

    @cached_property
    def _structure(self) -> Hashable:
        results = (*self.program.new_carry, *self.program.stacked)
        inputs = (*self._captured_values, *self.arguments)
        return self.signature.is_cell, self.signature.results, structure_of(self.program, inputs, results)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Graph) and self._structure == other._structure

    def __hash__(self) -> int:
        return hash(self._structure)

    def _blocks(self) -> Iterator[str | Table]:
        values = {name: value for value, name in self.names.items()}
        kinds = kinds_of_work(self.program, self.names) if self.signature.is_cell else {}
        of_names = {self.names[value]: kind for value, kind in kinds.items() if value in self.names}
        return blocks_of(repr(self), self.nodes, self.inputs, self.outputs, values, of_names)

    def __str__(self) -> str:
        types = {name: value.aval for value, name in self.names.items()}
        return as_text(self.nodes, self.inputs, self.outputs, types)

    def __repr__(self) -> str:
        roots = dict.fromkeys(place.partition("[")[0] for place in self.signature.argument_places())
        results = dict.fromkeys(place.partition("[")[0] for place in self.signature.result_places())
        count = len(self.program.equations)
        return f"Graph of {count} node{'s' * (count != 1)}: {', '.join(roots) or '()'} -> {', '.join(results) or '()'}"


def _each(function: str, argument: str, names: Iterable[Name | str]) -> list[Name | str]:
    """The names, if they are several: one text would be read letter by letter."""
    if isinstance(names, str | Name):
        raise TypeError(
            f"graph.{function}: `{argument}` must be a list of names; got the one name {str(names)!r}. "
            f"Write {argument}=[{str(names)!r}]."
        )
    return list(names)
