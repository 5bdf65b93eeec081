"""Convert weights from and to Keras' recurrent layers, of any backend. Keras is not imported."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rnnscan._util.messages import listing, nearest
from rnnscan.cells.activations import Activation
from rnnscan.interop.arrays import Tensor, stack
from rnnscan.interop.gates import Layout, find_layout, read_weights
from rnnscan.interop.nets import CellWeights, cells_of, find_activation, make_cell, make_net, only_layer
from rnnscan.interop.tensors import as_array, check_concrete, check_shape
from rnnscan.nets import layer as make_layer


_KINDS = {
    "SimpleRNN": "RNN",
    "LSTM": "LSTM",
    "GRU": "GRU",
    "ConvLSTM1D": "ConvLSTM",
    "ConvLSTM2D": "ConvLSTM",
    "ConvLSTM3D": "ConvLSTM",
}
_MERGES = {"concat": "concat", "sum": "sum", "ave": "mean", "mul": "product"}

# Keras' activations. Functions of JAX are listed where rnnscan's function of that name differs.
_ACTIVATIONS: dict[str, Activation] = {
    "elu": "elu",
    "exponential": jnp.exp,
    "gelu": partial(jax.nn.gelu, approximate=False),
    "hard_sigmoid": jax.nn.hard_sigmoid,
    "hard_tanh": "hard_tanh",
    "leaky_relu": partial(jax.nn.leaky_relu, negative_slope=0.2),
    "linear": "identity",
    "mish": jax.nn.mish,
    "relu": "relu",
    "selu": jax.nn.selu,
    "sigmoid": "sigmoid",
    "silu": "silu",
    "softplus": "softplus",
    "softsign": "softsign",
    "tanh": "tanh",
}


def from_keras(layer: Any) -> tuple[Any, Any]:
    """Make a net from a Keras layer: `SimpleRNN`, `LSTM`, `GRU`, `ConvLSTM1D` to `3D`, or `Bidirectional` of these.

    The net is time-major, `(T, N, D)`, and always returns the outputs of all steps. Dropout, masks and `stateful` are
    not converted. The two biases of a GRU are added, except for the candidate, whose second bias becomes
    `"recurrent_bias"`.

    Args:
        layer: the layer, built.

    Returns:
        The net, a `layer` or a `bidirectional` one, and its parameters.

    Raises:
        ValueError: if the layer is of another kind or not built, or has an unsupported option: `go_backwards`,
            `merge_mode=None` or `data_format="channels_first"`.
    """
    if _class_of(layer) == "Bidirectional":
        if layer.merge_mode not in _MERGES:
            raise ValueError(
                f"from_keras: `merge_mode` must be one of {listing(_MERGES)}; got {layer.merge_mode!r}. Convert "
                "layer.forward_layer and layer.backward_layer separately."
            )
        if layer.forward_layer.go_backwards:
            raise ValueError("from_keras: the forward layer must have go_backwards=False; got True.")
        directions = [_read_layer(layer.forward_layer), _read_layer(layer.backward_layer)]
        return make_net([directions], merge=_MERGES[layer.merge_mode])
    weights = _read_layer(layer)
    if layer.go_backwards:
        raise ValueError(
            "from_keras: `go_backwards` must be False, because Keras then returns the outputs in reverse order; got "
            "True. For a reverse net with outputs in input order, use from_keras_weights(layer.get_weights(), ..., "
            "reverse=True)."
        )
    return make_net([[weights]])


def from_keras_weights(
    weights: Sequence[Any], kind: str = "LSTM", *, merge: str | None = None, reverse: bool = False, **options: Any
) -> tuple[Any, Any]:
    """Make a net from the weights that `get_weights()` of a Keras layer returns.

    Args:
        weights: kernel, recurrent kernel, and the bias if there is one. A `Bidirectional` has those of the forward
            layer, then those of the backward layer.
        kind: the layer's class, "SimpleRNN", "LSTM", "GRU" or "ConvLSTM1D" to "ConvLSTM3D".
        merge: the `merge_mode` of a `Bidirectional`.
        reverse: whether the net runs in reverse, as with `go_backwards`. The net keeps outputs in input order; Keras
            reverses them.
        options: options of rnnscan's cell: `activation`, `gate_activation`, `reset_after` for a GRU without biases, and
            `padding`, `strides` and `dilation` for a ConvLSTM.

    Returns:
        The net and its parameters.

    Raises:
        ValueError: if the number of tensors or the shape of one is wrong.
        TypeError: if one is not a tensor of a floating dtype.

    Example:
        >>> import numpy as np
        >>> from rnnscan.interop import from_keras_weights
        >>> weights = [np.ones(shape, np.float32) for shape in ((3, 12), (4, 12), (2, 12))]
        >>> net, params = from_keras_weights(weights, kind="GRU")
        >>> net, params["recurrent_bias"].shape
        (Layer(cell=GRU(hidden_size=4), reverse=False), (4,))
    """
    if kind not in _KINDS:
        raise ValueError(
            f"from_keras_weights: `kind` must be one of {listing(_KINDS)}; got {kind!r}.{nearest(kind, _KINDS)}"
        )
    read = partial(_read_weights, "from_keras_weights", kind)
    if merge is None:
        converted = read(weights, options)
        return make_layer(converted.cell, reverse=reverse), converted.params
    if merge not in _MERGES:
        raise ValueError(f"from_keras_weights: `merge` must be one of {listing(_MERGES)}; got {merge!r}.")
    if len(weights) % 2:
        raise ValueError(f"from_keras_weights: two layers must have equally many weights; got {len(weights)} in total.")
    half = len(weights) // 2
    return make_net([[read(weights[:half], options), read(weights[half:], options)]], merge=_MERGES[merge])


def to_keras(net: Any, params: Any) -> list[np.ndarray]:
    """Convert the weights of a net to the list that `set_weights` of a Keras layer takes.

    For a GRU with `reset_after`, the first bias is rnnscan's and the second is zero, except for the candidate.
    `from_keras` restores rnnscan's parameters exactly. Weights do not include activations: give the layer those of the
    net.

    Args:
        net: a layer of `RNN`, `LSTM`, `GRU` or `ConvLSTM`, or a bidirectional net.
        params: its parameters.

    Returns:
        Numpy arrays: kernel, recurrent kernel, and the bias if there is one. A bidirectional net has those of the
        forward layer, then those of the backward layer.

    Raises:
        TypeError: if the net is of another kind, or the parameters are traced.
        ValueError: if Keras has no such net, or the parameters do not fit the net.

    Example:
        >>> import jax
        >>> import rnnscan as rs
        >>> from rnnscan.interop import to_keras
        >>> net = rs.layer(rs.cells.GRU(4))
        >>> [array.shape for array in to_keras(net, net.init(jax.random.key(0), input_size=3))]
        [(3, 12), (4, 12), (2, 12)]
    """
    layers = cells_of("to_keras", "Keras", net, params, merges=tuple(_MERGES.values()), reverse=True)
    arrays = [array for weights in only_layer("to_keras", "Keras", layers) for array in _write_weights(weights)]
    return check_concrete("to_keras", arrays)


def _class_of(layer: Any) -> str | None:
    """The known class of a layer, or of a base class of it."""
    names = (parent.__name__ for parent in type(layer).__mro__)
    return next((name for name in names if name in _KINDS or name == "Bidirectional"), None)


def _read_layer(layer: Any) -> CellWeights:
    kind = _class_of(layer)
    if kind not in _KINDS:
        raise ValueError(
            f"from_keras: the layer must be one of {listing([*_KINDS, 'Bidirectional'])}; got {type(layer).__name__}."
        )
    if not layer.built:
        raise ValueError(f"from_keras: the layer must be built; got {layer.name!r}. Call layer.build((N, T, D)).")
    options = {"activation": _read_activation(layer.activation)}
    if hasattr(layer, "recurrent_activation"):
        options["gate_activation"] = _read_activation(layer.recurrent_activation)
    if kind == "GRU":
        options["reset_after"] = layer.reset_after
    if _KINDS[kind] == "ConvLSTM":
        if layer.data_format != "channels_last":
            raise ValueError(f"from_keras: `data_format` must be 'channels_last'; got {layer.data_format!r}.")
        options |= {"padding": layer.padding, "strides": layer.strides, "dilation": layer.dilation_rate}
    return _read_weights("from_keras", kind, [variable.value for variable in layer.weights], options)


def _read_activation(activation: Any) -> Any:
    """Look up Keras' own functions by name. Other functions are used unchanged."""
    if getattr(activation, "__module__", "").partition(".")[0] != "keras":
        return activation
    hint = " Convert only the weights, with a function of JAX: from_keras_weights(..., activation=..., ...)."
    return find_activation(
        "from_keras", "Keras", getattr(activation, "__name__", type(activation).__name__), _ACTIVATIONS, hint
    )


