"""scan_over_time(): a linear recurrence over steps that are sharded over devices."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from rnnscan import _checks as checks
from rnnscan._util.messages import place
from rnnscan._util.varying import vary, varying
from rnnscan.engine.call.prepare import Call, prepare
from rnnscan.ir.dataflow import needed
from rnnscan.ir.linear import is_linear
from rnnscan.ir.program import Value, inputs_of
from rnnscan.memory import Memory
from rnnscan.protocols import Cell
from rnnscan.scanning import scan


def scan_over_time(
    cell: Cell,
    params: Any,
    carry: Any,
    xs: Any,
    *,
    axis: str = "time",
    reverse: bool = False,
    mask: Any = None,
    reset: Any = None,
    reset_to: Any = None,
    memory: Memory | None = Memory(),
) -> tuple[Any, Any]:
    """Scan a linear cell over steps that are sharded over devices. Call it in `jax.shard_map`.

    Each device has consecutive steps of the sequence. The carry after them is linear in the carry before them,

        c_end = A * c_start + B

    elementwise. So each device scans its steps for A and B, all devices exchange these, and each device scans its steps
    from the carry that follows. That is one collective forward and one backward, whatever the number of steps, and
    about twice the work of a scan.

    It works for cells each of whose carry leaves follows from its old value by `c' = a * c + b`, where a and b do not
    depend on the carry: minGRU, minLSTM, LRU, RG-LRU, SRU, S6, linear attention, RetNet and GLA. Run a deep net layer
    by layer.

    Args:
        cell: the cell.
        params: its parameters.
        carry: the carry before the first step of the whole sequence; the same on all devices of the axis.
        xs: the device's steps, leaves `(T / devices, N, ...)`. A spec such as `P("time")` of `jax.shard_map` cuts them.
        axis: the axis of the mesh.
        reverse: whether the steps run from the last to the first.
        mask: `(T / devices, N)` booleans, true at valid steps. Others hold the carry, and have y of zeros.
        reset: `(T / devices, N)` booleans: the carry goes back to `reset_to` before these steps.
        reset_to: the carry after a reset; None: the cell's `initial_carry`.
        memory: as in `scan`, for the steps of a device.

    Returns:
        The carry after the whole sequence, the same on all devices of the axis, and y for the device's steps.

    Raises:
        ValueError: if the cell is not linear, so that time cannot be sharded, or the axis is not one of
            `jax.shard_map`.
        TypeError, ValueError: as `scan` does.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from jax.sharding import AxisType
        >>> from jax.sharding import PartitionSpec as P
        >>> import rnnscan as rs
        >>> mesh = jax.make_mesh((1,), ("time",), axis_types=(AxisType.Auto,))
        >>> cell = rs.cells.MinGRU(4)
        >>> xs = jnp.ones((6, 2, 3))
        >>> params = cell.init(jax.random.key(0), input_size=3)
        >>> @jax.jit
        ... @jax.shard_map(mesh=mesh, in_specs=(P(), P("time")), out_specs=(P(), P("time")))
        ... def run(params, xs):
        ...     carry = (jnp.zeros((2, 4)),)
        ...     return rs.sharding.scan_over_time(cell, params, carry, xs)
        >>> run(params, xs)[1].shape
        (6, 2, 4)

    Source: Martin and Cundy 2018, "Parallelizing Linear Recurrent Neural Nets Over Sequence Length", where blocks of
    steps are those of a device.
    """
    _check_axis(axis)
    xs, carry = checks.as_arrays(xs, "xs"), checks.as_arrays(carry, "carry")
    options = {"reverse": reverse, "mask": mask, "reset": reset, "reset_to": reset_to, "memory": memory}
    axes = {axis}.union(*(varying(jax.typeof(leaf)) for leaf in jax.tree.leaves((carry, xs))))
    # Both scans read the same copies, so that the gradients of parameters are reduced once.
    start, params = vary(carry, frozenset(axes)), vary(params, frozenset(axes))
    changing = _check_linear(prepare(cell, params, start, xs, **options))
    leaves, structure = jax.tree.flatten(start)

    def last_carry(changing_leaves: list[Any]) -> list[Any]:
        leaf_at = {**dict(enumerate(leaves)), **dict(zip(changing, changing_leaves, strict=True))}
        whole = jax.tree.unflatten(structure, leaf_at.values())
        final, _ = scan(_without_output(cell), params, whole, xs, **{**options, **_initial(cell, xs, reset, reset_to)})
        return [jax.tree.leaves(final)[index] for index in changing]

    zeros = [jnp.zeros_like(leaves[index]) for index in changing]
    offsets, vjp = jax.vjp(last_carry, zeros)
    (factors,) = vjp([jnp.ones_like(leaf) for leaf in offsets])
    changing_leaves = _start_of_device(axis, reverse, factors, offsets, [leaves[index] for index in changing])
    leaves = list({**dict(enumerate(leaves)), **dict(zip(changing, changing_leaves, strict=True))}.values())
    final, ys = scan(cell, params, jax.tree.unflatten(structure, leaves), xs, **options)
    return jax.tree.map(lambda leaf, first: _of_last(axis, reverse, leaf, first), final, carry), ys


def _check_axis(axis: str) -> None:
    try:
        lax.axis_size(axis)
    except NameError as error:
        raise ValueError(
            f"sharding.scan_over_time: `axis` must be an axis of jax.shard_map around the call; got {axis!r}. "
            "Call it in jax.shard_map over a mesh with this axis."
        ) from error


def _check_linear(call: Call) -> tuple[int, ...]:
    """The positions of the carry leaves that change, which must be linear recurrences."""
    step = call.flat
    paths = [path for path, _ in jax.tree.leaves_with_path(call.carry)]
    changing = set(step.carry)
    for index, leaf, new_leaf in zip(step.changing, step.carry, step.new_carry, strict=True):
        equations = needed(step.program.equations, [new_leaf])
        other_leaves = changing.intersection(inputs_of(equations)) - {leaf}
        independent = new_leaf is leaf or not isinstance(new_leaf, Value) or leaf not in inputs_of(equations)
        if other_leaves or not (independent or is_linear(equations, leaf, new_leaf)):
            reason = (
                "it depends on another leaf"
                if other_leaves
                else "it does not follow by c' = a * c + b from its old value"
            )
            raise ValueError(
                "sharding.scan_over_time: time can be sharded only if each leaf of the carry is a linear recurrence of "
                f"its own; got {place('carry', paths[index])} of {call.cell!r}, and {reason}. Shard the batch or the "
                "hidden units instead (rs.sharding.rules), or run the layers of a stack one by one."
            )
    return step.changing


def _without_output(cell: Cell) -> Cell:
    return lambda params, carry, x: (cell(params, carry, x)[0], None)


def _initial(cell: Any, xs: Any, reset: Any, reset_to: Any) -> dict[str, Any]:
    """`reset_to` for a function that has no `initial_carry`."""
    if reset is None or reset_to is not None:
        return {}
    return {"reset_to": cell.initial_carry(jax.tree.map(lambda leaf: leaf[0], xs))}


def _start_of_device(axis: str, reverse: bool, factors: Any, offsets: Any, start: Any) -> Any:
    """The carry before the steps of this device."""
    devices, number = lax.axis_size(axis), lax.axis_index(axis)
    order = jnp.arange(devices)[::-1] if reverse else jnp.arange(devices)
    position = devices - 1 - number if reverse else number
    gathered = lax.all_gather((factors, offsets), axis)

    def step(carry: Any, x: Any) -> tuple[Any, None]:
        before, (factor, offset) = x[0], jax.tree.map(lambda leaf: leaf[x[1]], gathered)
        new = jax.tree.map(lambda a, c, b: jnp.where(before < position, a * c + b, c), factor, carry, offset)
        return new, None

    return lax.scan(step, start, (jnp.arange(devices), order))[0]


def _of_last(axis: str, reverse: bool, leaf: Any, first: Any) -> Any:
    """The carry of the device whose steps are the last, on all devices."""
    if axis in varying(jax.typeof(first)):
        return leaf
    last = 0 if reverse else lax.axis_size(axis) - 1
    return lax.psum(jnp.where(lax.axis_index(axis) == last, leaf, jnp.zeros_like(leaf)), axis)
