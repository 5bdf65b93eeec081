"""cond_net(): one of two functions over named values, as the condition says."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core
from jaxtyping import Array, Bool

from rnnscan import _checks as checks
from rnnscan._util.messages import describe, is_array_like, is_key, leaves_with_places, listing, nearest
from rnnscan._util.sources import named_after
from rnnscan._util.varying import vary, varying
from rnnscan.control._named_nets import Inputs, inputs_of, run


def cond_net(
    pred: bool | Bool[Array, ""],
    true_net: Callable[..., Mapping[str, Any]],
    false_net: Callable[..., Mapping[str, Any]] | None,
    params: Any,
    operands: Mapping[str, Any],
) -> dict[str, Any]:
    """Run one of two functions over named values.

        outputs = {**operands, **true_net(params, **operands)}     if pred
        outputs = {**operands, **false_net(params, **operands)}    otherwise

    Only the chosen function runs, in the forward and in the backward pass. Under `vmap` with a batched `pred` both run,
    and `pred` selects between their results.

    Under `shard_map`, devices may choose differently. Then pass each array in `params` or `operands`: the gradient of a
    closed-over array is summed over devices within the branch, and would wait forever for those in the other branch.

    A name that only one function writes keeps its value from `operands` if the other function runs. The gradient then
    flows to that value. Gradients also flow to arrays that the functions close over.

    Args:
        pred: a boolean scalar, traced or not.
        true_net: the function for true, a pure function `function(params, **blobs) -> {name: value}`. It gets the
            operands that its signature names, or all of them if it takes `**blobs`.
        false_net: the function for false. None: the identity, which keeps every operand.
        params: the parameters of both functions.
        operands: `{name: value}`, arrays or pytrees of arrays.

    Returns:
        A dictionary: the operands, updated by the names that the functions write. Both functions give a name the same
        shape and dtype. A Python number takes the dtype of the other side.

    Raises:
        TypeError: if `pred` is not a boolean scalar, a branch is not a function, or the two sides of a name differ in
            dtype.
        ValueError: if a function takes a name that is not an operand, no function takes or writes an operand, a name
            that only one function writes is not an operand, or the two sides of a name differ in shape or structure.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import rnnscan as rs
        >>> def halve(params, value, count):
        ...     return {"value": value / 2, "count": count + 1}
        >>> def scale(params, value):
        ...     return {"value": params * value}
        >>> operands = {"value": jnp.array(6.0), "count": 0}
        >>> outputs = rs.cond_net(operands["value"] > 4, halve, scale, jnp.array(3.0), operands)
        >>> float(outputs["value"]), int(outputs["count"])
        (3.0, 1)

    Source: Caffe2's `If` operator and `gen_if_gradient`.
    """
    _check_pred(pred)
    if not isinstance(operands, Mapping) or not all(isinstance(name, str) for name in operands):
        got = f"the keys {listing(operands)}" if isinstance(operands, Mapping) else describe(operands)
        raise TypeError(
            f"cond_net: `operands` must be a dictionary keyed by name; got {got}. Write operands={{<name>: <value>}}."
        )
    values = {
        name: checks.as_arrays(value, f"operands[{name!r}]", function="cond_net") for name, value in operands.items()
    }
    inputs = {"true_net": inputs_of("cond_net", "true_net", true_net)}
    if false_net is not None:
        inputs["false_net"] = inputs_of("cond_net", "false_net", false_net)
    _check_taken(inputs, values)
    # Where devices choose differently, a branch must not add up gradients over them: the others would not take part.
    axes = varying(jax.typeof(pred))
    params, values = vary(params, axes), {name: vary(value, axes) for name, value in values.items()}
    on_true = _trace("true_net", true_net, params, values, inputs["true_net"])
    on_false = _trace("false_net", false_net, params, values, inputs.get("false_net"))
    types = _types_of_written(on_true, on_false, values)
    _check_used(inputs, values, types)

    def branch(side: _Branch) -> Callable[[dict[str, Any]], dict[str, Any]]:
        def run_branch(values: dict[str, Any]) -> dict[str, Any]:
            values = {**values, **side.replay(values)}
            return {name: jax.tree.map(_cast, values[name], types[name]) for name in types}

        return run_branch

    written = lax.cond(pred, branch(on_true), branch(on_false), values)
    return {name: written.get(name, values.get(name)) for name in {**values, **types}}


@dataclass(frozen=True)
class _Branch:
    """A traced function.

    Attributes:
        label: the name of its argument.
        written: the types of the values that it writes.
        traced: the jaxpr of `operands -> written`; its constants are the arrays that the function closes over. None:
            the identity.
    """

    label: str
    written: Mapping[str, Any]
    traced: Any = None

    def replay(self, operands: Any) -> dict[str, Any]:
        """Evaluate the jaxpr. Each function is traced once only: nested ones would take exponential time."""
        if self.traced is None:
            return {}
        leaves = core.jaxpr_as_fun(self.traced)(*jax.tree.leaves(operands))
        return jax.tree.unflatten(jax.tree.structure(self.written), leaves)


def _trace(label: str, net: Any, params: Any, operands: dict[str, Any], inputs: Inputs | None) -> _Branch:
    if inputs is None:
        return _Branch(f"`{label}=None`", {})

    def written_by(operands: dict[str, Any]) -> dict[str, Any]:
        written = run("cond_net", label, net, params, {name: operands[name] for name in inputs.among(operands)})
        for name, value in written.items():
            for where, leaf in leaves_with_places(value, name):
                if not is_array_like(leaf):
                    raise TypeError(
                        f"cond_net: `{label}` must write arrays or numbers; got {describe(leaf)} for {where}."
                    )
        return written

    traced, shapes = jax.make_jaxpr(named_after(written_by, net), return_shape=True)(operands)
    return _Branch(f"`{label}`", jax.tree.unflatten(jax.tree.structure(shapes), traced.out_avals), traced)


@dataclass(frozen=True)
class _Type:
    """The type of an array on both sides.

    Attributes:
        shape: its shape.
        dtype: its dtype.
        varying: the axes of a mesh over which it varies, under `jax.shard_map`.
    """

    shape: tuple[Any, ...]
    dtype: Any
    varying: frozenset[str]


def _check_pred(pred: Any) -> None:
    is_boolean = isinstance(pred, bool) or getattr(pred, "dtype", None) == jnp.bool_
    if is_boolean and jnp.shape(pred) == ():
        return
    hint = "Write a comparison, such as x > 0."
    if is_boolean:
        hint = "Reduce it with jnp.any or jnp.all. To choose for each row, use jax.vmap, or jnp.where on the results."
    raise TypeError(f"cond_net: `pred` must be a boolean scalar; got {describe(pred)}. {hint}")


def _check_taken(inputs: Mapping[str, Inputs], operands: Mapping[str, Any]) -> None:
    for label, each in inputs.items():
        if each.of_params in operands:
            raise ValueError(
                f"cond_net: operands must have other names than the first parameter of a function; got "
                f"{each.of_params!r} for both in `{label}`. Rename the operand."
            )
        unbound = [name for name in each.required if name not in operands]
        if unbound:
            raise ValueError(
                f"cond_net: every name that `{label}` takes must be an operand; got no {listing(unbound)} among the "
                f"operands {listing(operands)}.{nearest(unbound[0], operands)}"
            )


def _check_used(inputs: Mapping[str, Inputs], operands: Mapping[str, Any], written: Mapping[str, Any]) -> None:
    unused = [
        name for name in operands if name not in written and not any(each.among([name]) for each in inputs.values())
    ]
    if unused:
        raise ValueError(
            f"cond_net: every operand must be taken or written by a function; got {listing(unused)}, which neither "
            "function takes or writes. Leave them out of `operands`; {**others, **outputs} joins them to the results."
        )


def _types_of_written(true: _Branch, false: _Branch, operands: Mapping[str, Any]) -> dict[str, Any]:
    """The types of the names that a branch writes, on which both sides agree."""
    names = dict.fromkeys([*true.written, *false.written])
    orphans = [
        f"{name!r} from {side.label} only"
        for side, other in ((true, false), (false, true))
        for name in side.written
        if name not in other.written and name not in operands
    ]
    if orphans:
        raise ValueError(
            "cond_net: a name that only one function writes must be an operand, whose value the other keeps; got "
            f"{', '.join(orphans)}, and the operands {listing(operands)}. Write it in both functions, or "
            "add it to `operands`."
        )
    return {name: _common_type(name, *(_value(side, name, operands) for side in (true, false))) for name in names}


def _value(side: _Branch, name: str, operands: Mapping[str, Any]) -> tuple[str, Any]:
    """Where the value of a name comes from if this branch runs, and its type."""
    if name in side.written:
        return f"from {side.label}", side.written[name]
    return f"from `operands`, which {side.label} keeps", jax.tree.map(jax.typeof, operands[name])


def _common_type(name: str, true: tuple[str, Any], false: tuple[str, Any]) -> Any:
    structures: list[Any] = [jax.tree.structure(side[1]) for side in (true, false)]
    if structures[0] != structures[1]:
        raise ValueError(
            f"cond_net: both sides must give a name the same structure; got {structures[0]} {true[0]} and "
            f"{structures[1]} {false[0]} for {name!r}."
        )

    def common(path: Any, left: Any, right: Any) -> Any:
        dtype = _common_dtype(left, right)
        if left.shape == right.shape and dtype is not None:
            return _Type(left.shape, dtype, varying(left) | varying(right))
        raise (TypeError if left.shape == right.shape else ValueError)(
            f"cond_net: both sides must give a name the same shape and dtype; got {describe(left)} {true[0]} and "
            f"{describe(right)} {false[0]} for {name + jax.tree_util.keystr(path)!r}. Cast or reshape one of them."
        )

    return jax.tree_util.tree_map_with_path(common, true[1], false[1])


def _common_dtype(left: Any, right: Any) -> Any:
    """The dtype of both sides, where a weakly typed one, such as a Python number, takes that of the other."""
    if left.dtype == right.dtype:
        return left.dtype
    if is_key(left) or is_key(right):
        return None
    dtypes = [_scalar_type(side.dtype) if side.weak_type else side.dtype for side in (left, right)]
    dtype = jnp.result_type(*dtypes)
    agrees = all(side.weak_type or side.dtype == dtype for side in (left, right))
    return dtype if agrees else None


def _scalar_type(dtype: Any) -> type:
    """The Python type of a weakly typed number, which promotes as weakly."""
    if jnp.issubdtype(dtype, jnp.integer):
        return int
    return float if jnp.issubdtype(dtype, jnp.floating) else complex


def _cast(leaf: Any, common: _Type) -> Any:
    return vary(leaf if is_key(leaf) else jnp.asarray(leaf, common.dtype), common.varying)
