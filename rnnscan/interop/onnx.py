"""Convert tensors from and to the ONNX operators `LSTM`, `GRU` and `RNN`. The `onnx` package is not needed."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rnnscan._util.messages import listing, nearest
from rnnscan.cells.activations import Activation
from rnnscan.interop.arrays import Tensor, concatenate, split, stack
from rnnscan.interop.gates import Layout, find_layout, read_weights
from rnnscan.interop.nets import (
    CellWeights,
    activation_name,
    cells_of,
    check_alike,
    find_activation,
    make_cell,
    make_net,
    only_layer,
)
from rnnscan.interop.tensors import as_arrays, check_concrete, check_names, check_shape
from rnnscan.nets import Bidirectional, layer


_DIRECTIONS = {"forward": 1, "reverse": 1, "bidirectional": 2}

# With ONNX's default alpha and beta.
_ACTIVATIONS: dict[str, Activation] = {
    "Elu": "elu",
    "HardSigmoid": "hard_sigmoid",
    "LeakyRelu": "leaky_relu",
    "Relu": "relu",
    "Sigmoid": "sigmoid",
    "Softplus": "softplus",
    "Softsign": "softsign",
    "Tanh": "tanh",
}

# For one direction: gates (f), candidate (g), and an LSTM's state (h).
_DEFAULTS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}


def from_onnx(
    tensors: Mapping[str, Any],
    kind: str = "LSTM",
    *,
    direction: str = "forward",
    linear_before_reset: int = 0,
    activations: Sequence[str] | None = None,
) -> tuple[Any, Any]:
    """Make a net from the tensors of an ONNX operator `LSTM`, `GRU` or `RNN`, which is one layer.

    The two halves of `B` are added, except for the candidate of a GRU with `linear_before_reset`, whose second bias
    becomes `"recurrent_bias"`. The net's outputs are `(T, N, H)`, or `(T, N, 2H)` for two directions, while ONNX's are
    `(T, directions, N, H)`. The attributes `clip` and `input_forget` are not supported.

    Args:
        tensors: the inputs `{"W": (directions, 4H, D), "R": (directions, 4H, H)}` of an LSTM, with 3H for a GRU and H
            for an RNN. Optionally `"B"` `(directions, 8H)`, and `"P"` `(directions, 3H)` of an LSTM.
        kind: "LSTM", "GRU" or "RNN".
        direction: the attribute: "forward", "reverse" or "bidirectional".
        linear_before_reset: the attribute of a GRU. 1 is `reset_after=True`.
        activations: the attribute, one direction after the other. None: ONNX's defaults.

    Returns:
        The net, a `layer` or a `bidirectional` one, and its parameters.

    Raises:
        ValueError: if a tensor is missing, unknown or of another shape, or an attribute is invalid.
        TypeError: if one is not a tensor of a floating dtype.

    Example:
        >>> import numpy as np
        >>> from rnnscan.interop import from_onnx
        >>> tensors = {"W": np.ones((1, 12, 3), np.float32), "R": np.ones((1, 12, 4), np.float32)}
        >>> net, params = from_onnx(tensors, "GRU", linear_before_reset=1)
        >>> net
        Layer(cell=GRU(hidden_size=4, use_bias=False), reverse=False)
    """
    layout = find_layout("from_onnx", "ONNX", kind)
    if direction not in _DIRECTIONS:
        raise ValueError(
            f"from_onnx: `direction` must be one of {listing(_DIRECTIONS)}; got {direction!r}."
            f"{nearest(direction, _DIRECTIONS)}"
        )
    directions = _DIRECTIONS[direction]
    arrays = as_arrays("from_onnx", tensors)
    check_names("from_onnx", f"ONNX's {kind}", arrays, ["W", "R"], ["B", "P"] if kind == "LSTM" else ["B"])
    _check_shapes(layout, arrays, directions)
    options = _read_activations(kind, activations, directions)
    if kind == "GRU":
        options = [of_direction | {"reset_after": bool(linear_before_reset)} for of_direction in options]
    cells = [
        _read_cell(kind, layout, {name: array[number] for name, array in arrays.items()}, options[number])
        for number in range(directions)
    ]
    if direction == "reverse":
        return layer(cells[0].cell, reverse=True), cells[0].params
    return make_net([cells])


def to_onnx(net: Any, params: Any) -> dict[str, np.ndarray]:
    """Convert the weights of a net to tensors of an ONNX operator `LSTM`, `GRU` or `RNN`.

    The first half of `B` is rnnscan's bias. The second is zero, except for the candidate of a GRU with `reset_after`.
    `from_onnx` restores rnnscan's parameters exactly. `onnx_attributes` makes the operator's attributes.
    `rnnscan.export.to_onnx` writes a whole net as a file.

    Args:
        net: a layer of `LSTM`, `GRU` or `RNN`, or a bidirectional net of two cells of one form.
        params: its parameters.

    Returns:
        Numpy arrays `"W"`, `"R"`, and `"B"` and `"P"` if the net has biases and peepholes.

    Raises:
        TypeError: if the net is of another kind, or the parameters are traced.
        ValueError: if ONNX has no such net, or the parameters do not fit the net.

    Example:
        >>> import jax
        >>> import rnnscan as rs
        >>> from rnnscan.interop import to_onnx
        >>> net = rs.bidirectional(rs.cells.LSTM(4))
        >>> {name: array.shape for name, array in to_onnx(net, net.init(jax.random.key(0), input_size=3)).items()}
        {'W': (2, 16, 3), 'R': (2, 16, 4), 'B': (2, 32)}
    """
    cells = only_layer("to_onnx", "ONNX", cells_of("to_onnx", "ONNX", net, params, reverse=True))
    check_alike("to_onnx", "ONNX", [cells])
    for weights in cells:
        _write_activations(weights.kind, weights.cell)
    tensors = [write_cell(weights) for weights in cells]
    stacked = {name: stack([of_cell[name] for of_cell in tensors]) for name in tensors[0]}
    return check_concrete("to_onnx", stacked)


def onnx_attributes(net: Any) -> dict[str, Any]:
    """Make the attributes of the ONNX operator for the tensors of `to_onnx`.

    Args:
        net: a layer of `LSTM`, `GRU` or `RNN`, or a bidirectional net.

    Returns:
        `direction`, `hidden_size`, `activations`, and `linear_before_reset` for a GRU.

    Raises:
        ValueError: if ONNX has no such activation.

    Example:
        >>> import rnnscan as rs
        >>> from rnnscan.interop import onnx_attributes
        >>> onnx_attributes(rs.layer(rs.cells.RNN(4, activation="relu"), reverse=True))
        {'direction': 'reverse', 'hidden_size': 4, 'activations': ['Relu']}
    """
    cells: list[Any]
    if isinstance(net, Bidirectional):
        direction, cells = "bidirectional", [net.forward, net.backward]
    else:
        direction, cells = "reverse" if net.reverse else "forward", [net.cell]
    attributes = {
        "direction": direction,
        "hidden_size": cells[0].hidden_size,
        "activations": [name for cell in cells for name in _write_activations(type(cell).__name__, cell)],
    }
    if hasattr(cells[0], "reset_after"):
        attributes["linear_before_reset"] = int(cells[0].reset_after)
    return attributes


def _check_shapes(layout: Layout, arrays: dict[str, Tensor], directions: int) -> None:
    blocks, count = len(layout.gates), str(directions)
    shapes = {
        "W": (count, f"{blocks}H", "D"),
        "R": (count, f"{blocks}H", "H"),
        "B": (count, f"{2 * blocks}H"),
        "P": (count, f"{len(layout.peepholes)}H"),
    }
    check_shape("from_onnx", "ONNX", "R", arrays["R"], shapes["R"], {}, layout)
    for name, array in arrays.items():
        check_shape("from_onnx", "ONNX", name, array, shapes[name], {"H": arrays["R"].shape[-1]}, layout)


def _read_cell(kind: str, layout: Layout, tensors: dict[str, Tensor], options: dict[str, Any]) -> CellWeights:
    by_gate = read_weights(
        layout,
        tensors["W"],
        tensors["R"],
        split(tensors["B"], 2) if "B" in tensors else [],
        resets_product=options.get("reset_after", False),
        peepholes=tensors.get("P"),
    )
    return make_cell(kind, by_gate, **options)


def write_cell(weights: CellWeights) -> dict[str, Tensor]:
    """The tensors of one direction: W, R, and B and P if the cell has biases and peepholes."""
    layout, by_gate = find_layout("to_onnx", "ONNX", weights.kind), weights.by_gate
    tensors = {"W": layout.fuse(by_gate.kernel), "R": layout.fuse(by_gate.recurrent_kernel)}
    if by_gate.bias is not None:
        tensors["B"] = concatenate(by_gate.biases(layout))
    if by_gate.peepholes is not None:
        tensors["P"] = concatenate([by_gate.peepholes[gate] for gate in layout.peepholes])
    return tensors


def _read_activations(kind: str, names: Sequence[str] | None, directions: int) -> list[dict[str, Any]]:
    """Convert the activations of each direction to options of a cell."""
    count = len(_DEFAULTS[kind])
    names = _DEFAULTS[kind] * directions if names is None else names
    if len(names) != count * directions:
        raise ValueError(
            f"from_onnx: `activations` must be {count} names for each of {directions} directions; got {names!r}."
        )
    activations = [find_activation("from_onnx", "ONNX", name, _ACTIVATIONS) for name in names]
    options = []
    for first in range(0, len(activations), count):
        *of_gates, activation = activations[first : first + count]
        if kind == "LSTM" and of_gates.pop() != activation:
            raise ValueError(
                "from_onnx: the second and the third activation, of candidate and state, must be the same in rnnscan; "
                f"got {names!r}."
            )
        options.append({"activation": activation} | ({"gate_activation": of_gates[0]} if of_gates else {}))
    return options


def _write_activations(kind: str, cell: Any) -> list[str]:
    names = {activation: name for name, activation in _ACTIVATIONS.items()}
    used = [cell.activation] if kind == "RNN" else [cell.gate_activation, cell.activation]
    for activation in used:
        if activation_name(activation) not in names:
            raise ValueError(f"to_onnx: ONNX has no such activation; got {activation!r} in {cell!r}.")
    written = [names[activation_name(activation)] for activation in used]
    return [*written, written[-1]] if kind == "LSTM" else written
