"""Convert weights from and to Caffe2's LSTM cells, as blobs or by gate."""

from collections.abc import Mapping
from typing import Any

from rnnscan._util.messages import describe, listing
from rnnscan.cells import LSTM
from rnnscan.interop.arrays import Tensor, concatenate, split, to_host
from rnnscan.interop.caffe2_blobs import (
    LIBRARY,
    MECHANISM_BLOBS,
    cell_blobs,
    find_cell,
    find_kind,
    read_cell,
    shape_of,
    strip_scopes,
    with_scope,
)
from rnnscan.interop.nets import CellWeights, cells_of, check_cell_params, make_net, only_layer
from rnnscan.interop.tensors import as_arrays, check_concrete, check_names, reshape_by_size, to_jax


# In Caffe2's order, i f o g.
_GATES = ("input_gate", "forget_gate", "output_gate", "cell")
_BY_GATE = "one tensor for each gate, units in rows"
# The two sources of `InitFromLSTMParams`: their blobs of weights and biases, and the columns of the weights.
_SOURCES = {"input": ("i2h_w", "i2h_b", "D"), "recurrent": ("gates_t_w", "gates_t_b", "H")}


def from_caffe2(
    param_values: Mapping[str, Any], *, forget_bias: float = 0.0, into: Mapping[str, Any] | None = None
) -> tuple[Any, Any]:
    """Make a net from the weights of a Caffe2 `LSTM`, `LayerNormLSTM`, `MILSTM` or `LayerNormMILSTM`.

    The names of the blobs determine the cell. An array may have any shape with the right number of elements; they are
    read row by row, as in `InitFromLSTMParams`. Biases that Caffe2 adds to each other are added.

    Args:
        param_values: the blobs, with or without a scope before their names:

            - an LSTM has `"i2h_w"` `(4H, D)`, `"i2h_b"` `(4H,)`, `"gates_t_w"` `(4H, H)` and `"gates_t_b"` `(4H,)`,
              with the gates i, f, o, g in rows;
            - a MILSTM has `"prev_t_w"` and `"prev_t_b"` instead of the last two, and `"alpha"`, `"beta1"`, `"beta2"`
              and `"b"` `(4H,)`;
            - a layer norm adds `"gates_t_norm_scale"` and `"gates_t_norm_bias"` `(4H,)`.

            Or the weights of an LSTM by gate, as in `InitFromLSTMParams`: `{"input": {...}, "recurrent": {...}}`, each
            with `"input_gate_w"`, `"forget_gate_w"`, `"output_gate_w"` and `"cell_w"`, `(H, D)` or `(H, H)`, and the
            biases `"input_gate_b"`, ..., `(H,)`.

            In either form, only the input weights or only the recurrent weights of an LSTM may be given.
        forget_bias: the `forget_bias` of the Caffe2 cell. Caffe2 adds it at run time; rnnscan adds it to the bias.
        into: parameters of an `rnnscan.cells.LSTM`, to complete input or recurrent weights. The input weights replace
            its bias. The bias of the recurrent weights is added to it.

    Returns:
        The net, a `layer`, and its parameters. Input or recurrent weights without `into` give only their own
        parameters, `"kernel"` or `"recurrent_kernel"` and `"bias"`, with which the net cannot run.

    Raises:
        ValueError: if a blob is missing, unknown, given twice or of another size.
        TypeError: if one is not a tensor of a floating dtype.

    Example:
        >>> import numpy as np
        >>> from rnnscan.interop import from_caffe2
        >>> shapes = {"i2h_w": (16, 3), "i2h_b": (16,), "gates_t_w": (16, 4), "gates_t_b": (16,)}
        >>> blobs = {f"lstm/{name}": np.ones(shape, np.float32) for name, shape in shapes.items()}
        >>> net, params = from_caffe2(blobs, forget_bias=1.0)
        >>> net, params["kernel"].shape
        (Layer(cell=LSTM(hidden_size=4), reverse=False), (3, 16))

    Source: Caffe2's `rnn_cell.py`: `LSTMCell`, `LayerNormLSTMCell`, `MILSTMCell`, `LayerNormMILSTMCell`,
    `GetLSTMParamNames`, `InitFromLSTMParams`.
    """
    sizes = {} if into is None else _sizes_of(into)
    blobs = _fuse(param_values, sizes)
    kind = find_kind(blobs)
    _check_blobs(kind, blobs)
    alone = next((source for source, names in _SOURCES.items() if kind == "LSTM" and {*blobs} == {*names[:2]}), None)
    if alone == "recurrent" and forget_bias:
        raise ValueError(
            f"from_caffe2: `forget_bias` is added with the 'input' weights; got forget_bias={forget_bias} and only "
            "'recurrent'. Leave it out: the bias of `into` holds it."
        )
    if alone is None and into is not None:
        raise ValueError(
            f"from_caffe2: `into` completes only 'input' or only 'recurrent'; got both, of {kind}. Leave `into` out."
        )
    params = read_cell("from_caffe2", kind, blobs, sizes, forget_bias=forget_bias)
    if into is not None:
        kept = {name: to_host(leaf) for name, leaf in into.items()}
        if alone == "recurrent" and "bias" in kept:
            params["bias"] = kept["bias"] + params["bias"]
        params = kept | params
    params = to_jax(params)
    return make_net([[CellWeights(kind, find_cell(kind, params), params)]])


