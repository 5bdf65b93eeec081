"""Check scan()'s arguments once, while tracing."""

from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax.export import is_symbolic_dim

from rnnscan._util import effects
from rnnscan._util.arguments import is_typed_array
from rnnscan._util.dtypes import promoted
from rnnscan._util.high_types import HighTypeError, high_type_reason, is_high_value
from rnnscan._util.messages import (
    describe,
    in_words,
    is_array_like,
    is_count,
    is_key,
    is_weak,
    leaves_with_places,
    place,
)
from rnnscan._util.refs import is_ref
from rnnscan._util.step_wrappers import Length, Padding, repeat_over, valid_steps
from rnnscan._util.varying import explicit_spec
from rnnscan.memory import Memory
from rnnscan.naming import StepInfo
from rnnscan.newton import Newton


ENGINES = ("auto", "fission", "lax")


def check_time_is_whole(xs: Any) -> None:
    """Reject inputs whose axis of steps is sharded, as far as that shows."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(xs):
        is_traced = isinstance(leaf, jax.core.Tracer)
        sharding = jax.typeof(leaf).sharding if is_traced else getattr(leaf, "sharding", None)
        spec: Any = getattr(sharding, "spec", ())
        if len(spec) and spec[0] is not None:
            raise ValueError(
                f"scan: the first axis of `xs` is time, which runs in order, so it must not be sharded; got {spec} for "
                f"`xs{jax.tree_util.keystr(path)}`. Shard the batch, PartitionSpec(None, 'data'), or the hidden units, "
                "with rs.sharding.rules."
            )


def as_arrays(tree: Any, root: str, *, function: str = "scan") -> Any:
    """Convert every leaf of a pytree to an array. The refs of `jax.new_ref` stay as they are."""

    def convert(path: Any, leaf: Any) -> Any:
        if is_ref(leaf):
            return leaf
        if is_high_value(leaf):
            raise HighTypeError(high_type_reason(**{root: tree}))
        try:
            return jnp.asarray(leaf)
        except TypeError as error:
            raise _no_array(function, place(root, path), leaf) from error

    return jax.tree_util.tree_map_with_path(convert, tree)


def check_leaves(tree: Any, root: str, *, function: str) -> None:
    """Reject leaves that `as_arrays` rejects, without converting the others."""
    for where, leaf in leaves_with_places(tree, root):
        if not is_array_like(leaf) and not hasattr(leaf, "__array__") and not _has_type(leaf):
            raise _no_array(function, where, leaf)


def _no_array(function: str, where: str, leaf: Any) -> TypeError:
    return TypeError(
        f"{function}: every leaf must be an array or a number; got {describe(leaf)} at {where}. Close over other "
        "values instead of passing them."
    )


def check_has_values(function: str, *arguments: Any) -> None:
    """Check that the arguments of a tool that reads values have them: it does not run within `jax.jit`.

    Raises:
        TypeError: if one is traced.
    """
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(arguments)):
        raise TypeError(
            f"{function}: the arguments must be arrays with values; got traced ones. Call it outside of `jax.jit`, "
            "`jax.grad` and `jax.vmap`."
        )


def check_params(params: Any, *, function: str = "scan") -> None:
    """Reject leaves of the parameters that are no arrays, and tensors of other libraries.

    JAX converts these tensors nowhere but in `jnp.asarray`.
    """
    for number, leaf in enumerate(jax.tree.leaves(params)):
        if _is_parameter(leaf):
            continue
        where, _ = leaves_with_places(params, "params")[number]
        kind = f"{type(leaf).__module__}.{type(leaf).__qualname__}"
        if hasattr(leaf, "dtype") and not isinstance(leaf, np.ndarray):
            raise TypeError(
                f"{function}: parameters must be arrays of JAX or numpy; got {kind} at {where}. Functions of "
                "rs.interop convert weights of other libraries."
            )
        raise TypeError(
            f"{function}: every leaf of the parameters must be an array or a number; got {_shown(leaf)} at {where}. "
            "Close over functions, strings and other settings. For an equinox module: arrays, static = "
            "equinox.partition(module, equinox.is_array), pass the arrays, and equinox.combine both in the cell."
        )


_NUMBERS = (bool, int, float, complex)


def _is_parameter(leaf: Any) -> bool:
    if isinstance(leaf, np.ndarray):
        return _has_type(leaf)  # It may hold text or objects.
    # `jax.lax.stop_gradient` returns a Python number with a dtype.
    return is_typed_array(leaf) or isinstance(leaf, _NUMBERS) or (not hasattr(leaf, "dtype") and _has_type(leaf))


def _has_type(leaf: Any) -> bool:
    """Whether JAX takes a value for an array or a number."""
    if isinstance(leaf, _NUMBERS) or hasattr(leaf, "__jax_array__"):
        return True
    try:
        jax.typeof(leaf)
    except TypeError:
        return False
    return True


def _shown(leaf: Any) -> str:
    """A string, or a function by its name; the type of another value."""
    if isinstance(leaf, str):
        return f"the string {leaf!r}"
    return f"the function {in_words(leaf)}" if callable(leaf) and hasattr(leaf, "__name__") else describe(leaf)


def check_reverse(function: str, reverse: Any) -> None:
    """Reject a `reverse` that is no bool."""
    if not isinstance(reverse, bool | np.bool_):
        raise TypeError(f"{function}: `reverse` must be True or False; got {reverse!r}.")


def check_options(*, memory: Any, unroll: Any, truncate: Any, padding: Any, engine: Any) -> None:
    """Reject wrong values of options."""
    if memory is not None and not isinstance(memory, Memory):
        raise TypeError(
            f"scan: `memory` must be an rnnscan.Memory, or None for plain autodiff; got {memory!r}. "
            'Write memory=rnnscan.Memory(recompute=("gates",)), say.'
        )
    if engine not in ENGINES:
        raise ValueError(f"scan: `engine` must be one of {ENGINES}; got {engine!r}.")
    if memory is not None and memory.chunk is not None and engine == "lax":
        raise ValueError(
            f"scan: engine={engine!r} runs all work step by step, without chunks; got chunk={memory.chunk}. "
            "Leave chunk=None."
        )
    if memory is not None and memory.offload and has_early_remat3():
        raise NotImplementedError(
            f"scan: with JAX_REMAT3=1, `offload` needs jax 0.11 or newer; got {memory!r} and jax {jax.__version__}. "
            "Update jax, or leave JAX_REMAT3 unset."
        )
    if padding not in get_args(Padding):
        raise ValueError(f"scan: `padding` must be one of {get_args(Padding)}; got {padding!r}.")
    if not isinstance(unroll, bool) and not is_count(unroll):
        raise ValueError(f"scan: `unroll` must be a number of steps of at least 1, or a bool; got {unroll!r}.")
    if truncate is not None and not is_count(truncate):
        raise ValueError(f"scan: `truncate` must be a number of steps of at least 1, or None; got {truncate!r}.")


def check_parallel(parallel: Any, memory: Memory | None) -> None:
    """Reject wrong values of `parallel`."""
    if parallel is not None and not isinstance(parallel, Newton):
        raise TypeError(
            f"scan: `parallel` must be an rnnscan.Newton, or None for step by step; got {parallel!r}. Write "
            "parallel=rnnscan.Newton()."
        )
    if parallel is not None and memory is not None and parallel.chunk is not None and memory.chunk is not None:
        raise ValueError(
            f"scan: the steps of a chunk are given twice; got {parallel!r} and {memory!r}. Leave one `chunk` out."
        )


def has_early_remat3() -> bool:
    """Whether JAX_REMAT3 is set with a jax whose new `jax.checkpoint` cannot do all."""
    # With jax 0.10.2, differentiating jax.checkpoint(lax.scan) fails with "Expected cotangent type ..." if a cotangent
    # of ys is zero, and save_and_offload_only_these_names offloads nothing. Both work from 0.11 on.
    return jax.__version_info__ < (0, 11) and has_remat3()


def has_remat3() -> bool:
    """Whether JAX_REMAT3 is set. Then `jax.checkpoint` and names are of JAX's high level."""
    return bool(getattr(jax.config, "jax_remat3", False))


