"""A graph of ONNX while it is built: nodes, weights, inputs and outputs."""

from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np

from rnnscan.export.common.extras import import_extra
from rnnscan.export.common.specs import ArraySpec


class NoOperatorError(Exception):
    """ONNX's operators cannot hold a net. The message says which part, and why."""


@dataclass(frozen=True)
class Value:
    """A tensor of the graph.

    Attributes:
        name: its name in the graph.
        dtype: the NumPy dtype.
    """

    name: str
    dtype: Any


@dataclass(frozen=True)
class Port:
    """An input or output of the graph.

    Attributes:
        name: its name.
        spec: its dtype and shape; a size may be a name.
    """

    name: str
    spec: ArraySpec


class Builder:
    """Collects the nodes of a graph in the order in which they run.

    Attributes:
        opset: the version of ONNX's operators.
    """

    def __init__(self, opset: int) -> None:
        self.opset = opset
        self._onnx = import_extra("onnx", "onnx")
        self._nodes: list[Any] = []
        self._weights: list[Any] = []
        self._names: set[str] = set()

    def reserve(self, ports: list[Port]) -> None:
        """Keep the names of inputs and outputs from other values."""
        self._names |= {port.name for port in ports}

    def weight(self, array: Any, name: str) -> str:
        """Add a constant; returns its name."""
        name = self._unique(name)
        self._weights.append(self._onnx.numpy_helper.from_array(np.asarray(array, order="C"), name))
        return name

    def node(self, operator: str, *inputs: str, place: str = "", **attributes: Any) -> str:
        """Add a node with one output; returns its name."""
        return self.nodes(operator, *inputs, outputs=("",), place=place, **attributes)[0]

    def nodes(
        self, operator: str, *inputs: str, outputs: tuple[str, ...], place: str = "", **attributes: Any
    ) -> list[str]:
        """Add a node with several outputs; returns their names.

        Args:
            operator: the operator of ONNX.
            inputs: the names of its inputs; an empty one is an optional input that is left out.
            outputs: suffixes of the outputs' names.
            place: the part of the net that it belongs to.
            attributes: its attributes.
        """
        stem = f"{place}/{operator}" if place else operator
        names = [self._unique(f"{stem}.{suffix}" if suffix else stem) for suffix in outputs]
        last = max((number + 1 for number, name in enumerate(inputs) if name), default=0)
        node = self._onnx.helper.make_node(operator, list(inputs[:last]), names, name=f"{names[0]}.node", **attributes)
        self._nodes.append(node)
        return names

    def cast(self, value: Value, dtype: Any) -> Value:
        """Convert a value to another dtype, if it has not that one."""
        dtype = np.dtype(dtype)
        if value.dtype == dtype:
            return value
        return Value(self.node("Cast", value.name, to=element_type(self._onnx, dtype)), dtype)

    def model(self, inputs: list[Port], outputs: list[tuple[Port, Value]]) -> Any:
        """The model of all nodes.

        Args:
            inputs: the graph's inputs.
            outputs: its outputs, each with its value.
        """
        helper = self._onnx.helper
        for port, value in outputs:
            self._nodes.append(helper.make_node("Identity", [value.name], [port.name], name=f"{port.name}.node"))
        graph = helper.make_graph(
            self._nodes,
            "rnnscan",
            [value_info(self._onnx, port) for port in inputs],
            [value_info(self._onnx, port) for port, _ in outputs],
            self._weights,
        )
        opsets = [helper.make_opsetid("", self.opset)]
        return helper.make_model(
            graph,
            opset_imports=opsets,
            # The oldest format with these operators, for older runtimes.
            ir_version=helper.find_min_ir_version_for(opsets),
            producer_name="rnnscan",
            producer_version=version("rnnscan"),
        )

    def _unique(self, name: str) -> str:
        candidate, number = name, 1
        while candidate in self._names:
            number += 1
            candidate = f"{name}_{number}"
        self._names.add(candidate)
        return candidate


def value_info(onnx: Any, port: Port) -> Any:
    """The type of an input or output. An expression of symbolic sizes, such as 2*T, is a name like any other."""
    return onnx.helper.make_tensor_value_info(
        port.name, element_type(onnx, np.dtype(port.spec.dtype)), list(port.spec.shape)
    )


def element_type(onnx: Any, dtype: Any) -> int:
    """ONNX's number of a dtype."""
    return int(onnx.helper.np_dtype_to_tensor_dtype(dtype))