def _read_weights(function: str, name: str, weights: Sequence[Any], options: dict[str, Any]) -> CellWeights:
    kind = _KINDS[name]
    layout = find_layout(function, "Keras", kind)
    if len(weights) not in (2, 3):
        raise ValueError(
            f"{function}: the weights of a {name} must be 'kernel', 'recurrent_kernel' and, with a bias, 'bias'; got "
            f"{len(weights)} tensors."
        )
    arrays = {
        tensor: as_array(function, repr(tensor), array)
        for tensor, array in zip(("kernel", "recurrent_kernel", "bias"), weights, strict=False)
    }
    biases = []
    resets_product = False
    if "bias" in arrays:
        biases = list(arrays["bias"]) if arrays["bias"].ndim == 2 else [arrays["bias"]]
    if kind == "GRU":
        resets_product = arrays["bias"].ndim == 2 if "bias" in arrays else options.get("reset_after", True)
        options = options | {"reset_after": resets_product}
    spatial = int(name[-2]) if kind == "ConvLSTM" else 0
    _check_shapes(function, layout, arrays, spatial, two_biases=kind == "GRU" and resets_product)
    if spatial:
        options = options | {"kernel_size": arrays["kernel"].shape[:-2]}
    read = read_weights(layout, arrays["kernel"], arrays["recurrent_kernel"], biases, resets_product=resets_product)
    return make_cell(kind, read, **options)


