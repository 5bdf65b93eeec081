"""Weights from and to Caffe2's LSTM, by gate, as its `GetLSTMParamNames` names them."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from rnnscan.interop.gates import Weights
from rnnscan.interop.nets import make_net, make_part, one_layer, parts_of
from rnnscan.interop.tensors import as_arrays, check_names, check_shape


# By gate, in Caffe2's order.
_NAMES = {"i": "input_gate", "f": "forget_gate", "o": "output_gate", "g": "cell"}
# Each with the size of what its weights multiply.
_SOURCES = {"input": "D", "recurrent": "H"}
_LAYOUT = "one tensor for each gate, units in rows"


def from_caffe2(param_values: Mapping[str, Mapping[str, Any]], *, forget_bias: float = 0.0) -> tuple[Any, Any]:
    """Make a net of the weights of a Caffe2 LSTM.

    They are those that Caffe2's `InitFromLSTMParams` takes: weights and biases of each gate, for the input and for the
    hidden state. The two biases become their sum.

    Args:
        param_values: `{"input": {...}, "recurrent": {...}}`, each with `"input_gate_w"`, `"forget_gate_w"`,
            `"output_gate_w"` and `"cell_w"`, `(H, D)` or `(H, H)`, and the biases `"input_gate_b"`, ..., `(H,)`.
        forget_bias: the `forget_bias` of the Caffe2 LSTM, which it adds at run time; here it is added to the bias.

    Returns:
        The net, a `layer`, and its parameters.

    Raises:
        ValueError: if a tensor is missing, unknown or of another shape.
        TypeError: if one is no tensor of a floating dtype.

    Example:
        >>> import numpy as np
        >>> from rnnscan.interop import from_caffe2
        >>> gates = ("input_gate", "forget_gate", "output_gate", "cell")
        >>> biases = {f"{gate}_b": np.zeros(4, np.float32) for gate in gates}
        >>> of_input = biases | {f"{gate}_w": np.ones((4, 3), np.float32) for gate in gates}
        >>> of_state = biases | {f"{gate}_w": np.ones((4, 4), np.float32) for gate in gates}
        >>> net, params = from_caffe2({"input": of_input, "recurrent": of_state}, forget_bias=1.0)
        >>> net, params["kernel"].shape
        (Layer(cell=LSTM(hidden_size=4), reverse=False), (3, 16))
    """
    check_names("from_caffe2", "Caffe2's LSTM", param_values, _SOURCES)
    tensors = {source: as_arrays("from_caffe2", param_values[source]) for source in _SOURCES}
    sizes: dict[str, int] = {}
    for source, letter in _SOURCES.items():
        shapes = {f"{name}_w": ("H", letter) for name in _NAMES.values()} | {
            f"{name}_b": ("H",) for name in _NAMES.values()
        }
        check_names("from_caffe2", f"Caffe2's {source!r} of an LSTM", tensors[source], shapes)
        for name, shape in shapes.items():
            array = tensors[source][name]
            check_shape("from_caffe2", "Caffe2", f"{source}/{name}", array, shape, sizes, _LAYOUT)
            sizes = sizes or dict(zip("HD", array.shape, strict=True))
    of_input, of_state = tensors["input"], tensors["recurrent"]
    bias = {gate: of_input[f"{name}_b"] + of_state[f"{name}_b"] for gate, name in _NAMES.items()}
    bias["f"] = bias["f"] + forget_bias
    weights = Weights(
        {gate: of_input[f"{name}_w"].T for gate, name in _NAMES.items()},
        {gate: of_state[f"{name}_w"].T for gate, name in _NAMES.items()},
        bias,
    )
    return make_net([[make_part("LSTM", weights)]])


def to_caffe2(net: Any, params: Any) -> dict[str, dict[str, np.ndarray]]:
    """The weights of a net by gate, as Caffe2's `InitFromLSTMParams` takes them, for a `forget_bias` of 0.

    Of Caffe2's two biases the input's is rnnscan's and the other is zero; without biases both are zero. So rnnscan's
    parameters come back exactly by `from_caffe2`, and Caffe2's own biases come back as their sums.

    Args:
        net: a layer of `LSTM`.
        params: its parameters.

    Returns:
        `{"input": {...}, "recurrent": {...}}` of arrays of numpy.

    Raises:
        TypeError: if the net is of another form.
        ValueError: if Caffe2 has no such net, or the parameters are not those of the net.

    Example:
        >>> import jax
        >>> import rnnscan as rs
        >>> from rnnscan.interop import to_caffe2
        >>> net = rs.layer(rs.cells.LSTM(4))
        >>> to_caffe2(net, net.init(jax.random.key(0), input_size=3))["input"]["cell_w"].shape
        (4, 3)
    """
    (part,) = one_layer("to_caffe2", "Caffe2", parts_of("to_caffe2", "Caffe2", net, params, merges=()))
    weights = part.weights
    zeros = np.zeros_like(weights.kernel["i"][0])
    of_input = {f"{name}_w": np.ascontiguousarray(weights.kernel[gate].T) for gate, name in _NAMES.items()}
    of_state = {f"{name}_w": np.ascontiguousarray(weights.recurrent_kernel[gate].T) for gate, name in _NAMES.items()}
    for gate, name in _NAMES.items():
        of_input[f"{name}_b"] = zeros if weights.bias is None else weights.bias[gate]
        of_state[f"{name}_b"] = zeros
    return {"input": of_input, "recurrent": of_state}
