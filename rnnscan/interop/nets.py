"""Build nets from weights by gate, and read the weights by gate of the cells of a net."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rnnscan import cells
from rnnscan._util.messages import listing
from rnnscan.cells.activations import ACTIVATIONS, Activation
from rnnscan.interop.arrays import concatenate, to_host
from rnnscan.interop.gates import LAYOUTS, GateWeights, split_blocks
from rnnscan.interop.tensors import to_jax
from rnnscan.nets import Bidirectional, Chain, Layer, bidirectional, chain, layer
from rnnscan.nets.base import check_parts


CELLS: dict[str, Any] = {
    "LSTM": cells.LSTM,
    "GRU": cells.GRU,
    "RNN": cells.RNN,
    "MGU": cells.MGU,
    "ConvLSTM": cells.ConvLSTM,
    "LayerNormLSTM": cells.LayerNormLSTM,
    "MILSTM": cells.MILSTM,
    "LayerNormMILSTM": cells.LayerNormMILSTM,
}

# The options that change the function a cell computes. The others concern initialization and dtypes.
_OPTIONS = (
    "peepholes",
    "coupled_gates",
    "proj_size",
    "cell_clip",
    "reset_after",
    "reset_gate",
    "activation",
    "gate_activation",
    "normalize",
    "epsilon",
)


class CellWeights(NamedTuple):
    """A cell with its parameters: one direction of one layer."""

    kind: str
    cell: Any
    params: dict[str, Any]

    @property
    def by_gate(self) -> GateWeights:
        """The parameters by gate."""
        layout = LAYOUTS["rnnscan"][self.kind]
        arrays = {name: to_host(leaf) for name, leaf in self.params.items()}
        return GateWeights(
            layout.split(arrays["kernel"]),
            layout.split(arrays["recurrent_kernel"]),
            layout.split(arrays["bias"]) if "bias" in arrays else None,
            arrays.get("recurrent_bias"),
            split_blocks(arrays["peepholes"], layout.peepholes) if "peepholes" in arrays else None,
            arrays.get("projection_kernel"),
        )

    @property
    def sizes(self) -> dict[str, int]:
        """The size D of the input, H of the state and P of the output."""
        return {"D": self.params["kernel"].shape[-2], "H": self.cell.hidden_size, "P": self.cell.output_size}


def make_cell(kind: str, by_gate: GateWeights, **options: Any) -> CellWeights:
    """Make a cell that fits the sizes and the dtype of weights, with its parameters."""
    layout = LAYOUTS["rnnscan"][kind]
    arrays = {
        "kernel": layout.fuse(by_gate.kernel),
        "recurrent_kernel": layout.fuse(by_gate.recurrent_kernel),
        "recurrent_bias": by_gate.recurrent_bias,
        "projection_kernel": by_gate.projection_kernel,
    }
    if by_gate.bias is not None:
        arrays["bias"] = layout.fuse(by_gate.bias)
    if by_gate.peepholes is not None:
        arrays["peepholes"] = concatenate([by_gate.peepholes[gate] for gate in layout.peepholes])
        options["peepholes"] = True
    if by_gate.projection_kernel is not None:
        options["proj_size"] = by_gate.projection_kernel.shape[1]
    params = to_jax({name: array for name, array in arrays.items() if array is not None})
    kernel = params["kernel"]
    cell = CELLS[kind](
        kernel.shape[-1] // len(layout.gates), use_bias=by_gate.bias is not None, param_dtype=kernel.dtype, **options
    )
    return CellWeights(kind, cell, params)


def make_net(layers: list[list[CellWeights]], *, dropout: float = 0.0, merge: Any = "concat") -> tuple[Any, Any]:
    """Make a layer of one cell, or a bidirectional net of two. Several layers become a chain."""
    nets: list[Any] = []
    params: list[Any] = []
    for directions in layers:
        if len(directions) == 2:
            forward, backward = directions
            nets.append(bidirectional(forward.cell, backward.cell, merge=merge))
            params.append({"forward": forward.params, "backward": backward.params})
        else:
            nets.append(layer(directions[0].cell))
            params.append(directions[0].params)
    if len(nets) == 1:
        return nets[0], params[0]
    return chain(*nets, dropout=dropout), {f"net_{number}": of_net for number, of_net in enumerate(params)}


def cells_of(
    function: str, library: str, net: Any, params: Any, *, merges: Sequence[Any] = ("concat",), reverse: bool = False
) -> list[list[CellWeights]]:
    """Read the cells of a net, by layer and direction, and check that a library supports them.

    Args:
        function: the name of the calling function, for messages.
        library: the library that must support the net.
        net: a layer, a bidirectional net, or a chain of these.
        params: its parameters.
        merges: the `merge` options that the library supports.
        reverse: whether the library supports layers that run only in reverse.

    Returns:
        For each layer its cell, or its forward and its backward cell.

    Raises:
        TypeError: if the net is of another kind.
        ValueError: if the library does not support the net, or the parameters do not fit it.
    """
    nets = net.nets if isinstance(net, Chain) else (net,)
    of_nets = [params]
    if isinstance(net, Chain):
        names = tuple(f"net_{number}" for number in range(len(nets)))
        check_parts(function, names, params)
        of_nets = [params[name] for name in names]
    return [
        _cells_of_layer(function, library, of_layer, of_net, merges, reverse)
        for of_layer, of_net in zip(nets, of_nets, strict=True)
    ]


def only_layer(function: str, library: str, layers: list[list[CellWeights]]) -> list[CellWeights]:
    """Return the only layer of a net.

    Raises:
        ValueError: if there are several.
    """
    if len(layers) != 1:
        raise ValueError(
            f"{function}: {library} has one layer at a time; got a chain of {len(layers)}. Convert each layer "
            "separately: net.nets[0] with params['net_0'], and so on."
        )
    return layers[0]


def check_alike(function: str, library: str, layers: list[list[CellWeights]]) -> None:
    """Check that all cells of a net have the same kind, sizes and options, as one module of a library does.

    Raises:
        ValueError: if two differ.
    """
    (first, count), *rest = [(weights, len(directions)) for directions in layers for weights in directions]
    for other, other_count in rest:
        if _form(other) != _form(first) or other_count != count:
            raise ValueError(
                f"{function}: all cells of {library} must have one kind, size and form, and all layers as many "
                f"directions; got {first.cell!r} and {other.cell!r} in {count} and {other_count} directions."
            )


def _form(weights: CellWeights) -> tuple[Any, ...]:
    cell = weights.cell
    return weights.kind, cell.hidden_size, cell.output_size, sorted(weights.params), getattr(cell, "reset_after", None)


def _cells_of_layer(
    function: str, library: str, net: Any, params: Any, merges: Sequence[Any], reverse: bool
) -> list[CellWeights]:
    if isinstance(net, Bidirectional):
        if net.merge not in merges:
            raise ValueError(
                f"{function}: {library} merges two directions by {listing(merges)}; got merge={net.merge!r}."
            )
        check_parts(function, ("forward", "backward"), params)
        return [
            cell_of(function, library, net.forward, params["forward"]),
            cell_of(function, library, net.backward, params["backward"]),
        ]
    if not isinstance(net, Layer):
        raise TypeError(
            f"{function}: the net must be a layer, a bidirectional net, or a chain of these; got "
            f"{type(net).__name__}. Make a net from a cell with layer(cell)."
        )
    if net.reverse and not reverse:
        raise ValueError(f"{function}: {library} has no layer that runs only in reverse; got {net!r}.")
    return [cell_of(function, library, net.cell, params)]


def cell_of(function: str, library: str, cell: Any, params: Any) -> CellWeights:
    """Check that a library supports a cell, and that the parameters fit it.

    Raises:
        ValueError: if either is not so.
    """
    known = {kind: CELLS[kind] for kind in LAYOUTS[library]}
    kind = next((kind for kind, cell_type in known.items() if type(cell) is cell_type), None)
    if kind is None:
        raise ValueError(f"{function}: {library} has cells of the kinds {listing(known)}; got {cell!r}.")
    layout, default = LAYOUTS[library][kind], known[kind](1)
    for option in _OPTIONS:
        value = getattr(cell, option, None)
        if option not in layout.options and activation_name(value) != getattr(default, option, None):
            raise ValueError(f"{function}: {library} has no {kind} with {option}={value!r}; got {cell!r}.")
    check_cell_params(cell, params)
    return CellWeights(kind, cell, params)


def check_cell_params(cell: Any, params: Any) -> None:
    """Let the cell check its parameters, as it does in a step."""
    kernel: Any = params.get("kernel") if isinstance(params, dict) else None
    features = kernel.shape[-2] if getattr(kernel, "ndim", 0) >= 2 else 1
    # Spatial sizes that are large enough for any kernel without padding.
    spatial = tuple(1 + reach for reach in _reaches(cell))
    x = jax.ShapeDtypeStruct((1, *spatial, features), jnp.float32)
    jax.eval_shape(lambda params, x: cell(params, cell.initial_carry(x), x), params, x)


def _reaches(cell: Any) -> tuple[int, ...]:
    sizes = getattr(cell, "kernel_size", ())
    dilation = getattr(cell, "dilation", 1)
    dilations = dilation if isinstance(dilation, tuple) else (dilation,) * len(sizes)
    return tuple(size * gap for size, gap in zip(sizes, dilations, strict=True))


def activation_name(activation: Any) -> Any:
    """Return the name of an activation, or the activation itself if rnnscan has no name for it."""
    return next((name for name, function in ACTIVATIONS.items() if function is activation), activation)


def find_activation(
    function: str, library: str, name: str, known: Mapping[str, Activation], hint: str = ""
) -> Activation:
    """Look up an activation by a library's name.

    Raises:
        ValueError: if the name is unknown.
    """
    if name not in known:
        raise ValueError(f"{function}: an activation must be one of {listing(known)}; got {library}'s {name!r}.{hint}")
    return known[name]
