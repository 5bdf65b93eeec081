"""Convert weights from and to the cells of `flax.linen`, which have one dense layer per gate."""

from collections.abc import Iterable, Mapping
from typing import Any

from jaxtyping import Array

from rnnscan._util.messages import listing, nearest
from rnnscan.cells.activations import Activation
from rnnscan.interop.arrays import Tensor, zeros_like
from rnnscan.interop.gates import GateWeights, find_layout
from rnnscan.interop.nets import CellWeights, cells_of, make_cell, make_net, only_layer
from rnnscan.interop.tensors import as_arrays, check_names, check_shape, to_jax


KINDS = {
    "LSTMCell": "LSTM",
    "OptimizedLSTMCell": "LSTM",
    "GRUCell": "GRU",
    "SimpleCell": "RNN",
    "MGUCell": "MGU",
}

# The dense layers that have the biases: those of the input, i, or of the hidden state, h. If a gate multiplies the
# candidate's recurrent product, that layer has a bias too.
_BIASED = {"LSTM": "h", "GRU": "i", "RNN": "i", "MGU": "i"}
_RECURRENT_BIAS = "hn/bias"


def from_flax(
    params: Mapping[str, Any],
    kind: str = "LSTMCell",
    *,
    activation: Activation = "tanh",
    gate_activation: Activation = "sigmoid",
) -> tuple[Any, Any]:
    """Make a net from the parameters of a cell of `flax.linen`.

    The carry of an LSTM is `(c, h)` in Flax and `(h, c)` in rnnscan. For a `SimpleCell(residual=True)`, which adds h to
    the preactivation, add the identity to `"recurrent_kernel"`.

    It also runs inside `jax.jit` and `jax.grad`: a training loop can keep the parameters in Flax's form.

    Args:
        params: `cell.init(...)["params"]`: a dictionary of dense layers.
        kind: "LSTMCell", "OptimizedLSTMCell", "GRUCell", "SimpleCell" or "MGUCell".
        activation: the cell's `activation_fn`.
        gate_activation: the cell's `gate_fn`, if it has one.

    Returns:
        The net, a `layer`, and its parameters.

    Raises:
        ValueError: if a tensor is missing, unknown or of another shape.
        TypeError: if one is not a tensor of a floating dtype.

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
    """Convert the weights of a net to parameters of a cell of `flax.linen`.

    `from_flax` restores them exactly. Missing biases become zero. Parameters do not include activations: give the cell
    those of the net.

    Args:
        net: a layer of `LSTM`, `GRU`, `RNN` or `MGU`.
        params: its parameters.

    Returns:
        The parameters of a `GRUCell`, `SimpleCell` or `MGUCell`, or of either `LSTMCell` or `OptimizedLSTMCell`.

    Raises:
        TypeError: if the net is of another kind.
        ValueError: if Flax has no such net, or the parameters do not fit the net.

    Example:
        >>> import jax
        >>> import rnnscan as rs
        >>> from rnnscan.interop import to_flax
        >>> net = rs.layer(rs.cells.LSTM(4))
        >>> jax.tree.map(lambda leaf: leaf.shape, to_flax(net, net.init(jax.random.key(0), input_size=3))["hi"])
        {'bias': (4,), 'kernel': (4, 4)}
    """
    (weights,) = only_layer("to_flax", "Flax", cells_of("to_flax", "Flax", net, params, merges=()))
    return nest(write_dense(weights))


def find_kind(function: str, kind: str, known: Iterable[str]) -> None:
    """Check that a kind of cell is known.

    Raises:
        ValueError: if it is not.
    """
    if kind not in known:
        raise ValueError(f"{function}: the cell must be one of {listing(known)}; got {kind!r}.{nearest(kind, known)}")


def flatten(function: str, params: Mapping[str, Any]) -> dict[str, Tensor]:
    """Flatten a dictionary of dense layers to tensors by `layer/tensor`."""
    tensors: dict[str, Any] = {}
    for dense, of_dense in params.items():
        if isinstance(of_dense, Mapping):
            tensors |= {f"{dense}/{name}": leaf for name, leaf in of_dense.items()}
        else:
            tensors[dense] = of_dense
    return as_arrays(function, tensors)


def nest(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Array]]:
    """Nest tensors by `layer/tensor` to a dictionary of dense layers."""
    nested: dict[str, dict[str, Array]] = {}
    for name, tensor in tensors.items():
        dense, _, leaf = name.rpartition("/")
        nested.setdefault(dense, {})[leaf] = to_jax(tensor)
    return nested


def read_dense(function: str, kind: str, tensors: Mapping[str, Tensor], **activations: Any) -> tuple[Any, Any]:
    """Make a net from dense layers, one per gate."""
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
        check_shape(function, "Flax", name, tensors[name], shape, sizes, "one dense layer per gate, units in columns")
        sizes = sizes or dict(zip("DH", tensors[name].shape, strict=True))
    blocks = {param: {gate: tensors[name] for gate, name in by_gate.items()} for param, by_gate in names.items()}
    recurrent_bias = tensors[_RECURRENT_BIAS] if has_recurrent_bias else None
    by_gate = GateWeights(blocks["kernel"], blocks["recurrent_kernel"], blocks["bias"], recurrent_bias)
    return make_dense_net(kind, by_gate, reset_gate=has_recurrent_bias, **activations)


def make_dense_net(kind: str, by_gate: GateWeights, **options: Any) -> tuple[Any, Any]:
    """Make a layer, with those of the options that its kind of cell has."""
    if kind != "MGU":
        options.pop("reset_gate", None)
    if kind == "RNN":
        options.pop("gate_activation", None)
    return make_net([[make_cell(kind, by_gate, **options)]])


def write_dense(weights: CellWeights) -> dict[str, Tensor]:
    """Convert the weights of a cell to dense layers, one per gate, by `layer/tensor`."""
    by_gate = weights.by_gate
    names = _names(weights.kind, find_layout("to_flax", "Flax", weights.kind).gates)
    tensors = {name: by_gate.kernel[gate] for gate, name in names["kernel"].items()}
    tensors |= {name: by_gate.recurrent_kernel[gate] for gate, name in names["recurrent_kernel"].items()}
    zeros = zeros_like(next(iter(by_gate.kernel.values()))[0])
    for gate, name in names["bias"].items():
        tensors[name] = zeros if by_gate.bias is None else by_gate.bias[gate]
    if getattr(weights.cell, "reset_gate", weights.kind == "GRU"):
        tensors[_RECURRENT_BIAS] = zeros if by_gate.recurrent_bias is None else by_gate.recurrent_bias
    return tensors


def _names(kind: str, gates: str) -> dict[str, dict[str, str]]:
    """The names of the tensors, by parameter and gate."""

    def names(source: str, leaf: str) -> dict[str, str]:
        return {gate: f"{source if kind == 'RNN' else source + gate}/{leaf}" for gate in gates}

    return {
        "kernel": names("i", "kernel"),
        "recurrent_kernel": names("h", "kernel"),
        "bias": names(_BIASED[kind], "bias"),
    }
