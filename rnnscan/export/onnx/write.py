"""Write a net or a function as one ONNX file."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from rnnscan._util.messages import is_count
from rnnscan.export.common import files
from rnnscan.export.common.extras import import_extra
from rnnscan.export.common.named_inputs import by_name
from rnnscan.export.common.symbols import Axes, check_array, symbolic_types
from rnnscan.export.onnx.builder import Builder, NoOperatorError, Port, Value
from rnnscan.export.onnx.functions import find_jax2onnx, function_model
from rnnscan.export.onnx.names import carry_names, leaf_names, ports
from rnnscan.export.onnx.nets import Part, add_net, check_net
from rnnscan.memory import never_differentiated
from rnnscan.nets.base import Net


_NAME = "export.to_onnx"
# The oldest opset that is supported: that of today's `LSTM`, `GRU` and `RNN`, apart from bfloat16.
_OLDEST = 14
# The limit of a protobuf message.
_LARGEST = (1 << 31) - 1


def to_onnx(
    path: str | Path,
    net: Callable[..., Any],
    params: Any,
    inputs: Sequence[Any] | Mapping[str, Any],
    *,
    opset: int = 20,
    dynamic: Axes = ("T", "N"),
) -> None:
    """Write a net, or any function `net(params, *inputs)`, as one ONNX file with its parameters.

    A net of `LSTM`, `GRU` and `RNN` becomes ONNX's operators of these names, for which runtimes have fast kernels:
    `layer` in both directions, `bidirectional`, `chain`, `stack`, `residual` and `dropout` (which is off), with the
    inputs `xs`, `seq_lengths` and `carry`. The operators hold every option of these cells but `proj_size`, `cell_clip`,
    activations that ONNX lacks, and computing in another dtype than the carry's. Coupled gates need a sigmoid.

    All else is converted operation by operation if the package jax2onnx is installed, and is an error otherwise.

    The graph's inputs have the names of the arguments, and a net's initial carry `initial_` and the names of its parts:
    `initial_hidden`, `initial_net_0_forward_cell`. A net's outputs are `ys` and its last carry, `last_hidden` and so
    on; those of a function `output`, or `output_` and the place in the result. The file is checked by `onnx.checker`
    before it takes the place of an old one, in one step.

    Args:
        path: the file.
        net: a net, or any function of `params` and the inputs that returns arrays in any pytree.
        params: the parameters, any pytree of arrays.
        inputs: an example of each input, or its `jax.ShapeDtypeStruct`, in the order of the arguments. A dictionary has
            them by the names of the arguments, such as `{"xs": xs, "seq_lengths": lengths}`.
        opset: the version of ONNX's operators, at least 14, and 22 for bfloat16.
        dynamic: the names of the leading axes of each input, whose sizes may change between runs. None is a fixed axis.
            For a net they are those of `xs`, time and batch, and lengths and carry have the second. For a function with
            inputs of different axes pass a dictionary: `{"xs": ("T", "N"), "scale": ("N",)}`.

    Raises:
        TypeError: if a parameter or input is not an array.
        ValueError: if ONNX cannot hold the net, with the part and the reason, or an argument has a wrong value.
        IsADirectoryError: if the path is a folder.
        ImportError: if onnx is not installed.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import onnx
        >>> import rnnscan as rs
        >>> net = rs.bidirectional(rs.cells.GRU(4))
        >>> params = net.init(jax.random.key(0), input_size=3)
        >>> inputs = {"xs": jnp.ones((5, 2, 3)), "seq_lengths": jnp.array([5, 3])}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     rs.export.to_onnx(Path(folder) / "net.onnx", net, params, inputs)
        ...     graph = onnx.load(Path(folder) / "net.onnx").graph
        >>> [one.name for one in graph.input], [one.name for one in graph.output]
        (['xs', 'seq_lengths'], ['ys', 'last_forward_hidden', 'last_backward_hidden'])
        >>> sum(node.op_type == "GRU" for node in graph.node)
        1

    Source: the operators of https://onnx.ai/onnx/operators/onnx__LSTM.html, onnx__GRU.html and onnx__RNN.html.
    """
    target = Path(path)
    if target.is_dir():
        raise IsADirectoryError(f"{_NAME}: the path must be a file; got the folder {str(path)!r}. Add a file name.")
    onnx = import_extra("onnx", "onnx")
    newest = onnx.defs.onnx_opset_version()
    if not is_count(opset, _OLDEST) or opset > newest:
        raise ValueError(
            f"{_NAME}: `opset` must be a number from {_OLDEST} to {newest}, the newest of onnx {onnx.__version__}; got "
            f"{opset!r}."
        )
    examples, called = by_name(net, inputs, _NAME)
    if isinstance(net, Net):
        called = _outputs_first(called)
    types = symbolic_types(examples, _axes(net, examples, dynamic), _NAME)
    for place_of, leaf in jax.tree_util.tree_leaves_with_path(params):
        check_array(leaf, f"`params{jax.tree_util.keystr(place_of)}`", _NAME)
    _check_size(params)
    with never_differentiated():
        outputs = jax.eval_shape(called, _types_of(params), *types.values())
        model = _model(net, called, params, types, outputs, opset)
    _check_model(onnx, model)
    files.write_file(target, model.SerializeToString())


def _model(net: Any, called: Any, params: Any, types: dict[str, Any], outputs: Any, opset: int) -> Any:
    input_ports = ports(_input_names(net, types), list(types.values()))
    output_ports = ports(_output_names(net, outputs), outputs, taken=input_ports)
    try:
        _check_net(net, types)
        return _net_model(net, params, types, input_ports, output_ports, opset)
    except NoOperatorError as error:
        jax2onnx = find_jax2onnx()
        if jax2onnx is None:
            raise ValueError(
                f"{_NAME}: the net must be one that ONNX's LSTM, GRU and RNN hold; got {net!r}: {error}. To convert it "
                'operation by operation, run pip install ".[onnx-functions]" in the checkout of rnnscan.'
            ) from error
        return function_model(jax2onnx, called, params, list(types.values()), input_ports, output_ports, opset)


def _net_model(
    net: Any, params: Any, types: dict[str, Any], inputs: list[Port], outputs: list[Port], opset: int
) -> Any:
    builder = Builder(opset)
    builder.reserve([*inputs, *outputs])
    values = [Value(port.name, np.dtype(port.spec.dtype)) for port in inputs]
    structure: Any = jax.tree.structure(list(types.values()))
    of_input = dict(zip(types, jax.tree.unflatten(structure, values), strict=True))
    part = Part(net, params, of_input.get("carry"))
    carry, ys = add_net(builder, part, of_input["xs"], of_input.get("seq_lengths"))
    return builder.model(inputs, list(zip(outputs, [ys, *jax.tree.leaves(carry)], strict=True)))


def _check_net(net: Any, types: dict[str, Any]) -> None:
    """Check that ONNX's recurrent operators hold the net with these inputs.

    Raises:
        NoOperatorError: if they do not.
    """
    if not isinstance(net, Net):
        raise NoOperatorError("a function is not a net")
    for name in types:
        if name not in ("xs", "seq_lengths", "carry"):
            raise NoOperatorError(f"ONNX's recurrent operators have no input for {name!r}")
    check_net(net)
    if types["xs"].ndim != 3:
        raise NoOperatorError("ONNX's recurrent operators take inputs (T, N, D)")
    for leaf in jax.tree.leaves(types.get("carry")):
        if leaf.ndim != 2:
            raise NoOperatorError("ONNX's recurrent operators take states (N, H), not one state for all rows")


def _check_model(onnx: Any, model: Any) -> None:
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise ValueError(
            f"{_NAME}: onnx.checker must accept the file; it says: {error} ONNX's operators may lack a dtype, such as "
            "complex numbers. Cast in the function, or use rnnscan.export.save."
        ) from error


def _axes(net: Any, examples: dict[str, Any], dynamic: Axes) -> Axes:
    """The names of the axes by input. A net knows which of its inputs have a time axis."""
    if isinstance(dynamic, Mapping | str) or not isinstance(net, Net):
        return dynamic
    with_time = ("xs", "mask", "reset")
    return {name: dynamic if name in with_time else dynamic[1:2] for name in examples}


def _check_size(params: Any) -> None:
    size = sum(leaf.size * np.dtype(leaf.dtype).itemsize for leaf in jax.tree.leaves(params))
    if size > _LARGEST:
        raise ValueError(
            f"{_NAME}: an ONNX file must be smaller than 2 GiB; got parameters of {size} bytes. Convert them to a "
            "smaller dtype, or use rnnscan.export.save."
        )


def _outputs_first(called: Callable[..., Any]) -> Callable[..., Any]:
    """A net that returns its outputs before its carry, as ONNX's operators do."""

    def reordered(*arguments: Any) -> Any:
        carry, ys = called(*arguments)
        return ys, carry

    return reordered


def _types_of(params: Any) -> Any:
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jax.dtypes.canonicalize_dtype(leaf.dtype)), params
    )


def _input_names(net: Any, types: dict[str, Any]) -> list[Any]:
    names = {name: leaf_names(tree, name) for name, tree in types.items()}
    if isinstance(net, Net) and "carry" in types:
        names["carry"] = carry_names(net, types["carry"], "initial")
    return list(names.values())


def _output_names(net: Any, outputs: Any) -> Any:
    if not isinstance(net, Net):
        return leaf_names(outputs, "output")
    ys, carry = outputs
    return leaf_names(ys, "ys"), carry_names(net, carry, "last")
