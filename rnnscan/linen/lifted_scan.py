"""A module of `flax.linen` as a pure cell: its variables and rngs become arguments of `rnnscan.scan`.

| in `flax.linen.scan` | in a cell `(params, carry, x) -> (carry, y)` |
| --- | --- |
| collections in `variable_broadcast`, such as "params" | `params` |
| collections in `variable_carry`, such as "batch_stats" | part of the carry |
| collections in `variable_axes`, such as "intermediates" | part of x and of y |
| other collections | hidden from the module |
| rngs with `split_rngs` true | part of x: a key for each step |
| rngs with `split_rngs` false | closed over: the same key at each step |

`lifted_scan` is `flax.core.lift.scan` with this translation and another loop. Flax's `pack` opens the scopes of the
module and of those that it shares, and publishes the loop's results.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import errors
from flax.core import lift, meta, partial_eval
from flax.typing import In, Out

from rnnscan._util.messages import listing


def lifted_scan(
    fn: Callable[..., tuple[Any, Any]],
    *,
    run: Callable[..., tuple[Any, Any]],
    variable_axes: Mapping[Any, Any],
    variable_broadcast: Any,
    variable_carry: Any,
    split_rngs: Mapping[Any, bool],
    reverse: bool,
    name: str,
) -> Callable[..., tuple[Any, Any]]:
    """A transform for `flax.linen.transforms.lift_transform`: scan a function of a module over time.

    Args:
        fn: `(scopes, carry, x) -> (carry, y)`, which Flax makes of a function of a module.
        run: runs a pure cell over time, `run(cell, params, carry, xs)`: `rnnscan.scan` with its options.
        variable_axes: as in `flax.linen.scan`.
        variable_broadcast: as in `flax.linen.scan`.
        variable_carry: as in `flax.linen.scan`; an immutable collection does not change.
        split_rngs: as in `flax.linen.scan`.
        reverse: whether `run` goes from the last step to the first. Scanned variables and step keys are in the order of
            the run.
        name: the name of the cell, for profilers.

    Returns:
        `(scopes, carry, xs) -> (carry, ys)`, leaves of xs and ys `(T, ...)`.

    Raises:
        ValueError: if a broadcast variable depends on carry or inputs, or the loop creates a carried one.
    """
    in_axes = {names: _axis(axis) for names, axis in variable_axes.items() if not isinstance(axis, Out)}
    out_axes = {names: _axis(axis) for names, axis in variable_axes.items() if not isinstance(axis, In)}

    def scan(
        scope_fn: Any, repack_fn: Any, variables: Sequence[Any], rngs: Sequence[Any], carry: Any, xs: Any
    ) -> tuple[Any, Any]:
        broadcast, carried, *scanned = variables
        scanned = [_to_front(group, axis) for group, axis in zip(scanned, in_axes.values(), strict=True)]
        shared_keys, step_keys = _split_keys(rngs, split_rngs.values(), length=jax.tree.leaves(xs)[0].shape[0])
        if reverse:
            scanned, step_keys = _flip(scanned), _flip(step_keys)
        counters = _Counters()

        def step(broadcast: Any, carry: Any, x: Any) -> tuple[Any, Any, Any]:
            carried, inner_carry = carry
            scanned, keys, inner_x = x
            rngs = [shared if key is None else key for shared, key in zip(shared_keys, keys, strict=True)]
            scopes = scope_fn((broadcast, carried, *scanned), rngs)
            counters.rewind(scopes)
            inner_carry, y = fn(scopes, inner_carry, inner_x)
            new_broadcast, new_carried, *new_scanned = repack_fn(scopes)
            carry = (_updated(carried, new_carried), inner_carry)
            return _updated(broadcast, new_broadcast), carry, (y, new_scanned)

        carry, xs = (carried, carry), (scanned, step_keys, xs)
        broadcast = _loop_invariant(step, broadcast, carry, xs)
        counters.keep()

        def cell(broadcast: Any, carry: Any, x: Any) -> tuple[Any, Any]:
            _, new_carry, y = step(broadcast, carry, x)
            _check_carried(carry[0], new_carry[0])
            return new_carry, y

        cell.__name__ = name
        (carried, carry), (ys, scanned) = run(cell, broadcast, carry, xs)
        if reverse:
            scanned = _flip(scanned)
        scanned = [_from_front(group, axis) for group, axis in zip(scanned, out_axes.values(), strict=True)]
        return (carry, ys), (broadcast, carried, *scanned)

    groups = (variable_broadcast, variable_carry)
    return lift.pack(scan, (*groups, *in_axes), (*groups, *out_axes), tuple(split_rngs), name="scan")


class _Counters:
    """The number of keys that each scope has drawn from its rngs.

    Flax derives a key from the number of keys drawn before it, and each trace of a module advances that number. Flax's
    loop traces a step twice, first for the loop-invariant variables. Here every later trace draws the keys of the
    second one: a step is then a pure function, and equal to Flax's.
    """

    def __init__(self) -> None:
        self._counters: list[dict[Any, Any]] = []
        self._kept: list[dict[Any, Any]] | None = None

    def rewind(self, scopes: Any) -> None:
        """Set the counts of new scopes to the kept ones, if there are any."""
        self._counters = [scope.rng_counters for scope in jax.tree.leaves(scopes)]
        if self._kept is not None:
            for counters, kept in zip(self._counters, self._kept, strict=True):
                _set_counts(counters, kept)

    def keep(self) -> None:
        """Keep the counts of the latest scopes."""
        self._kept = [_copy_counts(counters) for counters in self._counters]


def _copy_counts(counters: dict[Any, Any]) -> dict[Any, Any]:
    return {key: _copy_counts(count) if isinstance(count, dict) else count for key, count in counters.items()}


def _set_counts(counters: dict[Any, Any], kept: dict[Any, Any]) -> None:
    """Set counts in place, because child scopes share the inner dictionaries."""
    for key in counters.keys() - kept.keys():
        del counters[key]
    for key, count in kept.items():
        if isinstance(count, dict):
            _set_counts(counters.setdefault(key, {}), count)
        else:
            counters[key] = count


def _loop_invariant(step: Callable[..., Any], broadcast: Any, carry: Any, xs: Any) -> Any:
    """The broadcast variables that a step has or creates, computed once, without carry and inputs."""
    x = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), xs)
    carry = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.result_type(leaf)), carry)
    try:
        return partial_eval.lazy_init(lambda carry, x: step(broadcast, carry, x)[0])(carry, x)
    except errors.LazyInitError as error:
        raise ValueError(
            "linen.RNN: a variable in `variable_broadcast` must be the same at every step; got one that depends on "
            "carry or input. Move its collection to `variable_carry` or `variable_axes`."
        ) from error


def _updated(before: Sequence[Any], after: Sequence[Any]) -> tuple[Any, ...]:
    """The collections of each scope after a step, which does not return the immutable ones."""
    return tuple({**old, **new} for old, new in zip(before, after, strict=True))


def _check_carried(before: Sequence[Any], after: Sequence[Any]) -> None:
    def structure(collection: Any) -> Any:
        return jax.tree.structure(collection)

    for old, new in zip(before, after, strict=True):
        created = [name for name in new if structure(new[name]) != structure(old.get(name))]
        if created:
            raise ValueError(
                "linen.RNN: the variables in `variable_carry` must exist before the first step; got collections in "
                f"which the cell creates some: {listing(created)}. Initialize with them in `variable_broadcast`, as in "
                "Flax, or create them before the loop."
            )


def _split_keys(rngs: Sequence[Any], splits: Any, length: int) -> tuple[list[Any], list[Any]]:
    """The groups of rngs that all steps share, and those split into a key for each step; None in the other list."""

    def split(key: Any) -> Any:
        return jax.random.split(jax.random.clone(key), length)

    pairs = list(zip(rngs, splits, strict=True))
    shared = [None if is_split else group for group, is_split in pairs]
    return shared, [jax.tree.map(split, group) if is_split else None for group, is_split in pairs]


def _axis(axis: Any) -> int:
    return axis.axis if isinstance(axis, In | Out) else axis


def _to_front(group: Any, axis: int) -> Any:
    return jax.tree.map(lambda leaf: jnp.moveaxis(leaf, axis, 0), meta.remove_axis(group, axis, {}))


def _from_front(group: Any, axis: int) -> Any:
    return meta.add_axis(jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, axis), group), axis, {})


def _flip(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf[::-1], tree)
