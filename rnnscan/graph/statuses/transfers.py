"""Transfer functions for statuses that rnnscan and JAX know: dtypes, memory spaces, recompute and the kind of work."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from rnnscan.graph.nodes.names import Name
from rnnscan.graph.nodes.node import Node
from rnnscan.graph.statuses.status import same_status
from rnnscan.graph.statuses.transfer_bodies import has_bodies, through_bodies
from rnnscan.ir.traits import TRAITS, Kind, names_of


# Statuses of inputs, and of outputs.
_Both: TypeAlias = tuple[Sequence[Any], Sequence[Any]]
_Rule: TypeAlias = Callable[[Node, Sequence[Any], Sequence[Any]], _Both]


def transfer_dtype(node: Node, inputs: Sequence[Any], outputs: Sequence[Any]) -> _Both:
    """Dtypes: what a node reads tells what it makes, and where it can, the other way around. For `infer_status`.

    Most operations have one dtype for their operands and results. Conversions, comparisons, indices, products with a
    wider result, and loops and branches have rules of their own. Results of other operations stay unknown.

    Args:
        node: the node.
        inputs: the dtypes of what it reads, None for unknown ones and for numbers.
        outputs: the dtypes of what it makes, likewise.

    Returns:
        The dtypes that follow, for its inputs and its outputs.

    Example:
        >>> import jax.numpy as jnp
        >>> import rnnscan as rs
        >>> graph = rs.graph.trace(lambda x, y: (x + y > 0, y * 2), 1.0, 2.0)
        >>> known = {"x": jnp.dtype("bfloat16")}
        >>> statuses = rs.graph.infer_status(graph, known, rs.graph.transfer_dtype)
        >>> {str(name): str(dtype) for name, dtype in statuses.known.items()}
        {'x': 'bfloat16', 'y': 'bfloat16', 'add.1': 'bfloat16', 'result[0].1': 'bool', 'result[1].1': 'bfloat16'}
    """
    if has_bodies(node) or not any(isinstance(operand, Name) for operand in node.inputs):
        # No value except these numbers tells their dtype, so it is the traced one.
        operands = zip(node.inputs, inputs, node.input_types, strict=True)
        inputs = [known if isinstance(operand, Name) else kind.dtype for operand, known, kind in operands]
    if has_bodies(node):
        return through_bodies(transfer_dtype, node, inputs, outputs)
    rule = _DTYPES.get(node.operation)
    return rule(node, inputs, outputs) if rule else _nothing(node)


def transfer_memory_space(node: Node, inputs: Sequence[Any], outputs: Sequence[Any]) -> _Both:
    """Memory spaces: a transfer moves a value, and all other operations read and make values of one space.

    Args:
        node: the node.
        inputs: the spaces of what it reads, None for unknown ones and for numbers.
        outputs: the spaces of what it makes, likewise.

    Returns:
        The spaces that follow, for its inputs and its outputs.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import rnnscan as rs
        >>> Host, Device = jax.memory.Space.Host, jax.memory.Space.Device
        >>> graph = rs.graph.trace(lambda x, y: jnp.sin(jax.device_put(jnp.cos(x), Device)) * y, 1.0, 2.0)
        >>> statuses = rs.graph.infer_status(graph, {"x": Host}, rs.graph.transfer_memory_space)
        >>> [f"{name}: {space.name}" for name, space in statuses.known.items()]
        ['x: Host', 'y: Device', 'cos.1: Host', 'device_put.1: Device', 'sin.1: Device', 'result.1: Device']
    """
    if has_bodies(node):
        return through_bodies(transfer_memory_space, node, inputs, outputs)
    if node.operation != "device_put":
        return same_status(node, inputs, outputs)
    moved = [_space(device) for device in node.params["devices"]]
    # A transfer to another device of the same kind stays in its space.
    known_spaces = [
        i if space is None and i is not None else o for space, i, o in zip(moved, inputs, outputs, strict=True)
    ]
    before = [i if space is not None else known for space, i, known in zip(moved, inputs, known_spaces, strict=True)]
    return before, [known if space is None else space for space, known in zip(moved, known_spaces, strict=True)]


def transfer_recompute(node: Node, inputs: Sequence[Any], outputs: Sequence[Any]) -> _Both:
    """What can be recomputed: a value whose operands are all kept, offloaded or recomputed. For `infer_status`.

    Values that stay unknown need one that is not there.

    Args:
        node: the node.
        inputs: "kept", "offloaded" or "recomputed" for what it reads, None for unknown ones and for numbers.
        outputs: the same for what it makes.

    Returns:
        The inputs as they are; "recomputed" for outputs without a status, if they can be.

    Example:
        >>> import jax.numpy as jnp
        >>> import rnnscan as rs
        >>> graph = rs.graph.trace(lambda x, y: jnp.tanh(jnp.sin(x) * y), 1.0, 2.0)
        >>> statuses = rs.graph.infer_status(graph, {"mul.1": "kept"}, rs.graph.transfer_recompute)
        >>> {str(name): status for name, status in statuses.known.items()}
        {'mul.1': 'kept', 'result.1': 'recomputed'}
    """
    if node.has_effects or not _all_known(node, inputs):
        return inputs, outputs
    return inputs, ["recomputed" if status is None else status for status in outputs]


def transfer_work(node: Node, inputs: Sequence[Any], outputs: Sequence[Any]) -> _Both:
    """Kinds of work, where those of the loops are known: what reads nothing that changes is invariant, else parallel.

    A loop makes its values before their readers run, so a reader outside of it is parallel work. `status_of_work` tells
    which values the loops make, and gives the kinds of all.

    Args:
        node: the node.
        inputs: a kind of work for what it reads, such as "parallel"; None for unknown ones and numbers.
        outputs: the same for what it makes.

    Returns:
        The inputs as they are, and the kinds of the outputs.

    Example:
        >>> import jax.numpy as jnp
        >>> import rnnscan as rs
        >>> graph = rs.graph.trace(lambda w, x: jnp.exp(w) * x, 1.0, 2.0)
        >>> statuses = rs.graph.infer_status(graph, {"w": "invariant", "x": "parallel"}, rs.graph.transfer_work)
        >>> {str(name): kind for name, kind in statuses.known.items()}
        {'w': 'invariant', 'x': 'parallel', 'exp.1': 'invariant', 'result.1': 'parallel'}
    """
    if not _all_known(node, inputs):
        return inputs, outputs
    kind = "invariant" if set(inputs) <= {"invariant", None} else "parallel"
    return inputs, [kind if status is None else status for status in outputs]


def _all_known(node: Node, inputs: Sequence[Any]) -> bool:
    operands = zip(inputs, node.inputs, strict=True)
    return all(status is not None for status, operand in operands if isinstance(operand, Name))


def _nothing(node: Node) -> _Both:
    return [None] * len(node.inputs), [None] * len(node.outputs)


def _space(device: Any) -> Any:
    """The memory space that a transfer names, or None."""
    if isinstance(device, jax.memory.Space):
        return device
    kind = getattr(device, "memory_kind", None)
    if kind is None:
        return None
    return jax.memory.Space.Device if kind == "device" else jax.memory.Space.Host


# Rules for dtypes.


def _one_dtype(*places: int) -> _Rule:
    """All results, and the inputs at these places, have one dtype. No places: all inputs."""

    def rule(node: Node, inputs: Sequence[Any], outputs: Sequence[Any]) -> _Both:
        tied = [index for index in places if index < len(inputs)] or range(len(inputs))
        known = next((dtype for dtype in (*(inputs[index] for index in tied), *outputs) if dtype is not None), None)
        return [known if index in tied else None for index in range(len(inputs))], [known] * len(outputs)

    return rule


def _compared(node: Node, inputs: Sequence[Any], outputs: Sequence[Any]) -> _Both:
    known = next((dtype for dtype in inputs if dtype is not None), None)
    return [known] * len(inputs), [jnp.dtype(bool)] * len(outputs)


def _selected(node: Node, inputs: Sequence[Any], outputs: Sequence[Any]) -> _Both:
    known = next((dtype for dtype in (*inputs[1:], *outputs) if dtype is not None), None)
    return [None, *[known] * (len(inputs) - 1)], [known]


def _each(node: Node, inputs: Sequence[Any], outputs: Sequence[Any]) -> _Both:
    """Each result has the dtype of the operand at its place."""
    known = [dtype if dtype is not None else other_dtype for dtype, other_dtype in zip(inputs, outputs, strict=True)]
    return known, known


def _parameter(name: str) -> _Rule:
    """A parameter tells the dtype of the result."""

    def rule(node: Node, inputs: Sequence[Any], outputs: Sequence[Any]) -> _Both:
        return [None] * len(inputs), [jnp.dtype(node.params[name])]

    return rule


def _product(node: Node, inputs: Sequence[Any], outputs: Sequence[Any]) -> _Both:
    wide = node.params["preferred_element_type"]
    if wide is not None:
        return [None] * len(inputs), [jnp.dtype(wide)]
    return _one_dtype()(node, inputs, outputs)


def _part_of_complex(node: Node, inputs: Sequence[Any], outputs: Sequence[Any]) -> _Both:
    """The real part, the imaginary part or the absolute value."""
    known = None if inputs[0] is None else jnp.finfo(inputs[0]).dtype if _is_inexact(inputs[0]) else inputs[0]
    return [None], [known]


def _is_inexact(dtype: Any) -> bool:
    return bool(jnp.issubdtype(dtype, jnp.inexact))


def _complex(node: Node, inputs: Sequence[Any], outputs: Sequence[Any]) -> _Both:
    known = next((dtype for dtype in inputs if dtype is not None), None)
    return [known] * 2, [None if known is None else jnp.result_type(known, jnp.complex64)]


def _top_k(node: Node, inputs: Sequence[Any], outputs: Sequence[Any]) -> _Both:
    known = inputs[0] if inputs[0] is not None else outputs[0]
    return [known], [known, jnp.dtype("int32")]


def _random_bits(node: Node, inputs: Sequence[Any], outputs: Sequence[Any]) -> _Both:
    return [None] * len(inputs), [jnp.dtype(f"uint{node.params.get('bit_width', 32)}")]


_OF_ONE_DTYPE = [name for name, traits in TRAITS.items() if traits.has_one_dtype]
_MOVES_AND_SUMS = names_of(Kind.VIEW, Kind.PART, Kind.JOIN, Kind.REDUCE, Kind.CUMULATIVE)
_DTYPES: Mapping[str, _Rule] = {
    **dict.fromkeys((*_OF_ONE_DTYPE, *_MOVES_AND_SUMS), _one_dtype()),
    **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge", "is_finite"), _compared),
    **dict.fromkeys((*names_of(Kind.READ), "pow"), _one_dtype(0)),
    **dict.fromkeys(names_of(Kind.WRITE), _one_dtype(0, 1)),
    **dict.fromkeys(names_of(Kind.SCATTER), _one_dtype(0, 2)),
    "select_n": _selected,
    **dict.fromkeys(("sort", "device_put", "sharding_constraint", "reshard", "optimization_barrier"), _each),
    "convert_element_type": _parameter("new_dtype"),
    "bitcast_convert_type": _parameter("new_dtype"),
    "iota": _parameter("dtype"),
    "argmax": _parameter("index_dtype"),
    "argmin": _parameter("index_dtype"),
    **dict.fromkeys(names_of(Kind.PRODUCT), _product),
    **dict.fromkeys(("real", "imag", "abs"), _part_of_complex),
    "complex": _complex,
    "top_k": _top_k,
    "random_bits": _random_bits,
    "random_unwrap": _random_bits,
    **dict.fromkeys(("random_fold_in", "random_split"), _one_dtype(0)),
}
