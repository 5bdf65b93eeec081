"""Convert cuDNN's flat LSTM weight, and call cuDNN's LSTM through `jax.experimental.rnn`."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import rnn
from jaxtyping import Array, Float32, Int32

from rnnscan._util.messages import describe
from rnnscan.interop.gates import find_layout, read_weights
from rnnscan.interop.nets import cells_of, check_alike, make_cell, make_net
from rnnscan.interop.tensors import as_array


# The largest grid of a CUDA kernel along one axis. cuDNN fails above it.
_MOST_STEPS = 65535


def from_cudnn(
    weights: Any, input_size: int, hidden_size: int, num_layers: int, bidirectional: bool
) -> tuple[Any, Any]:
    """Make a net from cuDNN's flat LSTM weight.

    The weight is packed as in `jax.experimental.rnn`: the kernels W_ih and W_hh of each layer and direction, then all
    biases b_ih and b_hh, in torch's layout. The two biases are added. The net is time-major, `(T, N, D)`. The states
    have torch's order, so `carry_from_torch` converts them.

    Args:
        weights: the weight, one flat array.
        input_size: D.
        hidden_size: H.
        num_layers: the number of layers.
        bidirectional: whether each layer has two directions.

    Returns:
        The net and its parameters. One layer is a `layer` or a `bidirectional` net, several are a `chain`.

    Raises:
        ValueError: if the weight has another size.
        TypeError: if its dtype is not floating.

    Example:
        >>> import jax
        >>> from jax.experimental import rnn
        >>> from rnnscan.interop import from_cudnn
        >>> weights = rnn.init_lstm_weight(jax.random.key(0), 3, 4, num_layers=1, bidirectional=False)
        >>> net, params = from_cudnn(weights, input_size=3, hidden_size=4, num_layers=1, bidirectional=False)
        >>> net
        Layer(cell=LSTM(hidden_size=4), reverse=False)
    """
    layout = find_layout("from_cudnn", "cuDNN", "LSTM")
    flat = as_array("from_cudnn", "the weight", weights)
    _check_weight("from_cudnn", flat, input_size, hidden_size, num_layers, bidirectional)
    # Dictionaries by layer and direction. The reverse direction follows the forward one.
    tensors = rnn.unpack_lstm_weights(flat, input_size, hidden_size, num_layers, bidirectional)  # type: ignore[arg-type]
    cells = [
        make_cell("LSTM", read_weights(layout, kernel, recurrent_kernel, biases))
        for kernel, recurrent_kernel, *biases in zip(*(by_cell.values() for by_cell in tensors), strict=True)
    ]
    directions = 2 if bidirectional else 1
    return make_net([cells[first : first + directions] for first in range(0, len(cells), directions)])


def to_cudnn(net: Any, params: Any) -> Array:
    """Convert the weights of a net to cuDNN's flat LSTM weight.

    b_ih is rnnscan's bias, or zero if there is none. b_hh is zero. `from_cudnn` restores rnnscan's parameters exactly.

    Args:
        net: a layer of `LSTM`, a bidirectional net, or a chain of these with cells of one form.
        params: its parameters.

    Returns:
        The flat weight, for `lstm`.

    Raises:
        TypeError: if the net is of another kind.
        ValueError: if cuDNN has no such net, or the parameters do not fit the net.

    Example:
        >>> import jax
        >>> import rnnscan as rs
        >>> from rnnscan.interop import to_cudnn
        >>> net = rs.layer(rs.cells.LSTM(4))
        >>> to_cudnn(net, net.init(jax.random.key(0), input_size=3)).shape
        (144,)
    """
    layout = find_layout("to_cudnn", "cuDNN", "LSTM")
    layers = cells_of("to_cudnn", "cuDNN", net, params)
    check_alike("to_cudnn", "cuDNN", layers)
    cells = [weights.by_gate for directions in layers for weights in directions]
    kernels = [layout.fuse(kernel) for by_gate in cells for kernel in (by_gate.kernel, by_gate.recurrent_kernel)]
    biases = [bias for by_gate in cells for bias in by_gate.biases(layout, absent="zeros")]
    return jnp.concatenate([jnp.asarray(tensor).ravel() for tensor in kernels + biases])


def lstm(
    x: Float32[Array, "batch time features"],
    h_0: Float32[Array, "cells batch hidden"],
    c_0: Float32[Array, "cells batch hidden"],
    weights: Float32[Array, " size"],
    seq_lengths: Int32[Array, " batch"],
    input_size: int,
    hidden_size: int,
    num_layers: int,
    dropout: float,
    bidirectional: bool,
    precision: Any = None,
) -> tuple[Array, Array, Array]:
    """Run cuDNN's LSTM on a GPU: `jax.experimental.rnn.lstm` with checked arguments.

    Arrays are batch-major and float32. Under `jax.jit` the sizes must be static: close over them, or use
    `static_argnums`. A length of zero makes cuDNN fail; traced lengths cannot be checked.

    Args:
        x: the inputs `(N, T, D)`.
        h_0: `(layers * directions, N, H)`, in torch's order.
        c_0: `(layers * directions, N, H)`.
        weights: the flat weight of `to_cudnn`.
        seq_lengths: `(N,)` integers, each at least 1 and at most T.
        input_size: D.
        hidden_size: H.
        num_layers: the number of layers.
        dropout: the rate of dropout between layers.
        bidirectional: whether each layer has two directions.
        precision: the precision of the matrix products, as in JAX. None: TF32.

    Returns:
        The outputs `(N, T, H * directions)`, and the last h and c.

    Raises:
        ValueError: if a shape, a length or the number of steps is invalid.
        TypeError: if a dtype is not float32, or int32 for the lengths.
        RuntimeError: without a GPU.
    """
    _check_weight("cudnn.lstm", weights, input_size, hidden_size, num_layers, bidirectional)
    _check_dtypes({"x": x, "h_0": h_0, "c_0": c_0, "weights": weights}, seq_lengths)
    _check_sizes(x, h_0, c_0, seq_lengths, input_size, hidden_size, num_layers * (2 if bidirectional else 1))
    if jax.default_backend() != "gpu":
        raise RuntimeError(
            f"cudnn.lstm: cuDNN runs on a GPU, and JAX's backend is {jax.default_backend()!r}. On other backends run "
            "the net of from_cudnn(weights, input_size, hidden_size, num_layers, bidirectional)."
        )
    sizes = input_size, hidden_size, num_layers
    return rnn.lstm(x, h_0, c_0, weights, seq_lengths, *sizes, dropout, bidirectional, precision)


def _check_weight(
    function: str, weights: Any, input_size: int, hidden_size: int, num_layers: int, bidirectional: bool
) -> None:
    expected = rnn.get_num_params_in_lstm(input_size, hidden_size, num_layers, bidirectional)
    if weights.shape != (expected,):
        raise ValueError(
            f"{function}: the weight must be ({expected},), which cuDNN lays out as (W_ih, W_hh) of each layer and "
            f"direction, gates i f g o in rows, then (b_ih, b_hh) of each, for input_size={input_size}, "
            f"hidden_size={hidden_size}, num_layers={num_layers}, bidirectional={bidirectional}; got {weights.shape}."
        )


def _check_dtypes(arrays: dict[str, Any], seq_lengths: Any) -> None:
    for name, array in arrays.items():
        if array.dtype != jnp.float32:
            raise TypeError(f"cudnn.lstm: `{name}` must be of float32; got {describe(array)}.")
    if seq_lengths.dtype != jnp.int32:
        raise TypeError(f"cudnn.lstm: `seq_lengths` must be of int32; got {describe(seq_lengths)}.")


def _check_sizes(x: Any, h_0: Any, c_0: Any, seq_lengths: Any, input_size: int, hidden_size: int, cells: int) -> None:
    if x.ndim != 3 or x.shape[2] != input_size:
        raise ValueError(f"cudnn.lstm: `x` must be (N, T, {input_size}), batch-major; got {describe(x)}.")
    batch, steps, _ = x.shape
    for name, state in {"h_0": h_0, "c_0": c_0}.items():
        if state.shape != (cells, batch, hidden_size):
            raise ValueError(
                f"cudnn.lstm: `{name}` must be ({cells}, {batch}, {hidden_size}), (layers * directions, N, H); got "
                f"{describe(state)}."
            )
    if seq_lengths.shape != (batch,):
        raise ValueError(f"cudnn.lstm: `seq_lengths` must be ({batch},); got {describe(seq_lengths)}.")
    if steps > _MOST_STEPS:
        raise ValueError(
            f"cudnn.lstm: cuDNN fails above {_MOST_STEPS} steps; got {steps}. Split the sequence, and start each "
            "piece from the last states of the one before."
        )
    try:
        lengths = np.asarray(seq_lengths)
    except jax.errors.TracerArrayConversionError:
        return
    if lengths.size and not 1 <= lengths.min() <= lengths.max() <= steps:
        raise ValueError(
            f"cudnn.lstm: `seq_lengths` must be at least 1 and at most the {steps} steps of x; got {lengths.tolist()}. "
            "cuDNN fails at a length of 0."
        )
