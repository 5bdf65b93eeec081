"""Convert weights from and to `torch.nn.LSTM`, `GRU` and `RNN`."""

import re
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from rnnscan._util.messages import listing
from rnnscan.interop.arrays import Tensor, contiguous
from rnnscan.interop.gates import Layout, find_layout, read_weights
from rnnscan.interop.nets import CellWeights, activation_name, cells_of, check_alike, make_cell, make_net
from rnnscan.interop.tensors import as_array, as_arrays, check_concrete, check_names, check_shape
from rnnscan.nets import Bidirectional, Chain


_INPUT_KERNEL = re.compile(r"weight_ih_l(\d+)(_reverse)?")
_NONLINEARITIES = ("tanh", "relu")


def from_torch(
    state_dict: Mapping[str, Any], kind: str = "LSTM", *, nonlinearity: str = "tanh", dropout: float = 0.0
) -> tuple[Any, Any]:
    """Make a net from the weights of `torch.nn.LSTM`, `torch.nn.GRU` or `torch.nn.RNN`.

    The tensors determine sizes, layers, directions, biases and projection. Torch's two biases are added, except for the
    candidate of a GRU, whose second bias becomes `"recurrent_bias"`. The net is always time-major, `(T, N, D)`.
    `carry_from_torch` converts states.

    Args:
        state_dict: `module.state_dict()`, with tensors of torch, numpy or JAX. Float64 stays float64 if
            `jax_enable_x64` is on.
        kind: "LSTM", "GRU" or "RNN".
        nonlinearity: the `nonlinearity` of an RNN, "tanh" or "relu".
        dropout: the rate of dropout between layers, in training.

    Returns:
        The net and its parameters. One layer is a `layer` or a `bidirectional` net, several are a `chain`.

    Raises:
        ValueError: if a tensor is missing, unknown or of another shape.
        TypeError: if one is not a tensor of a floating dtype.

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
    input_kernels = [match for name in tensors if (match := _INPUT_KERNEL.fullmatch(name))]
    layers = 1 + max((int(match[1]) for match in input_kernels), default=0)
    directions = ("", "_reverse") if any(match[2] for match in input_kernels) else ("",)
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
        cells = []
        for direction in directions:
            of_cell = {tensor: tensors[f"{tensor}_l{number}{direction}"] for tensor in tensor_shapes}
            sizes = _check_shapes(layout, of_cell, tensor_shapes, sizes, f"_l{number}{direction}")
            cells.append(_read_cell(kind, layout, of_cell, options))
        nets.append(cells)
        sizes |= {"D": len(directions) * sizes["P"]}
    return make_net(nets, dropout=dropout)


def to_torch(net: Any, params: Any) -> dict[str, np.ndarray]:
    """Convert the weights of a net to a state dict of `torch.nn.LSTM`, `torch.nn.GRU` or `torch.nn.RNN`.

    `bias_ih` is rnnscan's bias. `bias_hh` is zero, except for the candidate of a GRU. `from_torch` restores rnnscan's
    parameters exactly.

    Args:
        net: a layer of `LSTM`, `GRU` or `RNN`, a bidirectional net, or a chain of these with cells of one form.
        params: its parameters.

    Returns:
        Numpy arrays by torch's names, for `module.load_state_dict({name: torch.from_numpy(array) for ...})`.

    Raises:
        TypeError: if the net is of another kind, or the parameters are traced.
        ValueError: if torch has no such net, or the parameters do not fit the net.

    Example:
        >>> import jax
        >>> import rnnscan as rs
        >>> from rnnscan.interop import to_torch
        >>> net = rs.layer(rs.cells.GRU(4))
        >>> {name: array.shape for name, array in to_torch(net, net.init(jax.random.key(0), input_size=3)).items()}
        {'weight_ih_l0': (12, 3), 'weight_hh_l0': (12, 4), 'bias_ih_l0': (12,), 'bias_hh_l0': (12,)}
    """
    layers = cells_of("to_torch", "torch", net, params)
    check_alike("to_torch", "torch", layers)
    nonlinearities = {activation_name(weights.cell.activation) for directions in layers for weights in directions}
    if len(nonlinearities) > 1 or not nonlinearities <= set(_NONLINEARITIES):
        raise ValueError(
            f"to_torch: torch's RNN has one of {listing(_NONLINEARITIES)} in all layers; got {listing(nonlinearities)}."
        )
    state_dict = {}
    for number, directions in enumerate(layers):
        for weights, suffix in zip(directions, ("", "_reverse"), strict=False):
            for tensor, array in _write_cell(weights).items():
                state_dict[f"{tensor}_l{number}{suffix}"] = array
    return check_concrete("to_torch", state_dict)


def carry_from_torch(net: Any, states: Any) -> Any:
    """Convert torch's states to a net's carry.

    Args:
        net: the net.
        states: `(h, c)` of an LSTM, otherwise h, each `(layers * directions, N, ...)`, as in torch and cuDNN.

    Returns:
        The carry, in the form of `net.initial_carry`.

    Raises:
        ValueError: if the number of states is not the number of cells.

    Example:
        >>> import jax.numpy as jnp
        >>> import rnnscan as rs
        >>> from rnnscan.interop import carry_from_torch
        >>> net = rs.bidirectional(rs.cells.GRU(4))
        >>> (forward,), (backward,) = carry_from_torch(net, jnp.zeros((2, 3, 4)))
        >>> forward.shape, backward.shape
        ((3, 4), (3, 4))
    """
    arrays = [
        state if isinstance(state, jax.Array) else jnp.asarray(as_array("carry_from_torch", "a state", state))
        for state in (states if isinstance(states, tuple | list) else (states,))
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
    """Convert a net's carry to torch's states.

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
    states = tuple(jnp.stack(of_cells) for of_cells in zip(*cells, strict=True))
    return states if len(states) > 1 else states[0]


