"""Weights from and to Caffe2's LSTM cells: by gate, as `InitFromLSTMParams` takes them, or as the blobs of the cell."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from rnnscan._messages import describe, listing
from rnnscan.cells import LSTM
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
from rnnscan.interop.nets import Part, check_cell_params, make_net, one_layer, parts_of
from rnnscan.interop.tensors import as_arrays, check_names, reshape_by_size, to_jax


# In Caffe2's order, i f o g.
_GATES = ("input_gate", "forget_gate", "output_gate", "cell")
_BY_GATE = "one tensor for each gate, units in rows"
# The blobs of each of `InitFromLSTMParams`'s two parts, weights first, and the columns of the weights.
_PARTS = {"input": ("i2h_w", "i2h_b", "D"), "recurrent": ("gates_t_w", "gates_t_b", "H")}


def from_caffe2(
    param_values: Mapping[str, Any], *, forget_bias: float = 0.0, into: Mapping[str, Any] | None = None
) -> tuple[Any, Any]:
    """Make a net of the weights of a Caffe2 `LSTM`, `LayerNormLSTM`, `MILSTM` or `LayerNormMILSTM`.

    The weights are the blobs of the cell, or those of an LSTM by gate, as `InitFromLSTMParams` takes them. The names
    decide the cell. An array may have any shape with the right number of elements, which are read row by row, as
    `InitFromLSTMParams` reads them. Biases that Caffe2 only ever adds become their sum.

    Args:
        param_values: the blobs, with or without a scope before their names:

            - of an LSTM `"i2h_w"` `(4H, D)`, `"i2h_b"` `(4H,)`, `"gates_t_w"` `(4H, H)` and `"gates_t_b"` `(4H,)`, with
              the gates i, f, o, g in rows;
            - of a MILSTM `"prev_t_w"` and `"prev_t_b"` in place of the last two, and `"alpha"`, `"beta1"`, `"beta2"`
              and `"b"` `(4H,)`;
            - with a layer norm `"gates_t_norm_scale"` and `"gates_t_norm_bias"` `(4H,)` too.

            Or `{"input": {...}, "recurrent": {...}}`, each with `"input_gate_w"`, `"forget_gate_w"`, `"output_gate_w"`
            and `"cell_w"`, `(H, D)` or `(H, H)`, and the biases `"input_gate_b"`, ..., `(H,)`.

            An LSTM's `"input"` or `"recurrent"` part may stand alone, in either form.
        forget_bias: the `forget_bias` of the Caffe2 cell. Caffe2 adds it at run time; here it is added to the bias.
        into: parameters of an `rnnscan.cells.LSTM` that a part alone is put into. Its bias counts as the input's: the
            `"input"` part replaces it, and the `"recurrent"` part is added to it.

    Returns:
        The net, a `layer`, and its parameters. A part alone without `into` gives its own parameters only: `"kernel"` or
        `"recurrent_kernel"`, and the part's `"bias"`. The net refuses to run with them.

    Raises:
        ValueError: if a blob is missing, unknown, given twice or of another size.
        TypeError: if one is no tensor of a floating dtype.

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
    alone = next((part for part, names in _PARTS.items() if kind == "LSTM" and {*blobs} == {*names[:2]}), None)
    if alone == "recurrent" and forget_bias:
        raise ValueError(
            f"from_caffe2: `forget_bias` is added with the 'input' part; got forget_bias={forget_bias} and 'recurrent' "
            "alone. Leave it out: the bias of `into` holds it."
        )
    if alone is None and into is not None:
        raise ValueError(
            f"from_caffe2: `into` completes 'input' or 'recurrent' alone; got all of {kind}. Leave `into` out."
        )
    params = read_cell("from_caffe2", kind, blobs, sizes, forget_bias=forget_bias)
    if into is not None:
        kept = {name: np.asarray(leaf) for name, leaf in into.items()}
        if alone == "recurrent" and "bias" in kept:
            params["bias"] = kept["bias"] + params["bias"]
        params = kept | params
    params = to_jax(params)
    return make_net([[Part(kind, find_cell(kind, params), params)]])


