"""Convert weights from and to the cores of Haiku."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from jaxtyping import Array

from rnnscan._util.messages import describe, listing, nearest
from rnnscan.interop.arrays import Tensor, concatenate, split
from rnnscan.interop.flax import find_kind, nest
from rnnscan.interop.gates import GateWeights, Layout, find_layout, read_weights
from rnnscan.interop.nets import CellWeights, activation_name, cells_of, make_cell, make_net, only_layer
from rnnscan.interop.tensors import as_arrays, check_names, check_shape


_KINDS = {"LSTM": "LSTM", "GRU": "GRU", "VanillaRNN": "RNN"}

# The name that Haiku gives the first core of a kind.
_NAMES = {"LSTM": "lstm", "GRU": "gru", "RNN": "vanilla_rnn"}

# Haiku's LSTM computes sigmoid(f + 1), as Sonnet's.
_FORGET_BIAS = 1

_SHAPES: dict[str, dict[str, tuple[str, ...]]] = {
    "LSTM": {"linear/b": ("4H",), "linear/w": ("D+H", "4H")},
    "GRU": {"w_h": ("H", "3H"), "w_i": ("D", "3H"), "b": ("3H",)},
    "RNN": {
        "linear_1/w": ("H", "H"),
        "linear_1/b": ("H",),
        "linear/w": ("D", "H"),
        "linear/b": ("H",),
    },
}
_SECOND_BIAS = "linear_1/b"


def from_haiku(params: Mapping[str, Any], kind: str = "LSTM", *, name: str | None = None) -> tuple[Any, Any]:
    """Make a net from the parameters of a core of Haiku.

    Haiku's LSTM adds 1 to the forget gate at run time. rnnscan adds nothing, so its bias has the 1. The update gate of
    Haiku's GRU weighs the candidate and not the state, so its weights change sign. The states are Haiku's in an
    ordinary tuple: `tuple(lstm_state)`, `(gru_state,)`. It also runs inside `jax.jit` and `jax.grad`.

    Args:
        params: the parameters by module, such as `{"lstm/linear": {"w": ..., "b": ...}}`.
        kind: the core, "LSTM", "GRU" or "VanillaRNN".
        name: the core's name in `params`, such as "lstm" or "agent/~/lstm_1". None: `params` has no other module.

    Returns:
        The net, a `layer`, and its parameters. A GRU has `reset_after=False`, an RNN `activation="relu"`.

    Raises:
        ValueError: if a tensor is missing, unknown or of another shape, or there are modules of several cores.
        TypeError: if one is not a tensor of a floating dtype.

    Example:
        >>> import jax.numpy as jnp
        >>> from rnnscan.interop import from_haiku
        >>> params = {"lstm/linear": {"w": jnp.ones((3 + 4, 16)), "b": jnp.zeros(16)}, "mlp": {"w": jnp.ones((4, 2))}}
        >>> net, params = from_haiku(params, "LSTM", name="lstm")
        >>> net
        Layer(cell=LSTM(hidden_size=4), reverse=False)
        >>> params["bias"].tolist()  # order i f g o
        [0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    """
    find_kind("from_haiku", kind, _KINDS)
    core, kind = kind, _KINDS[kind]
    layout = find_layout("from_haiku", "Haiku", kind)
    tensors, shapes = _tensors_of_core(params, kind, name), _SHAPES[kind]
    expected, optional = [tensor for tensor in shapes if tensor != _SECOND_BIAS], [_SECOND_BIAS] * (kind == "RNN")
    check_names("from_haiku", f"Haiku's {core}", tensors, expected, optional)
    first = expected[0]  # It determines H, and an error names it if it is wrong.
    check_shape("from_haiku", "Haiku", first, tensors[first], shapes[first], {}, layout)
    units = tensors[first].shape[0] // (4 if kind == "LSTM" else 1)
    for tensor, shape in shapes.items():
        if tensor in tensors:
            check_shape("from_haiku", "Haiku", tensor, tensors[tensor], shape, {"H": units}, layout)
    if kind == "LSTM":
        return make_net([[make_cell(kind, _read_lstm(layout, tensors, units))]])
    if kind == "GRU":
        by_gate = read_weights(layout, tensors["w_i"], tensors["w_h"], [tensors["b"]])
        return make_net([[make_cell(kind, _negate_update(by_gate), reset_after=False)]])
    biases = [tensors[tensor] for tensor in ("linear/b", _SECOND_BIAS) if tensor in tensors]
    by_gate = read_weights(layout, tensors["linear/w"], tensors["linear_1/w"], biases)
    return make_net([[make_cell(kind, by_gate, activation="relu")]])


def to_haiku(net: Any, params: Any, *, name: str | None = None) -> dict[str, dict[str, Array]]:
    """Convert the weights of a net to parameters of a core of Haiku.

    `from_haiku` restores them exactly, except for the rounding of the forget gate's bias, from which Haiku's 1 is
    subtracted. Missing biases become zero.

    Args:
        net: a layer of `LSTM`, of `GRU` with `reset_after=False`, or of `RNN` with `activation="relu"`.
        params: its parameters.
        name: the core's name. None: Haiku's own, "lstm", "gru" or "vanilla_rnn".

    Returns:
        The parameters by module.

    Raises:
        TypeError: if the net is of another kind.
        ValueError: if Haiku has no such core, or the parameters do not fit the net.

    Example:
        >>> import jax
        >>> import rnnscan as rs
        >>> from rnnscan.interop import to_haiku
        >>> net = rs.layer(rs.cells.GRU(4, reset_after=False))
        >>> params = net.init(jax.random.key(0), input_size=3)
        >>> jax.tree.map(lambda leaf: leaf.shape, to_haiku(net, params, name="agent/gru"))
        {'agent/gru': {'b': (12,), 'w_h': (4, 12), 'w_i': (3, 12)}}
    """
    (weights,) = only_layer("to_haiku", "Haiku", cells_of("to_haiku", "Haiku", net, params, merges=()))
    _check_form(weights)
    layout, by_gate = find_layout("to_haiku", "Haiku", weights.kind), weights.by_gate
    by_gate = _negate_update(by_gate) if weights.kind == "GRU" else by_gate
    kernel, recurrent_kernel = layout.fuse(by_gate.kernel), layout.fuse(by_gate.recurrent_kernel)
    bias, *second_bias = by_gate.biases(layout, absent="zeros")
    if weights.kind == "LSTM":
        tensors = {"linear/w": concatenate([kernel, recurrent_kernel]), "linear/b": _add_forget(layout, bias, -1)}
    elif weights.kind == "GRU":
        tensors = {"w_i": kernel, "w_h": recurrent_kernel, "b": bias}
    else:
        tensors = {"linear/w": kernel, "linear/b": bias}
        tensors |= {"linear_1/w": recurrent_kernel, _SECOND_BIAS: second_bias[0]}
    core = _NAMES[weights.kind] if name is None else name
    return nest({f"{core}/{tensor}": array for tensor, array in tensors.items()})


def _tensors_of_core(params: Mapping[str, Any], kind: str, name: str | None) -> dict[str, Tensor]:
    """The tensors of one core, by their names below the core's."""
    if not isinstance(params, Mapping):
        raise TypeError(f"from_haiku: the parameters must be a dictionary by module; got {describe(params)}.")
    # A GRU has its tensors itself, the other cores have modules.
    cores = {module: module if kind == "GRU" else module.rpartition("/")[0] for module in params}
    known = sorted(set(cores.values()))
    if name is None and len(known) > 1:
        raise ValueError(
            f"from_haiku: the modules must be those of one core; got {listing(sorted(params))}. Pass `name`, the "
            f"core's name, such as name={_NAMES[kind]!r}."
        )
    if name is not None and name not in known:
        raise ValueError(
            f"from_haiku: `name` must be the name of Haiku's {kind} in the parameters; got {name!r}, and the modules "
            f"{listing(sorted(params))}.{nearest(name, known)}"
        )
    tensors: dict[str, Tensor] = {}
    for module, core in cores.items():
        if name in (None, core):
            below = "" if kind == "GRU" else module.rpartition("/")[2] + "/"
            of_module = as_arrays("from_haiku", params[module])
            tensors |= {f"{below}{tensor}": array for tensor, array in of_module.items()}
    return tensors


def _read_lstm(layout: Layout, tensors: Mapping[str, Tensor], units: int) -> GateWeights:
    """Split the one kernel, whose rows are those of x and then those of h."""
    fused = tensors["linear/w"]
    if len(fused) <= units:
        raise ValueError(
            f"from_haiku: 'linear/w' must have more rows than H={units}, those of the input and then those of the "
            f"state; got {len(fused)}."
        )
    kernel, recurrent_kernel = split(fused, [len(fused) - units])
    return read_weights(layout, kernel, recurrent_kernel, [_add_forget(layout, tensors["linear/b"], 1)])


def _add_forget(layout: Layout, bias: Tensor, sign: int) -> Tensor:
    """Add Haiku's forget bias to a fused bias, or subtract it."""
    blocks = layout.split(bias)
    return layout.fuse(blocks | {"f": blocks["f"] + sign * _FORGET_BIAS})


def _negate_update(by_gate: GateWeights) -> GateWeights:
    """Exchange z and 1 - z: sigmoid(-u) = 1 - sigmoid(u)."""

    def negate(blocks: dict[str, Tensor]) -> dict[str, Tensor]:
        return blocks | {"z": -blocks["z"]}

    bias = None if by_gate.bias is None else negate(by_gate.bias)
    return replace(by_gate, kernel=negate(by_gate.kernel), recurrent_kernel=negate(by_gate.recurrent_kernel), bias=bias)


def _check_form(weights: CellWeights) -> None:
    """Check the options that all of Haiku's cores of a kind have."""
    if weights.kind == "GRU" and weights.cell.reset_after:
        raise ValueError(
            f"to_haiku: Haiku's GRU resets the state before the product; got {weights.cell!r}. Make it with "
            "reset_after=False."
        )
    if weights.kind == "RNN" and activation_name(weights.cell.activation) != "relu":
        raise ValueError(
            f"to_haiku: Haiku's VanillaRNN has the activation relu; got {weights.cell!r}. Make it with "
            'activation="relu".'
        )