def _check_shapes(function: str, layout: Layout, arrays: dict[str, Tensor], spatial: int, *, two_biases: bool) -> None:
    fused, window = f"{len(layout.gates)}H", tuple("XYZ"[:spatial])
    shapes = {
        "recurrent_kernel": (*window, "H", fused),
        "kernel": (*window, "D", fused),
        "bias": ("2", fused) if two_biases else (fused,),
    }
    check_shape(
        function, "Keras", "recurrent_kernel", arrays["recurrent_kernel"], shapes["recurrent_kernel"], {}, layout
    )
    *sizes, units, _ = arrays["recurrent_kernel"].shape
    known = dict(zip("XYZ", sizes, strict=False)) | {"H": units}
    # The tensor that determines sizes comes first, so that an error names it if it is wrong.
    for name, shape in shapes.items():
        if name in arrays:
            check_shape(function, "Keras", name, arrays[name], shape, known, layout)


def _write_weights(weights: CellWeights) -> list[Tensor]:
    layout, by_gate = find_layout("to_keras", "Keras", weights.kind), weights.by_gate
    biases = by_gate.biases(layout)
    if weights.kind == "GRU" and biases:
        biases = [stack(biases)] if weights.cell.reset_after else biases[:1]
    return [layout.fuse(by_gate.kernel), layout.fuse(by_gate.recurrent_kernel), *biases]