def sequence_length(xs: Any, length: int | None) -> Length:
    """T, if all leaves of `xs` and `length` agree."""
    if length is not None and not is_count(length, least=0) and not is_symbolic_dim(length):
        raise ValueError(f"scan: `length` must be a number of steps of at least 0, or None; got {length!r}.")
    places = leaves_with_places(xs, "xs")
    if not places:
        if length is None:
            raise ValueError(
                "scan: the number of steps must be known; got neither an input in `xs` nor `length`. Pass one of them. "
                "The order is (cell, params, carry, xs): for jax.lax.scan(f, init, xs) write scan(lambda _, carry, x: "
                "f(carry, x), None, init, xs)."
            )
        return length
    for where, leaf in places:
        if leaf.ndim == 0:
            raise ValueError(
                f"scan: every leaf of `xs` must be (T, ...), time first; got the scalar {describe(leaf)} at {where}. "
                "Move values that are the same at every step into `params`. The order is (cell, params, carry, xs)."
            )
    lengths = {where: leaf.shape[0] for where, leaf in places}
    if length is not None:
        lengths["`length`"] = length
    if len(set(lengths.values())) > 1:
        raise ValueError(
            "scan: all inputs must have the same number of steps, on their first axis; got "
            + ", ".join(f"{steps} at {where}" for where, steps in lengths.items())
            + ". Leaves of `xs` are time-major, (T, N, ...); the likely cause is a batch-major input."
        )
    return next(iter(lengths.values()))


