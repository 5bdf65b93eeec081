"""The blobs of Caffe2's LSTM cells, and the parameters of rnnscan's cells that they map to."""

from collections.abc import Mapping
from typing import Any

from rnnscan._util.messages import listing
from rnnscan.interop.arrays import Tensor, to_host, zeros_like
from rnnscan.interop.gates import LAYOUTS
from rnnscan.interop.nets import CELLS
from rnnscan.interop.tensors import reshape_by_size


LIBRARY = "Caffe2"
# The default epsilon of `brew.layer_norm`, which the cells use.
EPSILON = 1e-4

Blobs = dict[str, tuple[str, ...]]

# Each parameter is the sum of its blobs. In the other direction the first blob is the parameter and the rest are zero.
_LSTM: Blobs = {"kernel": ("i2h_w",), "recurrent_kernel": ("gates_t_w",), "bias": ("i2h_b", "gates_t_b")}
_MILSTM: Blobs = {
    "kernel": ("i2h_w",),
    "recurrent_kernel": ("prev_t_w",),
    "bias": ("b",),
    "alpha": ("alpha",),
    "beta_1": ("beta1",),
    "beta_2": ("beta2",),
    "input_bias": ("i2h_b",),
    "recurrent_bias": ("prev_t_b",),
}
_NORM: Blobs = {"norm_scale": ("gates_t_norm_scale",), "norm_bias": ("gates_t_norm_bias",)}
BLOBS: dict[str, Blobs] = {
    "LSTM": _LSTM,
    "LayerNormLSTM": _LSTM | _NORM,
    "MILSTM": _MILSTM,
    "LayerNormMILSTM": _MILSTM | _NORM,
}

# The blobs of attention around a cell.
MECHANISM_BLOBS = (
    "weighted_decoder_hidden_state_w",
    "weighted_decoder_hidden_state_b",
    "weighted_encoder_outputs_w",
    "weighted_encoder_outputs_b",
    "weighted_prev_attention_context_w",
    "weighted_prev_attention_context_b",
    "coverage_weights_w",
    "coverage_weights_b",
    "attention_v",
    "attention_zeros",
)


def shape_of(kind: str, context: str = "") -> dict[str, tuple[str, ...]]:
    """The documented shape of each blob of a cell. `context` is "+E" if the recurrent product also reads a context."""
    shapes = {"kernel": ("4H", "D"), "recurrent_kernel": ("4H", f"H{context}")}
    return {blob: shapes.get(param, ("4H",)) for param, blobs in BLOBS[kind].items() for blob in blobs}


def strip_scopes(function: str, blobs: Mapping[Any, Tensor]) -> dict[str, Tensor]:
    """Remove scopes from the names of blobs.

    Raises:
        ValueError: if two blobs then have the same name.
    """
    scoped: dict[str, str] = {}
    for name in map(str, blobs):
        bare = name.rpartition("/")[2]
        if bare in scoped:
            raise ValueError(
                f"{function}: the blobs must be those of one layer; got {listing([scoped[bare], name])}. "
                "Convert one layer at a time."
            )
        scoped[bare] = name
    return dict(zip(scoped, blobs.values(), strict=True))


def with_scope(scope: str | None, blobs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Add a scope to the names of blobs."""
    return blobs if scope is None else {f"{scope}/{name}": blob for name, blob in blobs.items()}


def find_kind(blobs: Mapping[str, Any]) -> str:
    """Determine the kind of cell from the names of its blobs."""
    norm = "LayerNorm" if any(name.startswith("gates_t_norm") for name in blobs) else ""
    multiplicative = ("prev_t_w", "prev_t_b", "alpha", "beta1", "beta2", "b")
    return norm + ("MILSTM" if any(name in blobs for name in multiplicative) else "LSTM")


def read_cell(
    function: str,
    kind: str,
    blobs: Mapping[str, Tensor],
    sizes: dict[str, int],
    *,
    forget_bias: float,
    context: str = "",
) -> dict[str, Tensor]:
    """Convert the given blobs of a cell to its parameters.

    Args:
        function: the name of the calling function, for messages.
        kind: the kind of cell.
        blobs: the blobs by name.
        sizes: the known sizes. The first bias determines H if it is not among them.
        forget_bias: added to the last bias of the forget gate.
        context: as in `shape_of`.
    """
    layout, cell_layout = LAYOUTS[LIBRARY][kind], LAYOUTS["rnnscan"][kind]
    shapes = shape_of(kind, context)
    first_bias = next(name for name, shape in shapes.items() if name in blobs and shape == ("4H",))
    sizes = {"H": max(1, blobs[first_bias].size // 4)} | sizes
    # Checked first, because the other sizes follow from it.
    reshape_by_size(function, LIBRARY, first_bias, blobs[first_bias], ("4H",), sizes, layout)
    params: dict[str, Tensor] = {}
    for param, names in BLOBS[kind].items():
        arrays = [
            reshape_by_size(function, LIBRARY, name, blobs[name], shapes[name], sizes, layout)
            for name in names
            if name in blobs
        ]
        if arrays:
            params[param] = cell_layout.fuse(layout.split(sum(arrays[1:], start=arrays[0])))
    last_bias = "norm_bias" if "norm_bias" in params else "bias"
    units = sizes["H"]
    # Adding 0 would turn -0.0 into 0.0.
    if forget_bias:
        params[last_bias] = params[last_bias].copy()
        params[last_bias][units : 2 * units] += forget_bias
    return params


def find_cell(kind: str, params: Mapping[str, Any]) -> Any:
    """Make the cell for all or some of its parameters."""
    first = next(iter(params.values()))
    norm = {"epsilon": EPSILON} if "norm_scale" in params else {}
    return CELLS[kind](first.shape[-1] // 4, param_dtype=first.dtype, **norm)


def cell_blobs(function: str, kind: str, cell: Any, params: Mapping[str, Any]) -> dict[str, Tensor]:
    """Convert a cell's parameters to blobs.

    Raises:
        ValueError: if the epsilon of a layer norm is not Caffe2's.
    """
    if getattr(cell, "epsilon", EPSILON) != EPSILON:
        raise ValueError(
            f"{function}: Caffe2's layer norm has epsilon={EPSILON}; got {cell!r} with epsilon={cell.epsilon}. "
            f"Make the cell with epsilon={EPSILON}."
        )
    layout, cell_layout = LAYOUTS[LIBRARY][kind], LAYOUTS["rnnscan"][kind]
    zeros = zeros_like(to_host(params["kernel"])[0])
    blobs = {}
    for param, names in BLOBS[kind].items():
        for name in names:
            has_values = param in params and name == names[0]
            columns = to_host(params[param]) if has_values else zeros
            blobs[name] = layout.fuse(cell_layout.split(columns))
    return blobs
