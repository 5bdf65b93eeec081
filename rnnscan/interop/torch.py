"""Weights from and to `torch.nn.LSTM`, `GRU` and `RNN`."""

import re
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from rnnscan._messages import listing
from rnnscan.interop.gates import Layout, find_layout, read_weights
from rnnscan.interop.nets import Part, activation_name, check_alike, make_net, make_part, parts_of
from rnnscan.interop.tensors import as_array, as_arrays, check_names, check_shape
from rnnscan.nets import Bidirectional, Chain


_INPUT_KERNEL = re.compile(r"weight_ih_l(\d+)(_reverse)?")
_NONLINEARITIES = ("tanh", "relu")


def from_torch(
    state_dict: Mapping[str, Any], kind: str = "LSTM", *, nonlinearity: str = "tanh", dropout: float = 0.0
) -> tuple[Any, Any]:
    """Make a net of the weights of `torch.nn.LSTM`, `torch.nn.GRU` or `torch.nn.RNN`.

    Sizes, layers, directions, biases and projection are those of the tensors. Torch's two biases become their sum,
    apart from the candidate's of a GRU, whose second one stays `"recurrent_bias"`. The net is time-major, `(T, N, D)`,
    whatever `batch_first` was; `carry_from_torch` converts states.

    Args:
        state_dict: `module.state_dict()`: tensors of torch, numpy or JAX by torch's names. Float64 stays so where
            `jax_enable_x64` is on.
        kind: "LSTM", "GRU" or "RNN".
        nonlinearity: of an RNN, "tanh" or "relu", which its weights do not say.
        dropout: the rate at which outputs of every layer but the last are dropped in training.

    Returns:
        The net, and its parameters: a `layer` or a `bidirectional` net, or a `chain` of such where there are several
        layers.

    Raises:
        ValueError: if a tensor is missing, unknown or of another shape.
        TypeError: if one is no tensor of a floating dtype.

    Example:
        >>> import numpy as np
        >>> from rnnscan.interop import from_torch
        >>> shapes = {"weight_ih_l0": (16, 3), "weight_hh_l0": (16, 4), "bias_ih_l0": (16,), "bias_hh_l0": (16,)}
        >>> net, params = from_torch({name: np.ones(shape, np.float32) for name, shape in shapes.items()})
        >>> net
        Layer(cell=LSTM(hidden_size=4), reverse=False)
        >>> params["kernel"].shape
        (3, 16)
    """
    layout = find_layout("from_torch", "torch", kind)
    if nonlinearity not in _NONLINEARITIES:
        raise ValueError(f"from_torch: `nonlinearity` must be one of {listing(_NONLINEARITIES)}; got {nonlinearity!r}.")
    tensors = as_arrays("from_torch", state_dict)
    found = [match for name in tensors if (match := _INPUT_KERNEL.fullmatch(name))]
    layers = 1 + max((int(match[1]) for match in found), default=0)
    directions = ("", "_reverse") if any(match[2] for match in found) else ("",)
    tensor_shapes = _tensor_shapes(
        len(layout.gates),
        biases=any(name.startswith("bias_") for name in tensors),
        projection=kind == "LSTM" and any(name.startswith("weight_hr_") for name in tensors),
    )
    expected = [
        f"{tensor}_l{number}{direction}"
        for number in range(layers)
        for direction in directions
        for tensor in tensor_shapes
    ]
    check_names("from_torch", f"torch's {kind}", tensors, expected)
    options = {"activation": nonlinearity} if kind == "RNN" else {}
    sizes: dict[str, int] = {}
    nets = []
    for number in range(layers):
        parts = []
        for direction in directions:
            of_part = {tensor: tensors[f"{tensor}_l{number}{direction}"] for tensor in tensor_shapes}
            sizes = _check_shapes(layout, of_part, tensor_shapes, sizes, f"_l{number}{direction}")
            parts.append(_read_part(kind, layout, of_part, options))
        nets.append(parts)
        sizes |= {"D": len(directions) * sizes["P"]}
    return make_net(nets, dropout=dropout)


def to_torch(net: Any, params: Any) -> dict[str, np.ndarray]:
    """The weights of a net as a state dict of `torch.nn.LSTM`, `torch.nn.GRU` or `torch.nn.RNN`.

    Of torch's two biases `bias_ih` is rnnscan's and `bias_hh` is zero, apart from the candidate's of a GRU. So
    rnnscan's parameters come back exactly by `from_torch`, and torch's own biases come back as their sums.

    Args:
        net: a layer of `LSTM`, `GRU` or `RNN`, a bidirectional net, or a chain of such with cells of one form.
        params: its parameters.

    Returns:
        Arrays of numpy by torch's names. `module.load_state_dict({name: torch.from_numpy(array) for ...})` takes them.

    Raises:
        TypeError: if the net is of another form.
        ValueError: if torch has no such net, or the parameters are not those of the net.

    Example:
        >>> import jax
        >>> import rnnscan as rs
        >>> from rnnscan.interop import to_torch
        >>> net = rs.layer(rs.cells.GRU(4))
        >>> {name: array.shape for name, array in to_torch(net, net.init(jax.random.key(0), input_size=3)).items()}
        {'weight_ih_l0': (12, 3), 'weight_hh_l0': (12, 4), 'bias_ih_l0': (12,), 'bias_hh_l0': (12,)}
    """
    layers = parts_of("to_torch", "torch", net, params)
    check_alike("to_torch", "torch", layers)
    nonlinearities = {activation_name(part.cell.activation) for parts in layers for part in parts}
    if len(nonlinearities) > 1 or not nonlinearities <= set(_NONLINEARITIES):
        raise ValueError(
            f"to_torch: torch's RNN has one of {listing(_NONLINEARITIES)} in all layers; got {listing(nonlinearities)}."
        )
    state_dict = {}
    for number, parts in enumerate(layers):
        for part, direction in zip(parts, ("", "_reverse"), strict=False):
            for tensor, array in _write_part(part).items():
                state_dict[f"{tensor}_l{number}{direction}"] = array
    return state_dict