def pair(returned: Any) -> tuple[Any, Any]:
    """The cell's result, if it is a pair."""
    if not isinstance(returned, tuple) or len(returned) != 2:
        what = f"a tuple of {len(returned)}" if isinstance(returned, tuple) else describe(returned)
        raise TypeError(
            f"scan: a cell must return the pair (carry, y), the new carry first; got {what}. "
            "A cell without an output returns (carry, None)."
        )
    return returned


def carry_and_output(returned: Any) -> tuple[Any, Any]:
    """The cell's result, if it is a pair of arrays."""
    carry, y = pair(returned)
    if reason := high_type_reason(carry=carry, y=y):
        raise HighTypeError(reason)
    for root, tree in zip(("carry", "y"), returned, strict=True):
        for where, leaf in leaves_with_places(tree, root):
            if not isinstance(leaf, jax.Array | np.ndarray | np.generic | bool | int | float | complex):
                kind = f"a ref {describe(leaf)}" if is_ref(leaf) else describe(leaf)
                raise TypeError(
                    f"scan: a cell must return arrays or numbers; got {kind} at {where}. "
                    "Return None as y for a cell without an output."
                )
    return carry, y


def check_structure(carry: Any, new_carry: Any) -> None:
    """Reject a new carry with another structure."""
    expected: Any = jax.tree.structure(carry)
    returned: Any = jax.tree.structure(new_carry)
    if expected != returned:
        raise TypeError(
            f"scan: a cell must return a carry of the structure that it was given; it was given {expected} "
            f"and returned {returned}. Check the order of the result, (carry, y), and that a tuple of one leaf is "
            "returned as a tuple: (hidden,), y."
        )


def check_carry(carry: Any, new_carry: Any) -> None:
    """Reject a new carry with other shapes or dtypes."""
    differing = [
        f"{where} went in as {describe(old)} and came out as {describe(new)}"
        for (where, old), new in zip(leaves_with_places(carry, "carry"), jax.tree.leaves(new_carry), strict=True)
        if old.shape != new.shape or old.dtype != new.dtype
    ]
    if not differing:
        return
    pairs = zip(jax.tree.leaves(carry), jax.tree.leaves(new_carry), strict=True)
    lacks_axis = any(new.shape[1:] == old.shape and new.ndim > old.ndim for old, new in pairs)
    raise TypeError(
        "scan: a cell must return a carry of the types that it was given; "
        + "; ".join(differing)
        + ". Cast the new carry in the cell, or start from a carry of the type that the cell returns"
        + (", such as jnp.broadcast_to(carry, (N, ...)) for a shared carry." if lacks_axis else ".")
    )


def check_explicit_axes(carry: Any, traced: Any) -> None:
    """Reject a step whose new carry is sharded over other explicit axes of a mesh than the carry.

    Args:
        carry: the carry.
        traced: the jaxpr of the step.
    """
    for (where, _), old, new in zip(
        leaves_with_places(carry, "carry"), traced.in_avals, traced.out_avals, strict=False
    ):
        specs = [explicit_spec(aval) for aval in (old, new)]
        if specs[0] != specs[1]:
            raise ValueError(
                "scan: over explicit axes of a mesh, a cell must return a carry that is sharded as it was given; got "
                f"{specs[1]} for {specs[0]} at {where}. Reshard it in the cell. To shard hidden units, rather make all "
                "axes automatic (axis_types=(jax.sharding.AxisType.Auto, ...)) and use rs.sharding.rules."
            )


