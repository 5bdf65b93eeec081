"""Weights from and to the cells of `flax.linen`, which have one dense layer for each gate."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from jaxtyping import Array

from rnnscan._messages import listing, nearest
from rnnscan.cells.activations import Activation
from rnnscan.interop.gates import Weights, find_layout
from rnnscan.interop.nets import Part, make_net, make_part, one_layer, parts_of
from rnnscan.interop.tensors import as_arrays, check_names, check_shape, to_jax


KINDS = {
    "LSTMCell": "LSTM",
    "OptimizedLSTMCell": "LSTM",
    "GRUCell": "GRU",
    "SimpleCell": "RNN",
    "MGUCell": "MGU",
}

# The dense layers that have the biases: those of the input, i, or of the hidden state, h. The candidate's of the hidden
# state has one in addition where a gate multiplies its product.
_BIASED = {"LSTM": "h", "GRU": "i", "RNN": "i", "MGU": "i"}
_RECURRENT_BIAS = "hn/bias"


def from_flax(
    params: Mapping[str, Any],
    kind: str = "LSTMCell",
    *,
    activation: Activation = "tanh",
    gate_activation: Activation = "sigmoid",
) -> tuple[Any, Any]:
    """Make a net of the parameters of a cell of `flax.linen`.

    Flax's LSTM cells have the carry `(c, h)`, and rnnscan's `(h, c)`. A `SimpleCell(residual=True)` adds h to the
    preactivation, which its parameters do not say: add the identity to `"recurrent_kernel"`.

    Args:
        params: `cell.init(...)["params"]`: a dictionary of dense layers.
        kind: "LSTMCell", "OptimizedLSTMCell", "GRUCell", "SimpleCell" or "MGUCell".
        activation: the cell's `activation_fn`.
        gate_activation: the cell's `gate_fn`, where it has one.

    Returns:
        The net, a `layer`, and its parameters.

    Raises:
        ValueError: if a tensor is missing, unknown or of another shape.
        TypeError: if one is no tensor of a floating dtype.

    Example:
        >>> import jax.numpy as jnp
        >>> from rnnscan.interop import from_flax
        >>> params = {"i": {"kernel": jnp.ones((3, 4)), "bias": jnp.ones(4)}, "h": {"kernel": jnp.ones((4, 4))}}
        >>> net, params = from_flax(params, "SimpleCell")
        >>> net, params["kernel"].shape
        (Layer(cell=RNN(hidden_size=4), reverse=False), (3, 4))
    """
    find_kind("from_flax", kind, KINDS)
    tensors = flatten("from_flax", params)
    return read_dense("from_flax", KINDS[kind], tensors, activation=activation, gate_activation=gate_activation)


def to_flax(net: Any, params: Any) -> dict[str, dict[str, Array]]:
    """The weights of a net as parameters of a cell of `flax.linen`.

    They come back exactly by `from_flax`. Flax's biases are zero where rnnscan has none. The activations are not among
    the parameters: the cell's must be those of the net.

    Args:
        net: a layer of `LSTM`, `GRU`, `RNN` or `MGU`.
        params: its parameters.

    Returns:
        The parameters of `LSTMCell` and `OptimizedLSTMCell`, which are the same, `GRUCell`, `SimpleCell` or `MGUCell`.

    Raises:
        TypeError: if the net is of another form.
        ValueError: if Flax has no such net, or the parameters are not those of the net.

    Example:
        >>> import jax
        >>> import rnnscan as rs
        >>> from rnnscan.interop import to_flax
        >>> net = rs.layer(rs.cells.LSTM(4))
        >>> jax.tree.map(lambda leaf: leaf.shape, to_flax(net, net.init(jax.random.key(0), input_size=3))["hi"])
        {'bias': (4,), 'kernel': (4, 4)}
    """
    (part,) = one_layer("to_flax", "Flax", parts_of("to_flax", "Flax", net, params, merges=()))
    return nest(write_dense(part))


def find_kind(function: str, kind: str, known: Iterable[str]) -> None:
    """Refuse a kind of cell that is not known.

    Raises:
        ValueError: naming the known ones.
    """
    if kind not in known:
        raise ValueError(f"{function}: the cell must be one of {listing(known)}; got {kind!r}.{nearest(kind, known)}")


def flatten(function: str, params: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The tensors of dense layers, by `layer/tensor`."""
    tensors: dict[str, Any] = {}
    for dense, of_dense in params.items():
        if isinstance(of_dense, Mapping):
            tensors |= {f"{dense}/{name}": leaf for name, leaf in of_dense.items()}
        else:
            tensors[dense] = of_dense
    return as_arrays(function, tensors)


