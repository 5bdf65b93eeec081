"""The gate orders of all libraries in one table, and functions that split and fuse tensors by it.

Gates have rnnscan's letters. An LSTM has the input gate i, the forget gate f, the candidate g and the output gate o. A
GRU has the reset gate r, the update gate z and the candidate n, an MGU the forget gate f and the candidate n. An RNN
has one block, h.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax.numpy as jnp
from jaxtyping import Array, Shaped

from rnnscan._util.messages import listing, nearest
from rnnscan.interop.arrays import Tensor, concatenate, contiguous, split, zeros_like


@dataclass(frozen=True)
class Layout:
    """The layout of one kind of cell in a library.

    Attributes:
        gates: the order of the gates in kernels and biases.
        gates_in: the axis of the gates in a kernel: "columns" of `(D, 4H)`, or "rows" of `(4H, D)`.
        biases: the number of bias vectors, which the cell adds.
        peepholes: the order of the peepholes. Empty: none.
        options: the options of rnnscan's cell that the library supports. The others must have their defaults.
    """

    gates: str
    gates_in: Literal["rows", "columns"]
    biases: int = 1
    peepholes: str = ""
    options: tuple[str, ...] = ()

    def __str__(self) -> str:
        if len(self.gates) == 1:
            return f"units in {self.gates_in}"
        return f"gates {' '.join(self.gates)} in {self.gates_in}"

    def split(self, fused: Tensor) -> dict[str, Tensor]:
        """Split a kernel into blocks `(D, H)`, or a bias into blocks `(H,)`, by gate."""
        columns = fused.T if self.gates_in == "rows" else fused
        return split_blocks(columns, self.gates)

    def fuse(self, blocks: dict[str, Tensor]) -> Tensor:
        """Fuse blocks `(D, H)` or `(H,)` into one tensor."""
        columns = concatenate([blocks[gate] for gate in self.gates], axis=-1)
        return contiguous(columns.T) if self.gates_in == "rows" else columns


_ACTIVATIONS = ("activation", "gate_activation")

LAYOUTS: dict[str, dict[str, Layout]] = {
    "rnnscan": {
        "LSTM": Layout("ifgo", "columns", peepholes="ifo"),
        "GRU": Layout("rzn", "columns"),
        "RNN": Layout("h", "columns"),
        "MGU": Layout("fn", "columns"),
        "ConvLSTM": Layout("ifgo", "columns"),
        "LayerNormLSTM": Layout("ifgo", "columns"),
        "MILSTM": Layout("ifgo", "columns"),
        "LayerNormMILSTM": Layout("ifgo", "columns"),
    },
    "torch": {
        "LSTM": Layout("ifgo", "rows", biases=2, options=("proj_size",)),
        "GRU": Layout("rzn", "rows", biases=2),
        "RNN": Layout("h", "rows", biases=2, options=("activation",)),
    },
    # Keras calls g c, and n h. A GRU has two biases only with reset_after=True.
    "Keras": {
        "LSTM": Layout("ifgo", "columns", options=_ACTIVATIONS),
        "GRU": Layout("zrn", "columns", biases=2, options=("reset_after", *_ACTIVATIONS)),
        "RNN": Layout("h", "columns", options=_ACTIVATIONS),
        "ConvLSTM": Layout("ifgo", "columns", options=_ACTIVATIONS),
    },
    # One dense layer per gate, or one for all gates in some cells of flax.nnx.
    "Flax": {
        "LSTM": Layout("ifgo", "columns", options=_ACTIVATIONS),
        "GRU": Layout("rzn", "columns", options=_ACTIVATIONS),
        "RNN": Layout("h", "columns", options=_ACTIVATIONS),
        "MGU": Layout("fn", "columns", options=("reset_gate", *_ACTIVATIONS)),
    },
    # The bias of a GRU's reset product is a separate array.
    "Equinox": {"LSTM": Layout("ifgo", "rows"), "GRU": Layout("rzn", "rows")},
    # Haiku calls n a. Its z weighs n, so rnnscan's is 1 - z.
    "Haiku": {
        "LSTM": Layout("igfo", "columns"),
        "GRU": Layout("zrn", "columns", options=("reset_after",)),
        "RNN": Layout("h", "columns", biases=2, options=("activation",)),
    },
    "cuDNN": {"LSTM": Layout("ifgo", "rows", biases=2)},
    "Caffe2": {
        "LSTM": Layout("ifog", "rows", biases=2),
        "LayerNormLSTM": Layout("ifog", "rows", biases=2, options=("epsilon",)),
        "MILSTM": Layout("ifog", "rows"),
        "LayerNormMILSTM": Layout("ifog", "rows", options=("epsilon",)),
    },
    # DL4J calls g a ("I" in its sources), and i g.
    "DL4J": {"LSTM": Layout("gfoi", "columns", peepholes="foi", options=("peepholes", *_ACTIVATIONS))},
    # ONNX calls g c, and n h.
    "ONNX": {
        "LSTM": Layout("iofg", "rows", biases=2, peepholes="iof", options=("peepholes", *_ACTIVATIONS)),
        "GRU": Layout("zrn", "rows", biases=2, options=("reset_after", *_ACTIVATIONS)),
        "RNN": Layout("h", "rows", biases=2, options=("activation",)),
    },
}


@dataclass(frozen=True)
class GateWeights:
    """The weights of one cell by gate: the common form of all layouts.

    Attributes:
        kernel: blocks `(D, H)`.
        recurrent_kernel: blocks `(H, H)`, or `(P, H)` with a projection.
        bias: blocks `(H,)`. None: no bias.
        recurrent_bias: `(H,)`, the bias of the candidate that the reset gate multiplies.
        peepholes: blocks `(H,)`.
        projection_kernel: `(H, P)`.
    """

    kernel: dict[str, Tensor]
    recurrent_kernel: dict[str, Tensor]
    bias: dict[str, Tensor] | None = None
    recurrent_bias: Tensor | None = None
    peepholes: dict[str, Tensor] | None = None
    projection_kernel: Tensor | None = None

    def biases(self, layout: Layout, *, absent: Literal["zeros", "none"] = "none") -> list[Tensor]:
        """Make the bias vectors of a layout. The first holds the bias, the second only `recurrent_bias`.

        Args:
            layout: the layout of the vectors.
            absent: whether a cell without biases gets zeros or no vectors.
        """
        if self.bias is None and absent == "none":
            return []
        zeros = {gate: zeros_like(block[0]) for gate, block in self.kernel.items()}
        bias = zeros if self.bias is None else self.bias
        vectors = [layout.fuse(bias)]
        if layout.biases == 2:
            candidate = {} if self.recurrent_bias is None else {"n": self.recurrent_bias}
            vectors.append(layout.fuse(zeros | candidate))
        return vectors


def read_weights(
    layout: Layout,
    kernel: Tensor,
    recurrent_kernel: Tensor,
    biases: Sequence[Tensor],
    *,
    resets_product: bool = False,
    peepholes: Tensor | None = None,
    projection_kernel: Tensor | None = None,
) -> GateWeights:
    """Split a library's tensors by gate.

    Args:
        layout: the layout of the tensors.
        kernel: the input kernel.
        recurrent_kernel: the kernel of the hidden state.
        biases: none, one, or two to add.
        resets_product: whether the reset gate multiplies the recurrent product of the candidate n. Its second bias is
            then `recurrent_bias`.
        peepholes: `(3H,)`.
        projection_kernel: `(H, P)`.

    Returns:
        The weights by gate.
    """
    bias = layout.split(biases[0]) if biases else None
    recurrent_bias = None
    if bias is not None and len(biases) == 2:
        of_hidden = layout.split(biases[1])
        if resets_product:
            recurrent_bias = of_hidden.pop("n")
        bias |= {gate: bias[gate] + block for gate, block in of_hidden.items()}
    return GateWeights(
        layout.split(kernel),
        layout.split(recurrent_kernel),
        bias,
        recurrent_bias,
        None if peepholes is None else split_blocks(peepholes, layout.peepholes),
        projection_kernel,
    )


def split_blocks(columns: Tensor, gates: str) -> dict[str, Tensor]:
    """Split the last axis into equal blocks, by gate."""
    return dict(zip(gates, split(columns, len(gates), axis=-1), strict=True))


def find_layout(function: str, library: str, kind: str) -> Layout:
    """Look up the layout of a kind of cell in a library.

    Raises:
        ValueError: if the library does not have the kind.
    """
    kinds = LAYOUTS[library]
    if kind not in kinds:
        raise ValueError(f"{function}: `kind` must be one of {listing(kinds)}; got {kind!r}.{nearest(kind, kinds)}")
    return kinds[kind]


def reorder_gates(
    fused: Shaped[Any, "..."], source: str, target: str, *, kind: str = "LSTM", axis: int = -1
) -> Shaped[Array, "..."]:
    """Reorder the gates of a tensor.

    Orders use rnnscan's letters. An LSTM has the input gate i, the forget gate f, the candidate g (c in Keras and ONNX)
    and the output gate o. A GRU has the reset gate r, the update gate z and the candidate n (h in Keras and ONNX). The
    order alone does not convert a cell whose library exchanges z and 1 - z, or f and 1 - f.

    Args:
        fused: a kernel or bias with equal blocks along an axis.
        source: its order, such as "iofg", or the name of a library: "torch", "keras", "flax", "equinox", "haiku",
            "cudnn", "caffe2", "dl4j", "onnx" or "rnnscan".
        target: the order of the result, or the name of a library.
        kind: the kind of cell, which determines the gates.
        axis: the axis of the gates, 0 for gates in rows.

    Returns:
        A tensor of the same shape.

    Raises:
        ValueError: if an order is unknown, or the axis does not have a multiple of the number of gates.

    Example:
        >>> import jax.numpy as jnp
        >>> import rnnscan as rs
        >>> from rnnscan.interop import reorder_gates
        >>> bias = jnp.array([1, 1, 2, 2, 3, 3, 4, 4])
        >>> reorder_gates(bias, "onnx", "rnnscan").tolist()
        [1, 1, 3, 3, 4, 4, 2, 2]
        >>> reorder_gates(bias, "igfo", "ifgo").tolist()
        [1, 1, 3, 3, 2, 2, 4, 4]
    """
    gates = find_layout("reorder_gates", "rnnscan", kind).gates
    source_gates, target_gates = (
        _find_order(argument, order, kind) for argument, order in (("source", source), ("target", target))
    )
    blocks = jnp.asarray(fused)
    if blocks.ndim == 0 or not -blocks.ndim <= axis < blocks.ndim or blocks.shape[axis] % len(gates):
        raise ValueError(
            f"reorder_gates: `axis` must have {len(gates)} equal blocks, the gates {' '.join(gates)}; got axis "
            f"{axis} of {blocks.shape}. Give axis=0 for gates in rows, as in (4H, D)."
        )
    by_gate = dict(zip(source_gates, jnp.split(blocks, len(gates), axis=axis), strict=True))
    return jnp.concatenate([by_gate[gate] for gate in target_gates], axis=axis)


def _find_order(argument: str, order: str, kind: str) -> str:
    known = {library.lower(): kinds[kind].gates for library, kinds in LAYOUTS.items() if kind in kinds}
    gates = known["rnnscan"]
    if order.lower() in known:
        return known[order.lower()]
    if sorted(order) != sorted(gates):
        orders = ", ".join(f"{library} {of_library!r}" for library, of_library in known.items())
        raise ValueError(
            f"reorder_gates: `{argument}` must be an order of the gates {' '.join(gates)}, or a library; got {order!r}."
            f" The known orders are {orders}.{nearest(order, known)}"
        )
    return order