def check_side_effects(memory: Memory, overview: StepInfo) -> None:
    """Refuse to recompute side effects."""
    if not (overview.has_side_effects and memory.asks_to_recompute):
        return
    if not overview.has_refs and effects.are_of_local_refs(overview.effects):
        raise ValueError(
            "scan: a cell that makes a ref, `jax.new_ref`, must not be recomputed: JAX has no derivative of most "
            f"such cells within `jax.checkpoint`; got {memory!r}. For `ref[index] = new` write "
            "`value = value.at[index].set(new)`, or leave out `recompute`, `segment` and `offload`."
        )
    raise ValueError(
        f"scan: a cell with side effects must not be recomputed; got {memory!r}. "
        "Remove the side effects from the cell, or leave out `recompute`, `segment` and `offload`."
    )


def validity(seq_lengths: Any, mask: Any, length: Length) -> Any:
    """A mask of the valid steps, `(T, N)`, or None if all are valid."""
    if seq_lengths is not None and mask is not None:
        raise ValueError(
            "scan: `seq_lengths` or `mask` says which steps are valid; got both. "
            "Combine them into one mask, (T, N): mask & (jnp.arange(T)[:, None] < seq_lengths)."
        )
    if mask is not None:
        return _steps_by_rows("mask", mask, length)
    if seq_lengths is None:
        return None
    seq_lengths = jnp.asarray(seq_lengths)
    if seq_lengths.dtype == jnp.bool_:
        raise ValueError(
            "scan: `seq_lengths` must be integers of shape (N,), the number of valid steps of each row; got the mask "
            f"{describe(seq_lengths)}. Pass a mask of valid steps as `mask`, bool[{length},N], time first, or count "
            "its steps."
        )
    if seq_lengths.ndim > 1 or not jnp.issubdtype(seq_lengths.dtype, jnp.integer):
        raise ValueError(
            "scan: `seq_lengths` must be integers of shape (N,), one per row, or one integer for a row without a batch "
            f"axis; got {describe(seq_lengths)}. Write seq_lengths.astype(int) for whole numbers of another dtype."
        )
    check_lengths(seq_lengths, length)
    return valid_steps(seq_lengths, length)


def check_lengths(seq_lengths: Any, length: Length) -> None:
    """Reject lengths below 0 or above T, where their values are known: outside of a trace."""
    if seq_lengths is None or isinstance(seq_lengths, jax.core.Tracer) or not is_count(length, least=0):
        return
    if not getattr(seq_lengths, "is_fully_addressable", True):
        return
    known = np.asarray(jax.device_get(seq_lengths))
    wrong = known[(known < 0) | (known > length)]
    if wrong.size:
        raise ValueError(
            f"scan: `seq_lengths` must be from 0 to the number of steps, {length}, the size of the first axis of `xs`; "
            f"got {wrong.flat[0]}. xs is time-major, (T, N, ...): transpose a batch-major input, or clip the lengths."
        )


def resets(reset: Any, length: Length) -> Any:
    """A mask of the resets, `(T, N)`, or None."""
    return None if reset is None else _steps_by_rows("reset", reset, length)


def reset_carry_like(carry: Any, reset_to: Any, root: str, *, rows: int) -> Any:
    """The carry after a reset, in the types of the carry.

    Args:
        carry: the initial carry.
        reset_to: the carry after a reset. A leaf may leave out the batch axis.
        root: its name in messages.
        rows: the number of batch axes, 0 or 1.

    Returns:
        `reset_to`, with leaves of the shapes and dtypes of `carry`.

    Raises:
        TypeError: if a structure or dtype differs.
        ValueError: if a shape differs.
    """
    expected: Any = jax.tree.structure(carry)
    structure: Any = jax.tree.structure(reset_to)
    if structure != expected:
        raise TypeError(
            f"scan: the carry after a reset must have the structure of `carry`, {expected}; got {structure} in "
            f"`{root}`. Set `reset_to` to a carry like `carry`."
        )

    def like(path: Any, leaf: Any, there: Any) -> Any:
        if there.shape not in (leaf.shape, leaf.shape[rows:]):
            raise ValueError(_differs(root, path, leaf, there))
        promotes = there.dtype == leaf.dtype or (
            not is_key(leaf) and not is_key(there) and promoted(there, leaf.dtype) == leaf.dtype
        )
        # An explicit `reset_to` has the same dtype; a Python number, and the cell's own carry, may promote to it.
        if not promotes or (root == "reset_to" and there.dtype != leaf.dtype and not is_weak(there)):
            raise TypeError(_differs(root, path, leaf, there))
        there = there if is_key(leaf) else there.astype(leaf.dtype)
        return (
            there if there.shape == leaf.shape else repeat_over(there, leaf if is_key(leaf) else jnp.zeros_like(leaf))
        )

    return jax.tree_util.tree_map_with_path(like, carry, reset_to)


