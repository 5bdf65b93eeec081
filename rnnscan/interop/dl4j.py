"""Weights from and to DL4J's `GravesLSTM`, whose gates have peepholes, and its `LSTM`, whose have none."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from rnnscan.cells.activations import Activation
from rnnscan.interop.gates import find_layout, read_weights
from rnnscan.interop.nets import make_net, make_part, one_layer, parts_of
from rnnscan.interop.tensors import as_arrays, check_names, check_shape


_NAMES = ("W", "RW", "b")
_PEEPHOLES = 3


def from_dl4j(
    tensors: Mapping[str, Any], *, activation: Activation = "tanh", gate_activation: Activation = "sigmoid"
) -> tuple[Any, Any]:
    """Make a net of the weights of a DL4J `GravesLSTM` or `LSTM`.

    `RW` says which it is: `(H, 4H+3)` has the peepholes in its last three columns, of the forget, the output and the
    input gate. A `GravesBidirectionalLSTM` is two of these: convert its tensors `WF`, `RWF`, `bF` and `WB`, `RWB`, `bB`
    by themselves, and sum both with `bidirectional(forward.cell, backward.cell, merge="sum")`. The net is time-major,
    `(T, N, D)`, where DL4J's data is `(N, D, T)`.

    Args:
        tensors: `{"W": (D, 4H), "RW": (H, 4H+3) or (H, 4H), "b": (1, 4H)}`.
        activation: the layer's activation; "tanh" is DL4J's most frequent one.
        gate_activation: the layer's gate activation; DL4J's HARDSIGMOID is "hard_sigmoid" here.

    Returns:
        The net, a `layer`, and its parameters.

    Raises:
        ValueError: if a tensor is missing, unknown or of another shape.
        TypeError: if one is no tensor of a floating dtype.

    Example:
        >>> import numpy as np
        >>> from rnnscan.interop import from_dl4j
        >>> shapes = {"W": (3, 16), "RW": (4, 19), "b": (1, 16)}
        >>> net, params = from_dl4j({name: np.ones(shape, np.float32) for name, shape in shapes.items()})
        >>> net
        Layer(cell=LSTM(hidden_size=4, peepholes=True), reverse=False)
    """
    layout = find_layout("from_dl4j", "DL4J", "LSTM")
    arrays = as_arrays("from_dl4j", tensors)
    check_names("from_dl4j", "a DL4J LSTM", arrays, _NAMES)
    check_shape("from_dl4j", "DL4J", "RW", arrays["RW"], ("H", "4H+3"), {}, layout)
    units = arrays["RW"].shape[0]
    has_peepholes = arrays["RW"].shape[1] != 4 * units
    shapes = {"W": ("D", "4H"), "RW": ("H", "4H+3" if has_peepholes else "4H"), "b": ("1", "4H")}
    for name, shape in shapes.items():
        check_shape("from_dl4j", "DL4J", name, arrays[name], shape, {"H": units}, layout)
    recurrent_kernel, peepholes = np.split(arrays["RW"], [4 * units], axis=1)
    weights = read_weights(
        layout,
        arrays["W"],
        recurrent_kernel,
        [arrays["b"][0]],
        # One column for each gate.
        peepholes=peepholes.T.ravel() if has_peepholes else None,
    )
    return make_net([[make_part("LSTM", weights, activation=activation, gate_activation=gate_activation)]])


def to_dl4j(net: Any, params: Any) -> dict[str, np.ndarray]:
    """The weights of a net as those of a DL4J `GravesLSTM`, or `LSTM` without peepholes.

    They come back exactly by `from_dl4j`. Without a bias DL4J's is zero. The activations are not among the weights: the
    layer's must be those of the net.

    Args:
        net: a layer of `LSTM`.
        params: its parameters.

    Returns:
        `{"W": (D, 4H), "RW": (H, 4H+3) or (H, 4H), "b": (1, 4H)}`.

    Raises:
        TypeError: if the net is of another form.
        ValueError: if DL4J has no such net, or the parameters are not those of the net.

    Example:
        >>> import jax
        >>> import rnnscan as rs
        >>> from rnnscan.interop import to_dl4j
        >>> net = rs.layer(rs.cells.LSTM(4, peepholes=True))
        >>> {name: array.shape for name, array in to_dl4j(net, net.init(jax.random.key(0), input_size=3)).items()}
        {'W': (3, 16), 'RW': (4, 19), 'b': (1, 16)}
    """
    layout = find_layout("to_dl4j", "DL4J", "LSTM")
    (part,) = one_layer("to_dl4j", "DL4J", parts_of("to_dl4j", "DL4J", net, params, merges=()))
    weights = part.weights
    recurrent_kernel = layout.fuse(weights.recurrent_kernel)
    if weights.peepholes is not None:
        columns = np.stack([weights.peepholes[gate] for gate in layout.peepholes], axis=1)
        recurrent_kernel = np.concatenate([recurrent_kernel, columns], axis=1)
    (bias,) = weights.biases(layout, absent="zeros")
    return {"W": layout.fuse(weights.kernel), "RW": recurrent_kernel, "b": bias[None]}
