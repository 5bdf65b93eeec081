"""Nets of LSTM, GRU and RNN as a graph of ONNX's own operators."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from rnnscan.compose import Dropout, Residual, Stack
from rnnscan.export.onnx.builder import Builder, NoOperatorError, Value
from rnnscan.export.onnx.operators import Lengths, Run, add_operator, check_cell, fit_one_operator
from rnnscan.nets import Bidirectional, Chain, Layer


class Part(NamedTuple):
    """A net or a cell within a net, with what it starts from.

    Attributes:
        net: the net or cell.
        params: its parameters.
        carry: its initial carry, of values; None: zeros.
        place: its place in the net, such as "net_0/forward".
    """

    net: Any
    params: Any
    carry: Any
    place: str = ""

    def inner(self, name: str, net: Any, number: int) -> "Part":
        """The part for one of several sub-nets or cells."""
        carry = None if self.carry is None else self.carry[number]
        return Part(net, self.params[name], carry, f"{self.place}/{name}" if self.place else name)

    def inside(self) -> "Part":
        """The part for the only cell in a layer or wrapper."""
        return self._replace(net=self.net.cell)


def check_net(net: Any) -> None:
    """Check that ONNX's operators hold a net or a cell.

    Raises:
        NoOperatorError: if they do not.
    """
    kind = type(net)  # A subclass may compute anything.
    if kind in (Layer, Dropout, Residual):
        check_net(net.cell)
    elif kind in (Chain, Stack):
        for part in net.nets if kind is Chain else net.cells:
            check_net(part)
    elif kind is Bidirectional:
        if net.merge not in ("concat", "sum", "mean", "product"):
            raise NoOperatorError(f"ONNX has no operator for the function merge={net.merge!r} of {net!r}")
        check_net(net.forward)
        check_net(net.backward)
    else:
        check_cell(net)


def add_net(builder: Builder, part: Part, xs: Value, seq_lengths: Value | None) -> tuple[Any, Value]:
    """Add all operators of a net.

    Args:
        builder: the graph.
        part: the net.
        xs: the inputs `(T, N, D)`.
        seq_lengths: the lengths `(N,)`, or None.

    Returns:
        The last carry, in the structure of the net's carry, and the outputs `(T, N, ...)`.

    Raises:
        NoOperatorError: if a cell computes in several dtypes.
    """
    lengths = None if seq_lengths is None else _lengths(builder, xs, seq_lengths)
    carry, ys = _add(builder, part, xs, lengths)
    if lengths is None:
        return carry, ys
    # ONNX does not define the outputs at padded steps, and a residual adds the input's padding.
    zero = builder.weight(np.zeros((), ys.dtype), "zero")
    return carry, Value(builder.node("Where", lengths.valid, ys.name, zero), ys.dtype)


def _add(builder: Builder, part: Part, xs: Value, lengths: Lengths | None, reverse: bool = False) -> tuple[Any, Value]:
    net = part.net
    if isinstance(net, Layer):
        return _add(builder, part.inside(), xs, lengths, reverse=net.reverse)
    if isinstance(net, Dropout):  # None without a key.
        return _add(builder, part.inside(), xs, lengths, reverse)
    if isinstance(net, Chain):
        return _add_in_turn(builder, part, "net", net.nets, xs, lengths, reverse)
    if isinstance(net, Stack):
        return _add_in_turn(builder, part, "layer", net.cells, xs, lengths, reverse)
    if isinstance(net, Bidirectional):
        return _add_bidirectional(builder, part, xs, lengths)
    if isinstance(net, Residual):
        carry, ys = _add(builder, part.inside(), xs, lengths, reverse)
        total = builder.node("Add", ys.name, builder.cast(xs, ys.dtype).name, place=part.place)
        return carry, Value(total, ys.dtype)
    run = Run(net, part.params, part.carry, reverse)
    (carry,), by_direction = add_operator(builder, [run], xs, lengths, part.place)
    return carry, _outputs_of(builder, by_direction, 0)


def _add_in_turn(
    builder: Builder,
    part: Part,
    name: str,
    nets: Sequence[Any],
    xs: Value,
    lengths: Lengths | None,
    reverse: bool,
) -> tuple[Any, Value]:
    """The nets of a chain, or the cells of a stack: each sees the outputs of the one before at its valid steps."""
    carries = []
    for number, net in enumerate(nets):
        carry, xs = _add(builder, part.inner(f"{name}_{number}", net, number), xs, lengths, reverse)
        carries.append(carry)
    return tuple(carries), xs


def _add_bidirectional(builder: Builder, part: Part, xs: Value, lengths: Lengths | None) -> tuple[Any, Value]:
    net = part.net
    parts = [part.inner("forward", net.forward, 0), part.inner("backward", net.backward, 1)]
    cells = [_without_dropout(inner) for inner in parts]
    if not any(isinstance(inner.net, Stack | Residual) for inner in cells):
        forward, backward = (
            Run(inner.net, inner.params, inner.carry, reverse)
            for inner, reverse in zip(cells, (False, True), strict=True)
        )
        if fit_one_operator(forward, backward):
            carries, ys = add_operator(builder, [forward, backward], xs, lengths, part.place)
            return tuple(carries), _merge(builder, net, ys)
    first, forward_ys = _add(builder, parts[0], xs, lengths)
    last, backward_ys = _add(builder, parts[1], xs, lengths, reverse=True)
    if forward_ys.dtype != backward_ys.dtype:
        raise NoOperatorError(
            f"ONNX merges outputs of one dtype; got {forward_ys.dtype} and {backward_ys.dtype} in {net!r}"
        )
    return (first, last), _merge_pair(builder, net.merge, forward_ys, backward_ys)


def _without_dropout(part: Part) -> Part:
    return _without_dropout(part.inside()) if isinstance(part.net, Dropout) else part


def _merge(builder: Builder, net: Bidirectional, ys: Value) -> Value:
    """Merge `(T, 2, N, H)`."""
    if net.merge != "concat":
        return _merge_pair(builder, net.merge, *(_outputs_of(builder, ys, direction) for direction in (0, 1)))
    together = builder.node("Transpose", ys.name, perm=[0, 2, 1, 3])
    shape = builder.weight(np.array([0, 0, net.output_size]), "shape")  # 0 keeps the size.
    return Value(builder.node("Reshape", together, shape), ys.dtype)


def _merge_pair(builder: Builder, merge: Any, forward: Value, backward: Value) -> Value:
    names = (forward.name, backward.name)
    if merge == "concat":
        return Value(builder.node("Concat", *names, axis=-1), forward.dtype)
    merged = builder.node("Mul" if merge == "product" else "Add", *names)
    if merge == "mean":
        merged = builder.node("Mul", merged, builder.weight(np.asarray(0.5, forward.dtype), "half"))
    return Value(merged, forward.dtype)


def _outputs_of(builder: Builder, ys: Value, direction: int) -> Value:
    """The outputs `(T, N, H)` of one direction, out of `(T, directions, N, H)`."""
    index = builder.weight(np.asarray(direction), f"direction_{direction}")
    return Value(builder.node("Gather", ys.name, index, axis=1), ys.dtype)


def _lengths(builder: Builder, xs: Value, seq_lengths: Value) -> Lengths:
    """The lengths within 0 and T, because runtimes refuse others, and the masks of valid rows and steps."""
    zero, one = (builder.weight(np.asarray(number), name) for number, name in ((0, "zero_int64"), (1, "one_int64")))
    end = builder.node("Gather", builder.node("Shape", xs.name), zero)
    limited = builder.node("Min", builder.cast(seq_lengths, np.int64).name, end)
    within = Value(builder.node("Max", limited, zero), np.dtype(np.int64))
    last_axis = builder.weight(np.array([-1]), "last_axis")
    steps = builder.node("Unsqueeze", builder.node("Range", zero, end, one), last_axis)
    return Lengths(
        builder.cast(within, np.int32).name,
        builder.node("Unsqueeze", builder.node("Greater", within.name, zero), last_axis),
        builder.node("Unsqueeze", builder.node("Less", steps, within.name), last_axis),
    )