def _differs(root: str, path: Any, leaf: Any, there: Any) -> str:
    return (
        f"scan: the carry after a reset must have the shapes and dtypes of `carry`; got {describe(there)} at "
        f"{place(root, path)}, and {describe(leaf)} at {place('carry', path)}. Set `reset_to` to a carry of these "
        "types; a leaf may leave out the batch axis."
    )


def _steps_by_rows(argument: str, value: Any, length: Length) -> Any:
    value = jnp.asarray(value)
    if value.ndim not in (1, 2) or value.shape[0] != length or value.dtype != jnp.bool_:
        raise ValueError(
            f"scan: `{argument}` must be bool[{length},N], time first, like `xs`, or bool[{length}] for a row without "
            f"a batch axis; got {describe(value)}. Transpose a batch-major {argument}, and write {argument} != 0 for "
            "numbers."
        )
    return value


def check_rows(carry: Any, xs: Any, y: Any, *, valid: Any, reset: Any, padding: str) -> None:
    """Reject leaves without the rows of lengths, mask or resets."""
    by_row = {"`seq_lengths` or `mask`": valid, "`reset`": reset}
    rows = {what: array.shape[1:] for what, array in by_row.items() if array is not None}
    if not rows:
        return
    what, batch = next(iter(rows.items()))
    if len(set(rows.values())) > 1:
        raise ValueError(
            "scan: lengths, mask and reset must have the same rows; got "
            + " and ".join(f"{size[0] if size else 'no'} rows in {name}" for name, size in rows.items())
            + ". For a row without a batch axis leave it out of all of them."
        )
    _check_zeros(carry, y, valid=valid, padding=padding)
    if batch:
        check_axes_of_rows(what, batch[0], carry, xs, y if valid is not None else ())


def check_axes_of_rows(what: str, rows: Length, carry: Any, xs: Any, y: Any) -> None:
    """Reject leaves without the rows that an argument has."""
    where_axis = [(where, leaf, 0) for where, leaf in leaves_with_places(carry, "carry")]
    where_axis += [(where, leaf, 1) for where, leaf in leaves_with_places(xs, "xs") if leaf.ndim > 1]
    where_axis += [(where, leaf, 0) for where, leaf in leaves_with_places(y, "y")]
    for where, leaf, axis in where_axis:
        if leaf.ndim <= axis or leaf.shape[axis] != rows:
            raise ValueError(
                f"scan: {what} has {rows} rows, so axis {axis} of {where} must have size {rows}; got "
                f"{describe(leaf)}. Leaves of carry and y are (N, ...), leaves of xs are time-major, (T, N, ...), or "
                "(T,)."
            )


def check_raw_keys(xs: Any) -> None:
    """Reject inputs that look like raw PRNG keys, which padding would overwrite.

    `uint32[T,2]` may be a raw key per step, or two rows of integers.
    """
    for where, leaf in leaves_with_places(xs, "xs"):
        if leaf.dtype == jnp.uint32 and leaf.ndim == 2 and leaf.shape[1:] == _raw_key_shape():
            raise ValueError(
                f"scan: with lengths or a mask, the inputs must not be raw PRNG keys, which padding overwrites; got "
                f"{describe(leaf)} at {where}. Make typed keys by jax.random.key, or cast integer data to int32."
            )


def _raw_key_shape() -> tuple[int, ...]:
    """The shape of a raw key of the default implementation."""
    return jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0))).shape


def _check_zeros(carry: Any, y: Any, *, valid: Any, padding: str) -> None:
    if valid is None:
        return
    zeroed = leaves_with_places(y, "y") + (leaves_with_places(carry, "carry") if padding == "drop" else [])
    for where, leaf in zeroed:
        if is_key(leaf):
            raise TypeError(
                f"scan: with padding={padding!r}, padded steps return zeros, and no zero key exists; got "
                f"{describe(leaf)} at {where}. Return jax.random.key_data of the key instead."
            )
