"""Convert weights from and to Caffe2's `LSTMWithAttention`."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from rnnscan._util.messages import listing, nearest
from rnnscan.attention import Additive, Coverage, Decoder, Dot, Mechanism, RecurrentAdditive, decoder
from rnnscan.interop.arrays import Tensor, concatenate, contiguous, split, to_host
from rnnscan.interop.caffe2_blobs import (
    LIBRARY,
    Blobs,
    cell_blobs,
    find_cell,
    find_kind,
    read_cell,
    shape_of,
    strip_scopes,
    with_scope,
)
from rnnscan.interop.nets import cell_of
from rnnscan.interop.tensors import as_arrays, check_concrete, check_names, reshape_by_size, to_jax


_QUERY = "weighted_decoder_hidden_state"
_KEYS = ("weighted_encoder_outputs_w", "weighted_encoder_outputs_b")
_DOT: Blobs = {"query_kernel": (f"{_QUERY}_w",), "bias": (f"{_QUERY}_b",)}
_REGULAR: Blobs = {
    "query_kernel": (f"{_QUERY}_w",),
    "key_kernel": _KEYS[:1],
    "bias": (f"{_QUERY}_b", _KEYS[1]),
    "score_kernel": ("attention_v",),
}
# The mechanism of each Caffe2 type, and the blobs of its parameters, which are added as for a cell.
_TYPES: dict[str, tuple[type[Mechanism], Blobs]] = {
    "Regular": (Additive, _REGULAR),
    "Recurrent": (
        RecurrentAdditive,
        _REGULAR
        | {
            "bias": (*_REGULAR["bias"], "weighted_prev_attention_context_b"),
            "context_kernel": ("weighted_prev_attention_context_w",),
        },
    ),
    "Dot": (Dot, _DOT),
    "SoftCoverage": (
        Coverage,
        _REGULAR | {"coverage_kernel": ("coverage_weights_w",), "coverage_bias": ("coverage_weights_b",)},
    ),
}
# The documented shapes of blobs that are not (E, E), or a bias (E,).
_SHAPES = {"attention_v": ("1", "E"), f"{_QUERY}_w": ("E", "H")}
_LAYOUT = "outputs in rows"


def from_caffe2_attention(
    blobs: Mapping[str, Any], attention_type: str = "Regular", *, forget_bias: float = 0.0
) -> tuple[Decoder, Any]:
    """Make a decoder from the weights of a Caffe2 `LSTMWithAttention`.

    Caffe2 concatenates the context with the hidden state, and rnnscan with the input. The results are equal: the
    context's columns of `gates_t_w` become the last rows of the kernel. Biases inside the same tanh are added.

    Args:
        blobs: the blobs by name, with or without scopes, of any shape with the right number of elements:

            - the cell has `"i2h_w"` `(4H, D)`, `"i2h_b"` `(4H,)`, `"gates_t_w"` `(4H, H+E)` and `"gates_t_b"` `(4H,)`.
              A `LayerNormLSTMCell` adds `"gates_t_norm_scale"` and `"gates_t_norm_bias"` `(4H,)`;
            - all types but Dot have `"weighted_decoder_hidden_state_w"` `(E, H)` and `_b` `(E,)`. Dot has them only if
              H is not E;
            - all types but Dot have `"attention_v"` `(1, E)`, and may have `"weighted_encoder_outputs_w"` `(E, E)` and
              `_b` `(E,)`. Without them, give `decoder.over` the weighted encoder outputs as `keys`.
              `"attention_zeros"` is ignored;
            - Recurrent has `"weighted_prev_attention_context_w"` `(E, E)` and `_b` `(E,)`;
            - SoftCoverage has `"coverage_weights_w"` `(E, E)` and `_b` `(E,)`.
        attention_type: the name in Caffe2's `AttentionType`: "Regular", "Recurrent", "Dot" or "SoftCoverage".
        forget_bias: the `forget_bias` of the Caffe2 cell. Caffe2 adds it at run time; rnnscan adds it to the bias.

    Returns:
        The decoder, of `rnnscan.attention.decoder`, and its parameters. In padding, `rnnscan.scan` holds the context
        and the coverage, while Caffe2 updates them.

    Raises:
        ValueError: if the type is unknown, or a blob is missing, unknown, given twice, of another size or of a MILSTM.
        TypeError: if one is not a tensor of a floating dtype.

    Example:
        >>> import numpy as np
        >>> from rnnscan.interop import from_caffe2_attention
        >>> shapes = {"decoder/i2h_w": (16, 3), "decoder/i2h_b": (16,)}
        >>> shapes |= {"decoder/gates_t_w": (16, 10), "decoder/gates_t_b": (16,)}
        >>> shapes |= {"weighted_decoder_hidden_state_w": (6, 4), "weighted_decoder_hidden_state_b": (6,)}
        >>> blobs = {f"attention/{name}": np.ones(shape, np.float32) for name, shape in shapes.items()}
        >>> from_caffe2_attention(blobs, "Dot")[0]
        Decoder(cell=LSTM(hidden_size=4), attention=Dot(encoder_size=6, project_query=True))

    Source: Caffe2's `rnn_cell.py`, `AttentionCell` and `LSTMWithAttentionCell`, and `attention.py`.
    """
    function = "from_caffe2_attention"
    mechanism_type, names = _find_type(attention_type)
    arrays = strip_scopes(function, as_arrays(function, blobs))
    kind = find_kind(arrays)
    if kind.endswith("MILSTM"):
        raise ValueError(
            f"{function}: the cell must be an LSTM or a LayerNormLSTM; got the blobs of a MILSTM. Caffe2 multiplies "
            "the context of a MILSTM by its input, and no weights of a decoder do the same."
        )
    _check_names(attention_type, kind, names, arrays)
    sizes = {"H": max(1, arrays["i2h_b"].size // 4)}
    sizes["E"] = next((arrays[name].size for name in ("attention_v", f"{_QUERY}_b") if name in arrays), sizes["H"])
    sizes["H+E"] = sizes["H"] + sizes["E"]
    cell_params = read_cell(function, kind, arrays, sizes, forget_bias=forget_bias, context="+E")
    of_hidden, of_context = split(cell_params["recurrent_kernel"], [sizes["H"]])
    kernel = concatenate([cell_params["kernel"], of_context])
    cell_params |= {"kernel": kernel, "recurrent_kernel": of_hidden}
    params = to_jax({"cell": cell_params, "attention": _read_mechanism(function, names, arrays, sizes)})
    mechanism = _make_mechanism(mechanism_type, sizes["E"], params)
    return decoder(find_cell(kind, params["cell"]), mechanism), params


def to_caffe2_attention(decoder: Decoder, params: Any, *, scope: str | None = None) -> dict[str, np.ndarray]:
    """Convert the weights of a decoder to those of a Caffe2 `LSTMWithAttention`, for a `forget_bias` of 0.

    Of the biases that Caffe2 adds, the first is rnnscan's, and the others are zero. `from_caffe2_attention` restores
    rnnscan's parameters exactly.

    Args:
        decoder: a decoder of `rnnscan.attention.decoder`. Its cell is an `LSTM`, or a `LayerNormLSTM` with Caffe2's
            `epsilon=1e-4`. Its mechanism is `Additive` ("Regular"), `RecurrentAdditive` ("Recurrent") or `Coverage`
            ("SoftCoverage") of the encoder's size, or `Dot` without a scale, which projects the query if H is not E.
        params: its parameters.
        scope: the scope of the blobs.

    Returns:
        The blobs by name, as numpy arrays. Those of the cell have the scope `"decoder"`, as in Caffe2.

    Raises:
        TypeError: if `decoder` is not a decoder, or the parameters are traced.
        ValueError: if Caffe2 has no such decoder, or the parameters do not fit it.

    Example:
        >>> import jax
        >>> import rnnscan as rs
        >>> from rnnscan.interop import to_caffe2_attention
        >>> decoder = rs.attention.decoder(rs.cells.LSTM(4), rs.attention.Dot(encoder_size=4))
        >>> blobs = to_caffe2_attention(decoder, decoder.init(jax.random.key(0), input_size=3), scope="lstm")
        >>> {name: blob.shape for name, blob in blobs.items() if name.endswith("_w")}
        {'lstm/decoder/i2h_w': (16, 3), 'lstm/decoder/gates_t_w': (16, 8)}
    """
    function = "to_caffe2_attention"
    if not isinstance(decoder, Decoder):
        raise TypeError(
            f"{function}: the decoder must be one of rnnscan.attention.decoder; got {type(decoder).__name__}. "
            "Give the decoder itself, not the cell that decoder.over makes."
        )
    names = _blobs_of(function, decoder)
    decoder.check_params(params)
    kind, cell, cell_params = cell_of(function, LIBRARY, decoder.cell, params["cell"])
    if kind.endswith("MILSTM"):
        raise ValueError(
            f"{function}: the cell must be an LSTM or a LayerNormLSTM; got {cell!r}. Caffe2 multiplies the context of "
            "a MILSTM by its input."
        )
    kernel, of_context = split(to_host(cell_params["kernel"]), [-decoder.attention.context_size])
    of_hidden = concatenate([to_host(cell_params["recurrent_kernel"]), of_context])
    cell_params = cell_params | {"kernel": kernel, "recurrent_kernel": of_hidden}
    blobs = with_scope("decoder", cell_blobs(function, kind, cell, cell_params))
    blobs |= _mechanism_blobs(names, decoder.attention, params["attention"])
    return check_concrete(function, with_scope(scope, blobs))


def _find_type(attention_type: str) -> tuple[type[Mechanism], Blobs]:
    if attention_type not in _TYPES:
        raise ValueError(
            f"from_caffe2_attention: `attention_type` must be one of {listing(_TYPES)}; got {attention_type!r}."
            f"{nearest(str(attention_type), _TYPES)}"
        )
    return _TYPES[attention_type]


def _check_names(attention_type: str, kind: str, names: Blobs, arrays: Mapping[str, Tensor]) -> None:
    mechanism = [blob for blobs in names.values() for blob in blobs]
    # Keys may come from the caller. A Dot projects its query only if H is not E.
    together = list(_DOT["query_kernel"] + _DOT["bias"]) if attention_type == "Dot" else list(_KEYS)
    wanted = together if any(name in arrays for name in together) else []
    expected = [*shape_of(kind), *wanted, *(name for name in mechanism if name not in together)]
    optional = [name for name in together if name not in wanted]
    if attention_type != "Dot":
        optional.append("attention_zeros")
    check_names("from_caffe2_attention", f"Caffe2's {attention_type} attention", arrays, expected, optional)


def _read_mechanism(
    function: str, names: Blobs, arrays: Mapping[str, Tensor], sizes: Mapping[str, int]
) -> dict[str, Tensor]:
    params: dict[str, Tensor] = {}
    for param, blobs in names.items():
        summands = [
            reshape_by_size(function, LIBRARY, name, arrays[name], _shape_of(name), sizes, _LAYOUT)
            for name in blobs
            if name in arrays
        ]
        if summands:
            params[param] = sum(summands[1:], start=summands[0]).T
    if "score_kernel" in params:
        params["score_kernel"] = params["score_kernel"][:, 0]
    return {param: contiguous(array) for param, array in params.items()}


def _shape_of(blob: str) -> tuple[str, ...]:
    return _SHAPES.get(blob, ("E",) if blob.endswith("_b") else ("E", "E"))


def _make_mechanism(mechanism_type: type[Mechanism], size: int, params: Mapping[str, Any]) -> Mechanism:
    of_attention = params["attention"]
    dtype = params["cell"]["kernel"].dtype
    if mechanism_type is Dot:
        return Dot(size, project_query="query_kernel" in of_attention, param_dtype=dtype)
    assert issubclass(mechanism_type, Additive)
    return mechanism_type(size, size, project_keys="key_kernel" in of_attention, param_dtype=dtype)


def _blobs_of(function: str, decoder: Decoder) -> Blobs:
    """The names of the blobs of a decoder's mechanism.

    Raises:
        ValueError: if Caffe2 has no such mechanism.
    """
    mechanism, query_size = decoder.attention, decoder.cell.output_size
    names = next((names for kind, names in _TYPES.values() if type(mechanism) is kind), None)
    if names is None:
        kinds = [kind.__name__ for kind, _ in _TYPES.values()]
        raise ValueError(f"{function}: Caffe2 has attention of the kinds {listing(kinds)}; got {mechanism!r}.")
    size = mechanism.encoder_size
    if isinstance(mechanism, Dot):
        if mechanism.scale:
            raise ValueError(f"{function}: Caffe2's Dot has no scale; got {mechanism!r}. Make it with scale=False.")
        if mechanism.project_query != (query_size != size):
            raise ValueError(
                f"{function}: Caffe2's Dot projects its query only if H is not E; got {mechanism!r} for "
                f"H={query_size}. Make it with project_query={query_size != size}."
            )
        return names if mechanism.project_query else {}
    if mechanism.key_size != size:
        raise ValueError(
            f"{function}: Caffe2's keys are as large as the encoder's outputs; got {mechanism!r}. "
            f"Make it with attention_size={size}."
        )
    return names


def _mechanism_blobs(names: Blobs, mechanism: Mechanism, params: Mapping[str, Any]) -> dict[str, Tensor]:
    zeros = np.zeros(mechanism.encoder_size, mechanism.param_dtype)
    blobs: dict[str, Tensor] = {}
    for param, sources in names.items():
        if param == "key_kernel" and param not in params:
            continue
        for name in sources:
            if name == _KEYS[1] and "key_kernel" not in params:
                continue
            array = to_host(params[param]) if param in params and name == sources[0] else zeros
            blobs[name] = contiguous(array[None] if name == "attention_v" else array.T)
    return blobs
