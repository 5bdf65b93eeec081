"""Convert weights from and to DL4J's `LSTM` and `GravesLSTM`, which has peepholes, in one or both directions."""

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from rnnscan._util.messages import listing
from rnnscan.cells.activations import Activation
from rnnscan.interop.arrays import Tensor, concatenate, split, stack
from rnnscan.interop.gates import find_layout, read_weights
from rnnscan.interop.nets import CellWeights, activation_name, cells_of, make_cell, make_net, only_layer
from rnnscan.interop.tensors import as_arrays, check_concrete, check_names, check_shape
from rnnscan.nets import Bidirectional


_NAMES = ("W", "RW", "b")
# The parameter names of each bidirectional layer, forward and backward.
_DIRECTIONS = {
    "Bidirectional": (tuple(f"f{name}" for name in _NAMES), tuple(f"b{name}" for name in _NAMES)),
    "GravesBidirectionalLSTM": (tuple(f"{name}F" for name in _NAMES), tuple(f"{name}B" for name in _NAMES)),
}
# The modes of DL4J's Bidirectional, by rnnscan's names.
_MODES = {"concat": "CONCAT", "sum": "ADD", "mean": "AVERAGE", "product": "MUL"}


def from_dl4j(
    tensors: Mapping[str, Any],
    *,
    activation: Activation = "tanh",
    gate_activation: Activation = "sigmoid",
    merge: Literal["concat", "sum", "mean", "product"] | None = None,
) -> tuple[Any, Any]:
    """Make a net from the weights of a DL4J `GravesLSTM` or `LSTM`, or of a bidirectional layer of either.

    A `GravesLSTM` has `RW` `(H, 4H+3)`. The last three columns are the peepholes of the forget, output and input gates.
    The net is time-major, `(T, N, D)`, while DL4J's data is `(N, D, T)`.

    Args:
        tensors: `{"W": (D, 4H), "RW": (H, 4H+3) or (H, 4H), "b": (1, 4H)}`. A `Bidirectional` has `"fW"`, `"fRW"`,
            `"fb"`, `"bW"`, `"bRW"` and `"bb"`. A `GravesBidirectionalLSTM` has `"WF"`, `"RWF"`, `"bF"`, `"WB"`,
            `"RWB"` and `"bB"`.
        activation: the layer's activation.
        gate_activation: the layer's gate activation. DL4J's HARDSIGMOID is "hard_sigmoid".
        merge: the mode of a `Bidirectional`: "concat" for CONCAT, the default, "sum" for ADD, "mean" for AVERAGE or
            "product" for MUL. A `GravesBidirectionalLSTM` always sums.

    Returns:
        The net, a `layer` or a `bidirectional` net, and its parameters.

    Raises:
        ValueError: if a tensor is missing, unknown or of another shape, or the layer has no such mode.
        TypeError: if one is not a tensor of a floating dtype.

    Example:
        >>> import numpy as np
        >>> from rnnscan.interop import from_dl4j
        >>> shapes = {"W": (3, 16), "RW": (4, 19), "b": (1, 16)}
        >>> net, params = from_dl4j({name: np.ones(shape, np.float32) for name, shape in shapes.items()})
        >>> net
        Layer(cell=LSTM(hidden_size=4, peepholes=True), reverse=False)
        >>> both = {f"{name}{way}": np.ones(shape, np.float32) for name, shape in shapes.items() for way in "FB"}
        >>> from_dl4j(both)[0].merge
        'sum'

    Source: DL4J's `LSTMParamInitializer`, `GravesLSTMParamInitializer`, `GravesBidirectionalLSTMParamInitializer` and
    `BidirectionalParamInitializer`.
    """
    arrays = as_arrays("from_dl4j", tensors)
    options = {"activation": activation, "gate_activation": gate_activation}
    kind = next((kind for kind, ways in _DIRECTIONS.items() if any(set(names) & set(arrays) for names in ways)), None)
    if kind is None:
        if merge is not None:
            raise ValueError(
                f"from_dl4j: `merge` is for both directions; got merge={merge!r} and one direction, {listing(arrays)}. "
                f"Give the tensors {listing(sum(_DIRECTIONS['Bidirectional'], ()))}."
            )
        check_names("from_dl4j", "a DL4J LSTM", arrays, _NAMES)
        return make_net([[_read_cell(arrays, _NAMES, {}, options)]])
    forward, backward = _DIRECTIONS[kind]
    check_names("from_dl4j", f"a DL4J {kind}", arrays, forward + backward)
    sizes: dict[str, int] = {}
    first = _read_cell(arrays, forward, sizes, options, peepholes=True if kind == "GravesBidirectionalLSTM" else None)
    second = _read_cell(arrays, backward, sizes, options, peepholes=first.cell.peepholes)
    return make_net([[first, second]], merge=_find_merge(kind, merge))


