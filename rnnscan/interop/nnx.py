"""Convert weights from and to the cells of `flax.nnx`."""

import importlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from jaxtyping import Array

from rnnscan._util.messages import listing
from rnnscan.interop.arrays import Tensor, is_traced, zeros_like
from rnnscan.interop.flax import KINDS, find_kind, flatten, make_dense_net, nest, read_dense, write_dense
from rnnscan.interop.gates import find_layout, read_weights
from rnnscan.interop.nets import CellWeights, activation_name, cells_of, only_layer
from rnnscan.interop.tensors import check_names, check_shape


_DEFAULTS = {"LSTM": "LSTMCell", "GRU": "GRUCell", "RNN": "SimpleCell"}

# The cells with one dense layer for the input and one for the hidden state, each for all gates; and their bias.
_FUSED = {"OptimizedLSTMCell": "dense_h/bias", "GRUCell": "dense_i/bias", "SimpleCell": "dense_i/bias"}


def from_nnx(cell: Any) -> tuple[Any, Any]:
    """Make a net from a cell of `flax.nnx`.

    The carry of an LSTM is `(c, h)` in Flax and `(h, c)` in rnnscan. A `GRUCell` of `flax.nnx` has no bias in the
    candidate's recurrent product, so `"recurrent_bias"` is zero.

    Args:
        cell: an `LSTMCell`, `OptimizedLSTMCell`, `GRUCell` or `SimpleCell`. The net takes its activations.

    Returns:
        The net, a `layer`, and its parameters.

    Raises:
        ValueError: if it is a cell of another kind, or a `SimpleCell` with `residual=True`.
        ImportError: if Flax is not installed.
    """
    nnx = _import_nnx()
    name = type(cell).__name__
    find_kind("from_nnx", name, ["LSTMCell", *_FUSED])
    if getattr(cell, "residual", False):
        raise ValueError(
            "from_nnx: a SimpleCell must have residual=False; got residual=True. Use the equivalent non-residual cell, "
            "whose recurrent kernel has the identity added."
        )
    tensors = flatten("from_nnx", nnx.to_pure_dict(nnx.state(cell, nnx.Param)))
    activations = {"activation": activation_name(cell.activation_fn)}
    if hasattr(cell, "gate_fn"):
        activations["gate_activation"] = activation_name(cell.gate_fn)
    if name in _FUSED:
        return _read_fused(name, tensors, activations)
    # "if" is a keyword of Python, so the attribute in flax.nnx has an underscore.
    renamed = {tensor.replace("if_/", "if/"): array for tensor, array in tensors.items()}
    return read_dense("from_nnx", KINDS[name], renamed, **activations)


def to_nnx(net: Any, params: Any, kind: str | None = None) -> dict[str, dict[str, Array]]:
    """Convert the weights of a net to the state of a cell of `flax.nnx`, for `nnx.update(cell, state)`.

    `from_nnx` restores them exactly. Missing biases become zero. Weights do not include activations: give the cell
    those of the net.

    Args:
        net: a layer of `LSTM`, `GRU` or `RNN`.
        params: its parameters.
        kind: the kind of cell, "LSTMCell", "OptimizedLSTMCell", "GRUCell" or "SimpleCell". None: the kind of the net's
            cell, "LSTMCell" for an LSTM.

    Returns:
        A dictionary in the form of `nnx.to_pure_dict(nnx.state(cell, nnx.Param))`.

    Raises:
        TypeError: if the net is of another kind.
        ValueError: if Flax has no such net, such as a GRU whose `"recurrent_bias"` is not zero.

    Example:
        >>> import jax
        >>> import rnnscan as rs
        >>> from rnnscan.interop import to_nnx
        >>> net = rs.layer(rs.cells.LSTM(4))
        >>> state = to_nnx(net, net.init(jax.random.key(0), input_size=3), "OptimizedLSTMCell")
        >>> jax.tree.map(lambda leaf: leaf.shape, state)
        {'dense_h': {'bias': (16,), 'kernel': (4, 16)}, 'dense_i': {'kernel': (3, 16)}}
    """
    (weights,) = only_layer("to_nnx", "Flax", cells_of("to_nnx", "Flax", net, params, merges=()))
    if weights.kind not in _DEFAULTS:
        raise ValueError(f"to_nnx: flax.nnx has cells of the kinds {listing(_DEFAULTS)}; got {weights.cell!r}.")
    kind = _DEFAULTS[weights.kind] if kind is None else kind
    find_kind("to_nnx", kind, [name for name, of_name in KINDS.items() if of_name == weights.kind])
    if kind in _FUSED:
        return nest(_write_fused(kind, weights))
    return nest({tensor.replace("if/", "if_/"): array for tensor, array in write_dense(weights).items()})


def _import_nnx() -> Any:
    try:
        return importlib.import_module("flax.nnx")
    except ModuleNotFoundError as error:
        raise ImportError(
            f"from_nnx: the extra 'flax' must be installed; got no module {error.name!r}. Run "
            'pip install ".[flax]" in the checkout of rnnscan.',
            name=error.name,
        ) from error


def _read_fused(name: str, tensors: Mapping[str, Tensor], activations: dict[str, Any]) -> tuple[Any, Any]:
    kind, bias = KINDS[name], _FUSED[name]
    layout = find_layout("from_nnx", "Flax", kind)
    fused = f"{len(layout.gates)}H"
    shapes = {"dense_h/kernel": ("H", fused), "dense_i/kernel": ("D", fused), bias: (fused,)}
    check_names("from_nnx", f"flax.nnx's {name}", tensors, shapes)
    sizes: dict[str, int] = {}
    for tensor, shape in shapes.items():
        check_shape("from_nnx", "flax.nnx", tensor, tensors[tensor], shape, sizes, layout)
        sizes = sizes or {"H": tensors[tensor].shape[0]}
    by_gate = read_weights(layout, tensors["dense_i/kernel"], tensors["dense_h/kernel"], [tensors[bias]])
    if kind == "GRU":
        by_gate = replace(by_gate, recurrent_bias=zeros_like(tensors[bias][: sizes["H"]]))
    return make_dense_net(kind, by_gate, **activations)


def _write_fused(name: str, weights: CellWeights) -> dict[str, Tensor]:
    layout, by_gate = find_layout("to_nnx", "Flax", weights.kind), weights.by_gate
    recurrent_bias = by_gate.recurrent_bias
    if recurrent_bias is not None and (is_traced(recurrent_bias) or recurrent_bias.any()):
        got = "a traced array" if is_traced(recurrent_bias) else "other values"
        raise ValueError(
            f"to_nnx: `recurrent_bias` must be zero, because flax.nnx's GRUCell has none; got {got}. Use "
            "to_flax, whose GRUCell has one."
        )
    (bias,) = by_gate.biases(layout, absent="zeros")
    return {
        "dense_i/kernel": layout.fuse(by_gate.kernel),
        "dense_h/kernel": layout.fuse(by_gate.recurrent_kernel),
        _FUSED[name]: bias,
    }