def carry_from_torch(net: Any, states: Any) -> Any:
    """Torch's states as a net's carry.

    Args:
        net: the net.
        states: `(h, c)` of an LSTM, otherwise h, each `(layers * directions, N, ...)`: torch's `h_0`, and cuDNN's.

    Returns:
        The carry, as `net.initial_carry` has it.

    Raises:
        ValueError: if there are not as many states as the net has cells.

    Example:
        >>> import jax.numpy as jnp
        >>> import rnnscan as rs
        >>> from rnnscan.interop import carry_from_torch
        >>> net = rs.bidirectional(rs.cells.GRU(4))
        >>> (forward,), (backward,) = carry_from_torch(net, jnp.zeros((2, 3, 4)))
        >>> forward.shape, backward.shape
        ((3, 4), (3, 4))
    """
    parts = states if isinstance(states, tuple | list) else (states,)
    arrays = [
        part if isinstance(part, jax.Array) else jnp.asarray(as_array("carry_from_torch", "a state", part))
        for part in parts
    ]
    nets = net.nets if isinstance(net, Chain) else (net,)
    directions = [2 if isinstance(of_layer, Bidirectional) else 1 for of_layer in nets]
    if any(array.shape[:1] != (sum(directions),) for array in arrays):
        raise ValueError(
            f"carry_from_torch: states must be ({sum(directions)}, N, H), torch's (layers * directions, N, H), for "
            f"this net; got {', '.join(str(array.shape) for array in arrays)}."
        )
    cells = [tuple(array[number] for array in arrays) for number in range(sum(directions))]
    carries = []
    for count in directions:
        of_layer, cells = cells[:count], cells[count:]
        carries.append(tuple(of_layer) if count == 2 else of_layer[0])
    return tuple(carries) if isinstance(net, Chain) else carries[0]


def carry_to_torch(net: Any, carry: Any) -> Array | tuple[Array, ...]:
    """A net's carry as torch's states.

    Args:
        net: the net.
        carry: its carry.

    Returns:
        `(h, c)` of an LSTM, otherwise h, each `(layers * directions, N, ...)`.

    Example:
        >>> import jax.numpy as jnp
        >>> import rnnscan as rs
        >>> from rnnscan.interop import carry_to_torch
        >>> net = rs.bidirectional(rs.cells.LSTM(4))
        >>> h, c = carry_to_torch(net, net.initial_carry(jnp.zeros((6, 2, 3))))
        >>> h.shape, c.shape
        ((2, 2, 4), (2, 2, 4))
    """
    nets = net.nets if isinstance(net, Chain) else (net,)
    carries = carry if isinstance(net, Chain) else (carry,)
    cells: list[tuple[Array, ...]] = []
    for of_layer, of_net in zip(nets, carries, strict=True):
        cells += of_net if isinstance(of_layer, Bidirectional) else [of_net]
    states = tuple(jnp.stack(parts) for parts in zip(*cells, strict=True))
    return states if len(states) > 1 else states[0]


def _tensor_shapes(blocks: int, *, biases: bool, projection: bool) -> dict[str, tuple[str, ...]]:
    """The tensors of one direction of one layer, as torch documents them; P is H without a projection."""
    fused, hidden = f"{blocks}H", "P" if projection else "H"
    shapes: dict[str, tuple[str, ...]] = {"weight_ih": (fused, "D"), "weight_hh": (fused, hidden)}
    if biases:
        shapes |= {"bias_ih": (fused,), "bias_hh": (fused,)}
    return shapes | ({"weight_hr": ("P", "H")} if projection else {})


def _check_shapes(
    layout: Layout,
    tensors: dict[str, np.ndarray],
    shapes: dict[str, tuple[str, ...]],
    sizes: dict[str, int],
    suffix: str,
) -> dict[str, int]:
    """The sizes D, H and P: those given, or those of the first tensors."""
    # Those that the sizes are of come first, so that an error names them where they are at fault.
    for tensor in ("weight_hr", "weight_hh", *tensors):
        if tensor in tensors:
            check_shape("from_torch", "torch", tensor + suffix, tensors[tensor], shapes[tensor], sizes, layout)
    if not sizes:
        state = tensors.get("weight_hr", tensors["weight_hh"])
        sizes = {"D": tensors["weight_ih"].shape[1], "H": state.shape[1], "P": tensors["weight_hh"].shape[1]}
        return _check_shapes(layout, tensors, shapes, sizes, suffix)
    return sizes


def _read_part(kind: str, layout: Layout, tensors: dict[str, np.ndarray], options: dict[str, Any]) -> Part:
    projection = tensors.get("weight_hr")
    weights = read_weights(
        layout,
        tensors["weight_ih"],
        tensors["weight_hh"],
        [tensors[name] for name in ("bias_ih", "bias_hh") if name in tensors],
        resets_product=kind == "GRU",
        projection_kernel=None if projection is None else projection.T,
    )
    return make_part(kind, weights, **options)


def _write_part(part: Part) -> dict[str, np.ndarray]:
    layout, weights = find_layout("to_torch", "torch", part.kind), part.weights
    tensors = {"weight_ih": layout.fuse(weights.kernel), "weight_hh": layout.fuse(weights.recurrent_kernel)}
    tensors |= dict(zip(("bias_ih", "bias_hh"), weights.biases(layout), strict=False))
    if weights.projection_kernel is not None:
        tensors["weight_hr"] = np.ascontiguousarray(weights.projection_kernel.T)
    return tensors