def to_caffe2(net: Any, params: Any, *, fused: bool = False, scope: str | None = None) -> dict[str, Any]:
    """The weights of a net as those of a Caffe2 LSTM, for a `forget_bias` of 0.

    Of the biases that Caffe2 adds, the first is rnnscan's and the others are zero; without biases all are zero. So
    rnnscan's parameters come back exactly by `from_caffe2`, and Caffe2's own biases come back as their sums.

    Args:
        net: a layer of `LSTM`, `LayerNormLSTM`, `MILSTM` or `LayerNormMILSTM`. A layer norm has Caffe2's
            `epsilon=1e-4`.
        params: its parameters.
        fused: whether to return an LSTM's blobs, and not its weights by gate. The other cells have blobs only.
        scope: what stands before the names of blobs, as in `"lstm/i2h_w"`.

    Returns:
        By gate `{"input": {...}, "recurrent": {...}}`, or the blobs by name, arrays of numpy as `from_caffe2` takes
        them.

    Raises:
        TypeError: if the net is of another form.
        ValueError: if Caffe2 has no such net, or the parameters are not those of the net.

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
    (part,) = one_layer("to_caffe2", LIBRARY, parts_of("to_caffe2", LIBRARY, net, params, merges=()))
    blobs = cell_blobs("to_caffe2", part.kind, part.cell, part.params)
    if fused or part.kind != "LSTM":
        return with_scope(scope, blobs)
    if scope is not None:
        raise ValueError(
            f"to_caffe2: `scope` stands before the names of blobs; got scope={scope!r} for weights by gate. "
            "Give fused=True."
        )
    return {
        source: {
            f"{gate}_{suffix}": block
            for blob, suffix in ((weights, "w"), (bias, "b"))
            for gate, block in zip(_GATES, np.split(blobs[blob], 4), strict=True)
        }
        for source, (weights, bias, _) in _PARTS.items()
    }


def _fuse(param_values: Any, sizes: dict[str, int]) -> dict[str, np.ndarray]:
    """The blobs by name, of blobs or of weights by gate."""
    if not isinstance(param_values, Mapping):
        raise TypeError(f"from_caffe2: the weights must be a dictionary by name; got {describe(param_values)}.")
    if not any(isinstance(value, Mapping) for value in param_values.values()):
        return strip_scopes("from_caffe2", as_arrays("from_caffe2", param_values))
    if not set(param_values) <= set(_PARTS):
        raise ValueError(
            f"from_caffe2: weights by gate must be those of {listing(_PARTS)}, or of one of the two; got "
            f"{listing(param_values)}. Give blobs without dictionaries within."
        )
    sizes = dict(sizes)
    blobs: dict[str, np.ndarray] = {}
    for source, gates in param_values.items():
        weights, bias, columns = _PARTS[source]
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
        blobs[weights] = np.concatenate([arrays[f"{gate}_w"] for gate in _GATES])
        blobs[bias] = np.concatenate([arrays[f"{gate}_b"] for gate in _GATES])
    return blobs


def _check_blobs(kind: str, blobs: Mapping[str, np.ndarray]) -> None:
    """Refuse missing and unknown blobs. A part of an LSTM may stand alone."""
    unexpected = [name for name in MECHANISM_BLOBS if name in blobs]
    if unexpected:
        raise ValueError(
            f"from_caffe2: the blobs must be those of a cell; got {listing(unexpected)} of its attention. "
            "Use from_caffe2_attention."
        )
    expected = list(shape_of(kind))
    if kind == "LSTM":
        begun = [names[:2] for names in _PARTS.values() if any(name in blobs for name in names[:2])]
        expected = [name for names in begun for name in names] or expected
    check_names("from_caffe2", f"Caffe2's {kind}", blobs, expected)


def _sizes_of(into: Any) -> dict[str, int]:
    """H and D of an LSTM's parameters."""
    kernel: Any = into.get("recurrent_kernel") if isinstance(into, Mapping) else None
    units = kernel.shape[0] if getattr(kernel, "ndim", 0) == 2 else 1
    check_cell_params(LSTM(units, use_bias=not isinstance(into, Mapping) or "bias" in into), into)
    return {"H": units, "D": into["kernel"].shape[0]}