def to_caffe2(net: Any, params: Any, *, fused: bool = False, scope: str | None = None) -> dict[str, Any]:
    """Convert the weights of a net to those of a Caffe2 cell, for a `forget_bias` of 0.

    Of the biases that Caffe2 adds, the first is rnnscan's, and the others are zero. `from_caffe2` restores rnnscan's
    parameters exactly.

    Args:
        net: a layer of `LSTM`, `LayerNormLSTM`, `MILSTM` or `LayerNormMILSTM`. A layer norm must have Caffe2's
            `epsilon=1e-4`.
        params: its parameters.
        fused: whether to return the blobs of an LSTM instead of its weights by gate. The other cells have only blobs.
        scope: the scope of the blobs, as in `"lstm/i2h_w"`.

    Returns:
        Numpy arrays in the form that `from_caffe2` takes: blobs by name, or `{"input": {...}, "recurrent": {...}}`.

    Raises:
        TypeError: if the net is of another kind, or the parameters are traced.
        ValueError: if Caffe2 has no such net, or the parameters do not fit the net.

    Example:
        >>> import jax
        >>> import rnnscan as rs
        >>> from rnnscan.interop import to_caffe2
        >>> net = rs.layer(rs.cells.LSTM(4))
        >>> params = net.init(jax.random.key(0), input_size=3)
        >>> to_caffe2(net, params)["input"]["cell_w"].shape
        (4, 3)
        >>> list(to_caffe2(net, params, fused=True, scope="lstm"))
        ['lstm/i2h_w', 'lstm/gates_t_w', 'lstm/i2h_b', 'lstm/gates_t_b']
    """
    (weights,) = only_layer("to_caffe2", LIBRARY, cells_of("to_caffe2", LIBRARY, net, params, merges=()))
    blobs = check_concrete("to_caffe2", cell_blobs("to_caffe2", *weights))
    if fused or weights.kind != "LSTM":
        return with_scope(scope, blobs)
    if scope is not None:
        raise ValueError(
            f"to_caffe2: `scope` is the scope of blobs; got scope={scope!r} for weights by gate. Give fused=True."
        )
    return {
        source: {
            f"{gate}_{suffix}": block
            for blob, suffix in ((kernel, "w"), (bias, "b"))
            for gate, block in zip(_GATES, split(blobs[blob], 4), strict=True)
        }
        for source, (kernel, bias, _) in _SOURCES.items()
    }


def _fuse(param_values: Any, sizes: dict[str, int]) -> dict[str, Tensor]:
    """Convert blobs, or weights by gate, to blobs by name."""
    if not isinstance(param_values, Mapping):
        raise TypeError(f"from_caffe2: the weights must be a dictionary by name; got {describe(param_values)}.")
    if not any(isinstance(value, Mapping) for value in param_values.values()):
        return strip_scopes("from_caffe2", as_arrays("from_caffe2", param_values))
    if not set(param_values) <= set(_SOURCES):
        raise ValueError(
            f"from_caffe2: weights by gate must be those of {listing(_SOURCES)}, or of one of the two; got "
            f"{listing(param_values)}. Give blobs without nested dictionaries."
        )
    sizes = dict(sizes)
    blobs: dict[str, Tensor] = {}
    for source, gates in param_values.items():
        weights, bias, columns = _SOURCES[source]
        arrays = as_arrays("from_caffe2", gates)
        names = {f"{gate}_{suffix}": suffix for suffix in "bw" for gate in _GATES}
        check_names("from_caffe2", f"Caffe2's {source!r} of an LSTM", arrays, names)
        sizes.setdefault("H", arrays["input_gate_b"].size)
        for name, suffix in names.items():
            shape = ("H",) if suffix == "b" else ("H", columns)
            place = f"{source}/{name}"
            arrays[name] = reshape_by_size("from_caffe2", LIBRARY, place, arrays[name], shape, sizes, _BY_GATE)
            if suffix == "w":
                sizes[columns] = arrays[name].shape[1]
        blobs[weights] = concatenate([arrays[f"{gate}_w"] for gate in _GATES])
        blobs[bias] = concatenate([arrays[f"{gate}_b"] for gate in _GATES])
    return blobs


def _check_blobs(kind: str, blobs: Mapping[str, Tensor]) -> None:
    """Check for missing and unknown blobs. An LSTM may have only input or only recurrent weights."""
    unexpected = [name for name in MECHANISM_BLOBS if name in blobs]
    if unexpected:
        raise ValueError(
            f"from_caffe2: the blobs must be those of a cell; got {listing(unexpected)} of an attention mechanism. "
            "Use from_caffe2_attention."
        )
    expected = list(shape_of(kind))
    if kind == "LSTM":
        sources = [names[:2] for names in _SOURCES.values() if any(name in blobs for name in names[:2])]
        expected = [name for names in sources for name in names] or expected
    check_names("from_caffe2", f"Caffe2's {kind}", blobs, expected)


def _sizes_of(into: Any) -> dict[str, int]:
    """H and D of an LSTM's parameters."""
    kernel: Any = into.get("recurrent_kernel") if isinstance(into, Mapping) else None
    units = kernel.shape[0] if getattr(kernel, "ndim", 0) == 2 else 1
    check_cell_params(LSTM(units, use_bias=not isinstance(into, Mapping) or "bias" in into), into)
    return {"H": units, "D": into["kernel"].shape[0]}
