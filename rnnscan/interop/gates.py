"""The one table of how libraries lay out the gates of a cell, and what takes tensors apart and together by it.

Gates go by rnnscan's letters, whatever a library calls them: of an LSTM the input gate i, the forget gate f, the
candidate g and the output gate o; of a GRU the reset gate r, the update gate z and the candidate n; of an MGU the
forget gate f and the candidate n. An RNN has one block, h.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Shaped

from rnnscan._messages import listing, nearest


@dataclass(frozen=True)
class Layout:
    """How a library lays out one kind of cell.

    Attributes:
        gates: the order of the blocks in kernels and biases.
        gates_in: the axis of a kernel along which they are: "columns" of `(D, 4H)`, or "rows" of `(4H, D)`.
        biases: how many bias vectors there are, which are summed.
        peepholes: the order of the peepholes, where there can be some.
        options: the options of rnnscan's cell that the library has as well; the others must be at their defaults.
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

    def split(self, fused: np.ndarray) -> dict[str, np.ndarray]:
        """The blocks of a kernel, each `(D, H)`, or of a bias, each `(H,)`, by gate."""
        columns = fused.T if self.gates_in == "rows" else fused
        return split_blocks(columns, self.gates)

    def fuse(self, blocks: dict[str, np.ndarray]) -> np.ndarray:
        """One tensor of blocks `(D, H)`, or `(H,)`."""
        columns = np.concatenate([blocks[gate] for gate in self.gates], axis=-1)
        return np.ascontiguousarray(columns.T) if self.gates_in == "rows" else columns


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
    # Keras calls g c, and n h. A GRU has two biases with reset_after=True only.
    "Keras": {
        "LSTM": Layout("ifgo", "columns", options=_ACTIVATIONS),
        "GRU": Layout("zrn", "columns", biases=2, options=("reset_after", *_ACTIVATIONS)),
        "RNN": Layout("h", "columns", options=_ACTIVATIONS),
        "ConvLSTM": Layout("ifgo", "columns", options=_ACTIVATIONS),
    },
    # One dense layer for each gate, and flax.nnx's fused ones.
    "Flax": {
        "LSTM": Layout("ifgo", "columns", options=_ACTIVATIONS),
        "GRU": Layout("rzn", "columns", options=_ACTIVATIONS),
        "RNN": Layout("h", "columns", options=_ACTIVATIONS),
        "MGU": Layout("fn", "columns", options=("reset_gate", *_ACTIVATIONS)),
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
class Weights:
    """The weights of one cell by gate, the form between two layouts.

    Attributes:
        kernel: blocks `(D, H)`.
        recurrent_kernel: blocks `(H, H)`, or `(P, H)` with a projection.
        bias: blocks `(H,)`; None: there are none.
        recurrent_bias: `(H,)`, the bias of a candidate inside the product with the reset gate.
        peepholes: blocks `(H,)`.
        projection_kernel: `(H, P)`.
    """

    kernel: dict[str, np.ndarray]
    recurrent_kernel: dict[str, np.ndarray]
    bias: dict[str, np.ndarray] | None = None
    recurrent_bias: np.ndarray | None = None
    peepholes: dict[str, np.ndarray] | None = None
    projection_kernel: np.ndarray | None = None

    def biases(self, layout: Layout, *, absent: Literal["zeros", "none"] = "none") -> list[np.ndarray]:
        """The bias vectors of a layout: the sum in the first, and of the second only a candidate's own is not zero.

        Args:
            layout: whose vectors.
            absent: what there is of a cell without biases.
        """
        if self.bias is None and absent == "none":
            return []
        zeros = {gate: np.zeros_like(block[0]) for gate, block in self.kernel.items()}
        bias = zeros if self.bias is None else self.bias
        vectors = [layout.fuse(bias)]
        if layout.biases == 2:
            apart = {} if self.recurrent_bias is None else {"n": self.recurrent_bias}
            vectors.append(layout.fuse(zeros | apart))
        return vectors


def read_weights(
    layout: Layout,
    kernel: np.ndarray,
    recurrent_kernel: np.ndarray,
    biases: Sequence[np.ndarray],
    *,
    resets_product: bool = False,
    peepholes: np.ndarray | None = None,
    projection_kernel: np.ndarray | None = None,
) -> Weights:
    """Take a library's tensors apart.

    Args:
        layout: whose tensors they are.
        kernel: of the input.
        recurrent_kernel: of the hidden state.
        biases: none, one, or two that are summed.
        resets_product: whether a candidate n has the reset gate after its recurrent product, so that its second bias
            stays apart.
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
    return Weights(
        layout.split(kernel),
        layout.split(recurrent_kernel),
        bias,
        recurrent_bias,
        None if peepholes is None else split_blocks(peepholes, layout.peepholes),
        projection_kernel,
    )


def split_blocks(columns: np.ndarray, gates: str) -> dict[str, np.ndarray]:
    """Equal blocks along the last axis, by gate."""
    return dict(zip(gates, np.split(columns, len(gates), axis=-1), strict=True))


def find_layout(function: str, library: str, kind: str) -> Layout:
    """A row of the table.

    Raises:
        ValueError: if the library has no such kind.
    """
    kinds = LAYOUTS[library]
    if kind not in kinds:
        raise ValueError(f"{function}: `kind` must be one of {listing(kinds)}; got {kind!r}.{nearest(kind, kinds)}")
    return kinds[kind]


def reorder_gates(
    fused: Shaped[Any, "..."], source: str, target: str, *, kind: str = "LSTM", axis: int = -1
) -> Shaped[Array, "..."]:
    """Put the blocks of a tensor into another order of gates.

    Orders are written in rnnscan's letters: of an LSTM the input gate i, the forget gate f, the candidate g (c in Keras
    and ONNX) and the output gate o; of a GRU the reset gate r, the update gate z and the candidate n (h in Keras and
    ONNX). Where z and 1 - z, or f and 1 - f, are exchanged, an order alone does not make one library's gate another's.

    Args:
        fused: a kernel or bias with equal blocks along an axis.
        source: its order, such as "iofg", or a library whose order it is: "torch", "keras", "flax", "cudnn", "caffe2",
            "dl4j", "onnx" or "rnnscan".
        target: the order that it shall have, or a library.
        kind: the kind of cell, which says what gates there are.
        axis: the axis of the blocks: 0 where gates are in rows.

    Returns:
        A tensor of the same shape.

    Raises:
        ValueError: if an order is not known, or the axis cannot be split into its blocks.

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
            f"reorder_gates: `axis` must be one of {len(gates)} equal blocks, the gates {' '.join(gates)}; got axis "
            f"{axis} of {blocks.shape}. Kernels (4H, D) have gates in rows: axis=0."
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
            f" Known are {orders}.{nearest(order, known)}"
        )
    return order
