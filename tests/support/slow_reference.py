"""What rnnscan.scan means, written as loops over rows and steps: slow, and plainly right.

A row is run alone. A padded step is not run at all, so nothing of it can leak. Gradients are those of the loops.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import rnnscan as rs
from drawn import normal


WIDTHS = {"features": 3, "hidden": 4, "outputs": 2}


def cell(params: Any, carry: Any, x: Any) -> tuple[Any, Any]:
    """A cell with two names, an integer in its carry, and outputs that are not its carry."""
    preactivation = rs.name(
        x["signal"] @ params["kernel"] + carry["hidden"] @ params["recurrent_kernel"] + params["bias"], "preactivation"
    )
    gate = rs.name(jax.nn.sigmoid(preactivation @ params["gate"]), "gate")
    hidden = gate * jnp.tanh(preactivation) + (1 - gate) * carry["hidden"]
    y = {"out": jnp.sin(hidden) @ params["out"] * x["scale"], "count": carry["count"]}
    return {"hidden": hidden, "count": carry["count"] + x["token"]}, y


def arguments(seed: int, length: int, batch: int) -> tuple[Any, Any, Any]:
    """Random params, carry and xs for `cell`; nothing is zero."""
    random = np.random.default_rng(seed)
    features, hidden, outputs = WIDTHS.values()

    def draw(*shape: int) -> jax.Array:
        return normal(random, shape, jnp.result_type(float))

    params = {
        "kernel": draw(features, hidden) / 2,
        "recurrent_kernel": draw(hidden, hidden) / 2,
        "bias": draw(hidden),
        "gate": draw(hidden, hidden) / 2,
        "out": draw(hidden, outputs),
    }
    carry = {"hidden": draw(batch, hidden), "count": jnp.asarray(np.arange(batch) + 1)}
    xs = {
        "signal": draw(length, batch, features),
        "scale": draw(length),
        "token": jnp.asarray(random.integers(1, 5, size=(length, batch))),
    }
    return params, carry, xs


def loop(
    cell: Any,
    params: Any,
    carry: Any,
    xs: Any,
    *,
    valid: Any = None,
    reset: Any = None,
    reset_to: Any = None,
    padding: str = "zero",
    truncate: int | None = None,
    reverse: bool = False,
) -> tuple[Any, Any]:
    """`rnnscan.scan`, row by row and step by step. `valid` and `reset` are `(T, N)`, concrete."""
    batch = jax.tree.leaves(carry)[0].shape[0]
    rows = []
    for row in range(batch):
        row_carry = jax.tree.map(lambda leaf, row=row: leaf[row : row + 1], carry)
        row_xs = jax.tree.map(lambda leaf, row=row: leaf[:, row : row + 1] if leaf.ndim > 1 else leaf, xs)
        rows.append(
            _loop_of_a_row(
                cell,
                params,
                row_carry,
                row_xs,
                valid=None if valid is None else valid[:, row],
                reset=None if reset is None else reset[:, row],
                reset_to=jax.tree.map(lambda leaf, row=row: leaf[row : row + 1], reset_to),
                padding=padding,
                truncate=truncate,
                reverse=reverse,
            )
        )
    carries, ys = zip(*rows, strict=True)
    join = lambda axis: lambda *leaves: jnp.concatenate(leaves, axis)  # noqa: E731
    return jax.tree.map(join(0), *carries), jax.tree.map(join(1), *ys)


def _loop_of_a_row(
    cell: Any,
    params: Any,
    initial: Any,
    xs: Any,
    *,
    valid: Any,
    reset: Any,
    reset_to: Any,
    padding: str,
    truncate: Any,
    reverse: bool,
) -> tuple[Any, Any]:
    length = jax.tree.leaves(xs)[0].shape[0]
    y_types = jax.eval_shape(cell, params, initial, jax.tree.map(lambda leaf: leaf[0], xs))[1]
    no_y = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), y_types)
    carry, last_y, ys = initial, no_y, {}
    for count, t in enumerate(reversed(range(length)) if reverse else range(length)):
        if truncate is not None and count > 0 and count % truncate == 0:
            carry = jax.lax.stop_gradient(carry)
        if valid is not None and not valid[t]:
            carry = jax.tree.map(jnp.zeros_like, carry) if padding == "drop" else carry
            ys[t] = last_y if padding == "hold" else no_y
            continue
        if reset is not None and reset[t]:
            carry = reset_to
        carry, last_y = cell(params, carry, jax.tree.map(lambda leaf, t=t: leaf[t], xs))
        ys[t] = last_y
    return carry, jax.tree.map(lambda *leaves: jnp.stack(leaves), *(ys[t] for t in range(length)))


def loss(result: Any) -> jax.Array:
    """A loss that every float in a result feeds, each with a weight of its own."""
    total = jnp.zeros(())
    for leaf in jax.tree.leaves(result):
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            weights = np.cos(np.arange(leaf.size)).astype(leaf.dtype).reshape(leaf.shape)
            total = total + jnp.sum(jnp.sin(leaf) * weights)
    return total


def assert_close(one: Any, other: Any, tolerance: float = 1e-12) -> None:
    """Equal structure, dtypes and values, to rounding in float64."""
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(one), jax.tree.leaves(other), strict=True):
        assert a.dtype == b.dtype, path
        assert a.shape == b.shape, path
        if a.dtype == jax.dtypes.float0:
            continue
        a, b = np.asarray(a), np.asarray(b)
        assert np.all(np.abs(a - b) <= tolerance * (1 + np.abs(b))), (path, a, b)