def nest(tensors: Mapping[str, np.ndarray]) -> dict[str, dict[str, Array]]:
    """Tensors by `layer/tensor` as a dictionary of dense layers."""
    nested: dict[str, dict[str, Array]] = {}
    for name, tensor in tensors.items():
        dense, leaf = name.split("/")
        nested.setdefault(dense, {})[leaf] = to_jax(tensor)
    return nested


def read_dense(function: str, kind: str, tensors: Mapping[str, np.ndarray], **activations: Any) -> tuple[Any, Any]:
    """A net of dense layers, one for each gate."""
    gates = find_layout(function, "Flax", kind).gates
    names = _names(kind, gates)
    shapes: dict[str, tuple[str, ...]] = dict.fromkeys(names["kernel"].values(), ("D", "H"))
    shapes |= dict.fromkeys(names["recurrent_kernel"].values(), ("H", "H"))
    shapes |= dict.fromkeys(names["bias"].values(), ("H",))
    has_recurrent_bias = kind == "GRU" or (kind == "MGU" and _RECURRENT_BIAS in tensors)
    if has_recurrent_bias:
        shapes[_RECURRENT_BIAS] = ("H",)
    check_names(function, f"Flax's {kind}", tensors, shapes)
    sizes: dict[str, int] = {}
    for name, shape in shapes.items():
        layout = "one dense layer for each gate, units in columns"
        check_shape(function, "Flax", name, tensors[name], shape, sizes, layout)
        sizes = sizes or dict(zip("DH", tensors[name].shape, strict=True))
    by_gate = {what: {gate: tensors[name] for gate, name in of_what.items()} for what, of_what in names.items()}
    weights = Weights(
        by_gate["kernel"],
        by_gate["recurrent_kernel"],
        by_gate["bias"],
        tensors[_RECURRENT_BIAS] if has_recurrent_bias else None,
    )
    return make_dense_net(kind, weights, reset_gate=has_recurrent_bias, **activations)


def make_dense_net(kind: str, weights: Weights, **options: Any) -> tuple[Any, Any]:
    """A layer of a cell with those of the options that its kind has."""
    if kind != "MGU":
        options.pop("reset_gate", None)
    if kind == "RNN":
        options.pop("gate_activation", None)
    return make_net([[make_part(kind, weights, **options)]])


def write_dense(part: Part) -> dict[str, np.ndarray]:
    """The weights of a cell as dense layers, one for each gate, by `layer/tensor`."""
    weights = part.weights
    names = _names(part.kind, find_layout("to_flax", "Flax", part.kind).gates)
    tensors = {name: weights.kernel[gate] for gate, name in names["kernel"].items()}
    tensors |= {name: weights.recurrent_kernel[gate] for gate, name in names["recurrent_kernel"].items()}
    zeros = np.zeros_like(next(iter(weights.kernel.values()))[0])
    for gate, name in names["bias"].items():
        tensors[name] = zeros if weights.bias is None else weights.bias[gate]
    if getattr(part.cell, "reset_gate", part.kind == "GRU"):
        tensors[_RECURRENT_BIAS] = zeros if weights.recurrent_bias is None else weights.recurrent_bias
    return tensors


def _names(kind: str, gates: str) -> dict[str, dict[str, str]]:
    """What the tensors of each gate are called."""

    def names(source: str, leaf: str) -> dict[str, str]:
        return {gate: f"{source if kind == 'RNN' else source + gate}/{leaf}" for gate in gates}

    return {
        "kernel": names("i", "kernel"),
        "recurrent_kernel": names("h", "kernel"),
        "bias": names(_BIASED[kind], "bias"),
    }
