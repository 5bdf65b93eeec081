"""Weights from and to ONNX's operators `LSTM`, `GRU` and `RNN`, whose tensors are arrays: no `onnx` is needed."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rnnscan._messages import listing, nearest
from rnnscan.cells.activations import Activation
from rnnscan.interop.gates import Layout, find_layout, read_weights
from rnnscan.interop.nets import (
    Part,
    activation_name,
    check_alike,
    find_activation,
    make_net,
    make_part,
    one_layer,
    parts_of,
)
from rnnscan.interop.tensors import as_arrays, check_names, check_shape
from rnnscan.nets import Bidirectional, layer


_DIRECTIONS = {"forward": 1, "reverse": 1, "bidirectional": 2}

# Those whose parameters alpha and beta are at ONNX's defaults.
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

# Of one direction: f of the gates, g of the candidate, h of an LSTM's state.
_DEFAULTS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}


def from_onnx(
    tensors: Mapping[str, Any],
    kind: str = "LSTM",
    *,
    direction: str = "forward",
    linear_before_reset: int = 0,
    activations: Sequence[str] | None = None,
) -> tuple[Any, Any]:
    """Make a net of the tensors of an ONNX operator `LSTM`, `GRU` or `RNN`, which is one layer.

    The two halves of `B` become their sum, apart from the candidate's of a GRU with `linear_before_reset`, whose second
    one stays `"recurrent_bias"`. The net's outputs are `(T, N, H)`, or of two directions `(T, N, 2H)`, where ONNX's are
    `(T, directions, N, H)`. The attributes `clip`, of the preactivations, and `input_forget` have no like here.

    Args:
        tensors: the inputs `{"W": (directions, 4H, D), "R": (directions, 4H, H)}` of an LSTM, with 3H of a GRU and H of
            an RNN, and where the operator has them `"B"` `(directions, 8H)` and `"P"` `(directions, 3H)`.
        kind: "LSTM", "GRU" or "RNN".
        direction: the attribute: "forward", "reverse" or "bidirectional".
        linear_before_reset: the attribute of a GRU: 1 is `reset_after=True`.
        activations: the attribute, of each direction in turn; None: ONNX's defaults.

    Returns:
        The net, a `layer` or a `bidirectional` one, and its parameters.

    Raises:
        ValueError: if a tensor is missing, unknown or of another shape, or an attribute cannot be.
        TypeError: if one is no tensor of a floating dtype.

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
    parts = [
        _read_part(kind, layout, {name: array[number] for name, array in arrays.items()}, options[number])
        for number in range(directions)
    ]
    if direction == "reverse":
        return layer(parts[0].cell, reverse=True), parts[0].params
    return make_net([parts])


def to_onnx(net: Any, params: Any) -> dict[str, np.ndarray]:
    """The weights of a net as tensors of an ONNX operator `LSTM`, `GRU` or `RNN`.

    Of the two halves of `B` the first is rnnscan's bias and the second is zero, apart from the candidate's of a GRU
    with `reset_after`. So rnnscan's parameters come back exactly by `from_onnx`, and an operator's own biases come back
    as their sums. `onnx_attributes` makes the attributes.

    Args:
        net: a layer of `LSTM`, `GRU` or `RNN`, or a bidirectional net of two cells of one form.
        params: its parameters.

    Returns:
        Arrays of numpy: `"W"`, `"R"`, and where the net has them `"B"` and `"P"`.

    Raises:
        TypeError: if the net is of another form.
        ValueError: if ONNX has no such net, or the parameters are not those of the net.

    Example:
        >>> import jax
        >>> import rnnscan as rs
        >>> from rnnscan.interop import to_onnx
        >>> net = rs.bidirectional(rs.cells.LSTM(4))
        >>> {name: array.shape for name, array in to_onnx(net, net.init(jax.random.key(0), input_size=3)).items()}
        {'W': (2, 16, 3), 'R': (2, 16, 4), 'B': (2, 32)}
    """
    parts = one_layer("to_onnx", "ONNX", parts_of("to_onnx", "ONNX", net, params, reverse=True))
    check_alike("to_onnx", "ONNX", [parts])
    for part in parts:
        _write_activations(part.kind, part.cell)
    tensors = [_write_part(part) for part in parts]
    return {name: np.stack([of_part[name] for of_part in tensors]) for name in tensors[0]}


def onnx_attributes(net: Any) -> dict[str, Any]:
    """The attributes of the ONNX operator that `to_onnx` makes the tensors of.

    Args:
        net: a layer of `LSTM`, `GRU` or `RNN`, or a bidirectional net.

    Returns:
        `direction`, `hidden_size`, `activations` and of a GRU `linear_before_reset`.

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


def _check_shapes(layout: Layout, arrays: dict[str, np.ndarray], directions: int) -> None:
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


def _read_part(kind: str, layout: Layout, tensors: dict[str, np.ndarray], options: dict[str, Any]) -> Part:
    weights = read_weights(
        layout,
        tensors["W"],
        tensors["R"],
        np.split(tensors["B"], 2) if "B" in tensors else [],
        resets_product=options.get("reset_after", False),
        peepholes=tensors.get("P"),
    )
    return make_part(kind, weights, **options)


def _write_part(part: Part) -> dict[str, np.ndarray]:
    layout, weights = find_layout("to_onnx", "ONNX", part.kind), part.weights
    tensors = {"W": layout.fuse(weights.kernel), "R": layout.fuse(weights.recurrent_kernel)}
    if weights.bias is not None:
        tensors["B"] = np.concatenate(weights.biases(layout))
    if weights.peepholes is not None:
        tensors["P"] = np.concatenate([weights.peepholes[gate] for gate in layout.peepholes])
    return tensors


def _read_activations(kind: str, names: Sequence[str] | None, directions: int) -> list[dict[str, Any]]:
    """The activations of each direction, as options of a cell."""
    count = len(_DEFAULTS[kind])
    names = _DEFAULTS[kind] * directions if names is None else names
    if len(names) != count * directions:
        raise ValueError(
            f"from_onnx: `activations` must be {count} names for each of {directions} directions; got {names!r}."
        )
    found = [find_activation("from_onnx", "ONNX", name, _ACTIVATIONS) for name in names]
    options = []
    for first in range(0, len(found), count):
        *of_gates, activation = found[first : first + count]
        if kind == "LSTM" and of_gates.pop() != activation:
            raise ValueError(
                "from_onnx: the second and the third activation, of candidate and state, must be the same here; got "
                f"{names!r}."
            )
        options.append({"activation": activation} | ({"gate_activation": of_gates[0]} if of_gates else {}))
    return options


def _write_activations(kind: str, cell: Any) -> list[str]:
    names = {activation: name for name, activation in _ACTIVATIONS.items()}
    used = [cell.activation] if kind == "RNN" else [cell.gate_activation, cell.activation]
    for activation in used:
        if activation_name(activation) not in names:
            raise ValueError(f"to_onnx: ONNX has no such activation; got {activation!r} in {cell!r}.")
    found = [names[activation_name(activation)] for activation in used]
    return [*found, found[-1]] if kind == "LSTM" else found
