"""Nets from weights by gate, and the cells of a net with their weights by gate."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rnnscan import cells
from rnnscan._messages import listing
from rnnscan.cells.activations import ACTIVATIONS, Activation
from rnnscan.interop.gates import LAYOUTS, Weights, split_blocks
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

# What decides which function of its weights a cell is; everything else is about making parameters, or about dtypes.
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


class Part(NamedTuple):
    """One cell of a net, with its parameters: one direction of one layer."""

    kind: str
    cell: Any
    params: dict[str, Any]

    @property
    def weights(self) -> Weights:
        """The parameters by gate."""
        layout = LAYOUTS["rnnscan"][self.kind]
        arrays = {name: np.asarray(leaf) for name, leaf in self.params.items()}
        return Weights(
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
        return {
            "D": self.params["kernel"].shape[-2],
            "H": self.cell.hidden_size,
            "P": self.cell.output_size,
        }


def make_part(kind: str, weights: Weights, **options: Any) -> Part:
    """A cell of the weights' sizes and dtype, and its parameters."""
    layout = LAYOUTS["rnnscan"][kind]
    arrays = {
        "kernel": layout.fuse(weights.kernel),
        "recurrent_kernel": layout.fuse(weights.recurrent_kernel),
        "recurrent_bias": weights.recurrent_bias,
        "projection_kernel": weights.projection_kernel,
    }
    if weights.bias is not None:
        arrays["bias"] = layout.fuse(weights.bias)
    if weights.peepholes is not None:
        arrays["peepholes"] = np.concatenate([weights.peepholes[gate] for gate in layout.peepholes])
        options["peepholes"] = True
    if weights.projection_kernel is not None:
        options["proj_size"] = weights.projection_kernel.shape[1]
    params = to_jax({name: array for name, array in arrays.items() if array is not None})
    kernel = params["kernel"]
    cell = CELLS[kind](
        kernel.shape[-1] // len(layout.gates), use_bias=weights.bias is not None, param_dtype=kernel.dtype, **options
    )
    return Part(kind, cell, params)


def make_net(layers: Sequence[Sequence[Part]], *, dropout: float = 0.0, merge: Any = "concat") -> tuple[Any, Any]:
    """A net of layers, each of one cell or of a forward and a backward one; a chain where there are several."""
    nets: list[Any] = []
    params: list[Any] = []
    for parts in layers:
        if len(parts) == 2:
            nets.append(bidirectional(parts[0].cell, parts[1].cell, merge=merge))
            params.append({"forward": parts[0].params, "backward": parts[1].params})
        else:
            nets.append(layer(parts[0].cell))
            params.append(parts[0].params)
    if len(nets) == 1:
        return nets[0], params[0]
    return chain(*nets, dropout=dropout), {f"net_{number}": of_net for number, of_net in enumerate(params)}


def parts_of(
    function: str, library: str, net: Any, params: Any, *, merges: Sequence[Any] = ("concat",), reverse: bool = False
) -> list[list[Part]]:
    """The cells of a net that a library has as well, by layer and direction.

    Args:
        function: that speaks.
        library: that must have such cells.
        net: a layer, a bidirectional net, or a chain of such.
        params: its parameters.
        merges: the ways in which the library merges two directions.
        reverse: whether the library has layers that run in reverse only.

    Returns:
        For each layer its cell, or its forward and its backward cell.

    Raises:
        TypeError: if the net is of another form.
        ValueError: if the library has no such net, or the parameters are not those of the net.
    """
    nets = net.nets if isinstance(net, Chain) else (net,)
    of_nets = [params]
    if isinstance(net, Chain):
        names = tuple(f"net_{number}" for number in range(len(nets)))
        check_parts(function, names, params, None)
        of_nets = [params[name] for name in names]
    return [
        _parts_of_layer(function, library, of_layer, of_net, merges, reverse)
        for of_layer, of_net in zip(nets, of_nets, strict=True)
    ]