def _tensor_shapes(blocks: int, *, biases: bool, projection: bool) -> dict[str, tuple[str, ...]]:
    """The tensors of one direction of one layer, with torch's documented shapes."""
    fused, hidden = f"{blocks}H", "P" if projection else "H"
    shapes: dict[str, tuple[str, ...]] = {"weight_ih": (fused, "D"), "weight_hh": (fused, hidden)}
    if biases:
        shapes |= {"bias_ih": (fused,), "bias_hh": (fused,)}
    return shapes | ({"weight_hr": ("P", "H")} if projection else {})


def _check_shapes(
    layout: Layout,
    tensors: dict[str, Tensor],
    shapes: dict[str, tuple[str, ...]],
    sizes: dict[str, int],
    suffix: str,
) -> dict[str, int]:
    """Check shapes, and return the sizes D, H and P: those given, or those of these tensors."""
    # The tensors that determine sizes come first, so that an error names the wrong one.
    for tensor in ("weight_hr", "weight_hh", *tensors):
        if tensor in tensors:
            check_shape("from_torch", "torch", tensor + suffix, tensors[tensor], shapes[tensor], sizes, layout)
    if not sizes:
        state = tensors.get("weight_hr", tensors["weight_hh"])
        sizes = {"D": tensors["weight_ih"].shape[1], "H": state.shape[1], "P": tensors["weight_hh"].shape[1]}
        return _check_shapes(layout, tensors, shapes, sizes, suffix)
    return sizes


def _read_cell(kind: str, layout: Layout, tensors: dict[str, Tensor], options: dict[str, Any]) -> CellWeights:
    projection = tensors.get("weight_hr")
    by_gate = read_weights(
        layout,
        tensors["weight_ih"],
        tensors["weight_hh"],
        [tensors[name] for name in ("bias_ih", "bias_hh") if name in tensors],
        resets_product=kind == "GRU",
        projection_kernel=None if projection is None else projection.T,
    )
    return make_cell(kind, by_gate, **options)


def _write_cell(weights: CellWeights) -> dict[str, Tensor]:
    layout, by_gate = find_layout("to_torch", "torch", weights.kind), weights.by_gate
    tensors = {"weight_ih": layout.fuse(by_gate.kernel), "weight_hh": layout.fuse(by_gate.recurrent_kernel)}
    tensors |= dict(zip(("bias_ih", "bias_hh"), by_gate.biases(layout), strict=False))
    if by_gate.projection_kernel is not None:
        tensors["weight_hr"] = contiguous(by_gate.projection_kernel.T)
    return tensors
