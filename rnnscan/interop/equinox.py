"""Convert weights from and to the cells of `equinox.nn`. Their arrays are attributes, so Equinox is not imported."""

from typing import Any

from jaxtyping import Array

from rnnscan.interop.flax import find_kind
from rnnscan.interop.gates import GateWeights, find_layout
from rnnscan.interop.nets import cells_of, make_cell, make_net, only_layer
from rnnscan.interop.tensors import as_arrays, check_names, check_shape, to_jax


_KINDS = {"LSTMCell": "LSTM", "GRUCell": "GRU"}


def from_equinox(cell: Any) -> tuple[Any, Any]:
    """Make a net from a cell of `equinox.nn`.

    The net takes a batch, `(T, N, D)`, so it needs no `jax.vmap`. A GRU's state is `h` in Equinox and `(h,)` in
    rnnscan. It also runs inside `eqx.filter_jit` and `eqx.filter_grad`.

    Args:
        cell: an `LSTMCell` or `GRUCell`, with or without biases.

    Returns:
        The net, a `layer`, and its parameters.

    Raises:
        ValueError: if it is of another kind, or an array has another shape.
        TypeError: if an array is not of a floating dtype.

    Example:
        >>> from types import SimpleNamespace
        >>> import jax.numpy as jnp
        >>> from rnnscan.interop import from_equinox
        >>> class LSTMCell(SimpleNamespace):  # instead of eqx.nn.LSTMCell(3, 4, key=key)
        ...     pass
        >>> cell = LSTMCell(weight_ih=jnp.ones((16, 3)), weight_hh=jnp.ones((16, 4)), bias=jnp.ones(16))
        >>> net, params = from_equinox(cell)
        >>> net, params["kernel"].shape
        (Layer(cell=LSTM(hidden_size=4), reverse=False), (3, 16))
    """
    name = type(cell).__name__
    find_kind("from_equinox", name, _KINDS)
    kind = _KINDS[name]
    layout = find_layout("from_equinox", "Equinox", kind)
    has_bias = getattr(cell, "bias", None) is not None
    shapes = _shapes(kind, len(layout.gates), has_bias)
    attributes = {tensor: getattr(cell, tensor, None) for tensor in shapes}
    tensors = as_arrays("from_equinox", {tensor: leaf for tensor, leaf in attributes.items() if leaf is not None})
    check_names("from_equinox", f"Equinox's {name}", tensors, shapes)
    check_shape("from_equinox", "Equinox", "weight_hh", tensors["weight_hh"], shapes["weight_hh"], {}, layout)
    sizes = {"H": tensors["weight_hh"].shape[1]}
    for tensor, shape in shapes.items():
        check_shape("from_equinox", "Equinox", tensor, tensors[tensor], shape, sizes, layout)
    by_gate = GateWeights(
        layout.split(tensors["weight_ih"]),
        layout.split(tensors["weight_hh"]),
        layout.split(tensors["bias"]) if has_bias else None,
        tensors.get("bias_n"),
    )
    return make_net([[make_cell(kind, by_gate)]])


def to_equinox(net: Any, params: Any) -> dict[str, Array]:
    """Convert the weights of a net to the arrays of a cell of `equinox.nn`.

    `from_equinox` restores them exactly. Put them into a cell of the same sizes and `use_bias` with
    `eqx.tree_at(lambda cell: [getattr(cell, name) for name in arrays], cell, list(arrays.values()))`.

    Args:
        net: a layer of `LSTM` or `GRU`.
        params: its parameters.

    Returns:
        The arrays by attribute: `weight_ih`, `weight_hh`, with biases `bias`, and `bias_n` of a GRU.

    Raises:
        TypeError: if the net is of another kind.
        ValueError: if Equinox has no such cell, or the parameters do not fit the net.

    Example:
        >>> import jax
        >>> import rnnscan as rs
        >>> from rnnscan.interop import to_equinox
        >>> net = rs.layer(rs.cells.GRU(4))
        >>> {name: array.shape for name, array in to_equinox(net, net.init(jax.random.key(0), input_size=3)).items()}
        {'weight_ih': (12, 3), 'weight_hh': (12, 4), 'bias': (12,), 'bias_n': (4,)}
    """
    (weights,) = only_layer("to_equinox", "Equinox", cells_of("to_equinox", "Equinox", net, params, merges=()))
    layout, by_gate = find_layout("to_equinox", "Equinox", weights.kind), weights.by_gate
    tensors = {"weight_ih": layout.fuse(by_gate.kernel), "weight_hh": layout.fuse(by_gate.recurrent_kernel)}
    if by_gate.bias is not None:
        tensors["bias"] = layout.fuse(by_gate.bias)
    if by_gate.recurrent_bias is not None:
        tensors["bias_n"] = by_gate.recurrent_bias
    return {name: to_jax(tensor) for name, tensor in tensors.items()}


def _shapes(kind: str, blocks: int, has_bias: bool) -> dict[str, tuple[str, ...]]:
    """The arrays of a cell, with Equinox's documented shapes."""
    fused = f"{blocks}H"
    shapes: dict[str, tuple[str, ...]] = {"weight_ih": (fused, "D"), "weight_hh": (fused, "H")}
    if has_bias:
        shapes["bias"] = (fused,)
    if has_bias and kind == "GRU":
        shapes["bias_n"] = ("H",)
    return shapes