def one_layer(function: str, library: str, layers: list[list[Part]]) -> list[Part]:
    """The only layer of a net.

    Raises:
        ValueError: if there are several.
    """
    if len(layers) != 1:
        raise ValueError(
            f"{function}: {library} has one layer at a time; got a chain of {len(layers)}. Convert each by itself: "
            "net.nets[0] with params['net_0'], and so on."
        )
    return layers[0]


def check_alike(function: str, library: str, layers: list[list[Part]]) -> None:
    """Refuse layers that differ in what a library has once for all of them.

    Raises:
        ValueError: naming two that differ.
    """
    (first, directions), *others = [(part, len(parts)) for parts in layers for part in parts]
    for part, of_part in others:
        if _form(part) != _form(first) or of_part != directions:
            raise ValueError(
                f"{function}: all cells of {library} must be of one kind, size and form, and all layers of as many "
                f"directions; got {first.cell!r} and {part.cell!r} in {directions} and {of_part} directions."
            )


def _form(part: Part) -> tuple[Any, ...]:
    cell = part.cell
    return part.kind, cell.hidden_size, cell.output_size, sorted(part.params), getattr(cell, "reset_after", None)


def _parts_of_layer(
    function: str, library: str, net: Any, params: Any, merges: Sequence[Any], reverse: bool
) -> list[Part]:
    if isinstance(net, Bidirectional):
        if net.merge not in merges:
            raise ValueError(
                f"{function}: {library} merges two directions by {listing(merges)}; got merge={net.merge!r}."
            )
        check_parts(function, ("forward", "backward"), params, None)
        return [
            cell_part(function, library, net.forward, params["forward"]),
            cell_part(function, library, net.backward, params["backward"]),
        ]
    if not isinstance(net, Layer):
        raise TypeError(
            f"{function}: the net must be a layer, a bidirectional net, or a chain of such; got {type(net).__name__}. "
            "Make a net of a cell with layer(cell)."
        )
    if net.reverse and not reverse:
        raise ValueError(f"{function}: {library} has no layer that runs in reverse only; got {net!r}.")
    return [cell_part(function, library, net.cell, params)]


def cell_part(function: str, library: str, cell: Any, params: Any) -> Part:
    """A cell that a library has as well.

    Raises:
        ValueError: if the library has no such cell, or the parameters are not those of the cell.
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
    return Part(kind, cell, params)


def check_cell_params(cell: Any, params: Any) -> None:
    """Have the cell itself refuse parameters that are not its own, as it does in a step."""
    kernel: Any = params.get("kernel") if isinstance(params, dict) else None
    features = kernel.shape[-2] if getattr(kernel, "ndim", 0) >= 2 else 1
    # Any spatial sizes, large enough for a kernel without padding.
    spatial = tuple(1 + reach for reach in _reaches(cell))
    x = jax.ShapeDtypeStruct((1, *spatial, features), jnp.float32)
    jax.eval_shape(lambda params, x: cell(params, cell.initial_carry(x), x), params, x)


def _reaches(cell: Any) -> tuple[int, ...]:
    sizes = getattr(cell, "kernel_size", ())
    dilation = getattr(cell, "dilation", 1)
    dilations = dilation if isinstance(dilation, tuple) else (dilation,) * len(sizes)
    return tuple(size * gap for size, gap in zip(sizes, dilations, strict=True))


def activation_name(activation: Any) -> Any:
    """The name of an activation that rnnscan has one for; anything else as it is."""
    return next((name for name, function in ACTIVATIONS.items() if function is activation), activation)


def find_activation(
    function: str, library: str, name: str, known: Mapping[str, Activation], hint: str = ""
) -> Activation:
    """An activation of a library, by the library's name for it.

    Raises:
        ValueError: if it is not known.
    """
    if name not in known:
        raise ValueError(f"{function}: {library}'s activations here are {listing(known)}; got {name!r}.{hint}")
    return known[name]