def to_dl4j(
    net: Any, params: Any, *, kind: Literal["Bidirectional", "GravesBidirectionalLSTM"] | None = None
) -> dict[str, np.ndarray]:
    """Convert the weights of a net to those of a DL4J `LSTM` or `GravesLSTM`, or of a bidirectional layer.

    `from_dl4j` restores them exactly. Missing biases become zero. Weights include neither activations nor the mode of a
    bidirectional layer: give the layer those of the net.

    Args:
        net: a layer of `LSTM`, or a bidirectional net of two.
        params: its parameters.
        kind: the layer for a bidirectional net. None: "Bidirectional". A `GravesBidirectionalLSTM` has peepholes, and
            sums.

    Returns:
        The tensors, in the form that `from_dl4j` takes.

    Raises:
        TypeError: if the net is of another kind, or the parameters are traced.
        ValueError: if DL4J has no such net, or the parameters do not fit the net.

    Example:
        >>> import jax
        >>> import rnnscan as rs
        >>> from rnnscan.interop import to_dl4j
        >>> net = rs.layer(rs.cells.LSTM(4, peepholes=True))
        >>> {name: array.shape for name, array in to_dl4j(net, net.init(jax.random.key(0), input_size=3)).items()}
        {'W': (3, 16), 'RW': (4, 19), 'b': (1, 16)}
        >>> net = rs.bidirectional(rs.cells.LSTM(4), merge="mean")  # for Bidirectional(Mode.AVERAGE, LSTM)
        >>> list(to_dl4j(net, net.init(jax.random.key(0), input_size=3)))
        ['fW', 'fRW', 'fb', 'bW', 'bRW', 'bb']
    """
    cells = only_layer("to_dl4j", "DL4J", cells_of("to_dl4j", "DL4J", net, params, merges=tuple(_MODES)))
    if kind is not None and kind not in _DIRECTIONS:
        raise ValueError(f"to_dl4j: `kind` must be one of {listing(_DIRECTIONS)}; got {kind!r}.")
    if len(cells) == 1:
        if kind is not None:
            raise ValueError(
                f"to_dl4j: `kind` is for a bidirectional net; got kind={kind!r} and {net!r}. Leave it out."
            )
        return check_concrete("to_dl4j", _write_cell(cells[0], _NAMES))
    kind = kind or "Bidirectional"
    _check_directions(net, cells, kind)
    forward, backward = (_write_cell(weights, names) for weights, names in zip(cells, _DIRECTIONS[kind], strict=True))
    return check_concrete("to_dl4j", forward | backward)


def _read_cell(
    arrays: Mapping[str, Tensor],
    names: tuple[str, ...],
    sizes: dict[str, int],
    options: Mapping[str, Any],
    *,
    peepholes: bool | None = None,
) -> CellWeights:
    """Read one direction.

    Args:
        arrays: the tensors of all directions.
        names: the names of the tensors of this direction.
        sizes: the known sizes. H and D are added, so that the other direction must have them too.
        options: the options of the cell.
        peepholes: whether there must be peepholes. None: the shape decides.
    """
    layout = find_layout("from_dl4j", "DL4J", "LSTM")
    kernel, recurrent, bias = names
    check_shape("from_dl4j", "DL4J", recurrent, arrays[recurrent], ("H", "4H+3"), {}, layout)
    sizes.setdefault("H", arrays[recurrent].shape[0])
    units = sizes["H"]
    has_peepholes = arrays[recurrent].shape[1] != 4 * units if peepholes is None else peepholes
    shapes = {kernel: ("D", "4H"), recurrent: ("H", "4H+3" if has_peepholes else "4H"), bias: ("1", "4H")}
    for name, shape in shapes.items():
        check_shape("from_dl4j", "DL4J", name, arrays[name], shape, sizes, layout)
    sizes["D"] = arrays[kernel].shape[0]
    recurrent_kernel, columns = split(arrays[recurrent], [4 * units], axis=1)
    by_gate = read_weights(
        layout,
        arrays[kernel],
        recurrent_kernel,
        [arrays[bias][0]],
        peepholes=columns.T.ravel() if has_peepholes else None,
    )
    return make_cell("LSTM", by_gate, **options)


def _write_cell(weights: CellWeights, names: tuple[str, ...]) -> dict[str, Tensor]:
    layout, by_gate = find_layout("to_dl4j", "DL4J", "LSTM"), weights.by_gate
    recurrent_kernel = layout.fuse(by_gate.recurrent_kernel)
    if by_gate.peepholes is not None:
        columns = stack([by_gate.peepholes[gate] for gate in layout.peepholes], axis=1)
        recurrent_kernel = concatenate([recurrent_kernel, columns], axis=1)
    (bias,) = by_gate.biases(layout, absent="zeros")
    return dict(zip(names, (layout.fuse(by_gate.kernel), recurrent_kernel, bias[None]), strict=True))


def _find_merge(kind: str, merge: Any) -> str:
    if merge is None:
        return "sum" if kind == "GravesBidirectionalLSTM" else "concat"
    if kind == "GravesBidirectionalLSTM" and merge != "sum":
        raise ValueError(f"from_dl4j: a GravesBidirectionalLSTM adds its two directions; got merge={merge!r}.")
    if merge not in _MODES:
        modes = ", ".join(f"{name!r} ({mode})" for name, mode in _MODES.items())
        raise ValueError(f"from_dl4j: `merge` must be one of {modes}; got {merge!r}.")
    return merge


def _check_directions(net: Bidirectional, cells: list[CellWeights], kind: str) -> None:
    """Check that DL4J supports the two directions in one layer."""
    forward, backward = cells
    if _form(forward) != _form(backward):
        raise ValueError(
            "to_dl4j: both directions of a DL4J layer must have one size and form; got "
            f"{forward.cell!r} and {backward.cell!r}."
        )
    if kind == "GravesBidirectionalLSTM" and (net.merge != "sum" or not forward.cell.peepholes):
        raise ValueError(
            "to_dl4j: a GravesBidirectionalLSTM has peepholes and adds its two directions; got "
            f"merge={net.merge!r} of {net.forward!r}. Use kind='Bidirectional'."
        )


def _form(weights: CellWeights) -> tuple[Any, ...]:
    cell = weights.cell
    return weights.sizes, cell.peepholes, activation_name(cell.activation), activation_name(cell.gate_activation)
