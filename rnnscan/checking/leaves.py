"""Pytrees as dictionaries of their leaves by path, and random leaves of a type."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rnnscan._util.messages import is_key


def by_path(tree: Any, root: str) -> dict[str, Any]:
    """The leaves of a pytree by their places, such as `carry/0` or `params/kernel`."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {"/".join(filter(None, (root, _simple(path)))): leaf for path, leaf in leaves}


def _simple(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def is_inexact(leaf: Any) -> bool:
    """Whether a leaf has a gradient."""
    return not is_key(leaf) and bool(jnp.issubdtype(leaf.dtype, jnp.inexact))


def cast(tree: Any, dtype: Any) -> Any:
    """A pytree whose real floating leaves have another dtype, and whose complex leaves have its precision."""
    return jax.tree.map(lambda leaf: _cast(leaf, jnp.dtype(dtype)), tree)


def cast_type(leaf: Any, dtype: Any) -> Any:
    """The dtype of a leaf after `cast`."""
    if is_key(leaf):
        return leaf.dtype
    if jnp.issubdtype(leaf.dtype, jnp.complexfloating):
        return jnp.dtype(jnp.complex128 if jnp.dtype(dtype) == jnp.float64 else jnp.complex64)
    return jnp.dtype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf.dtype


def _cast(leaf: Any, dtype: Any) -> Any:
    kind = cast_type(leaf, dtype)
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(leaf.shape, kind)
    return leaf if is_key(leaf) else np.asarray(leaf).astype(kind)


def types_of(tree: Any) -> Any:
    """The types of a pytree of arrays."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)


def random_like(random: np.random.Generator, leaf: Any, shape: tuple[int, ...], *, like: Any = None) -> Any:
    """A random array of a leaf's dtype.

    Args:
        random: the generator.
        leaf: an array or a type.
        shape: the shape of the result.
        like: an array whose values give the range; None: floats are normal, integers 0 or 1.
    """
    if is_key(leaf):
        seeds = jnp.asarray(random.integers(0, 2**31, size=shape), jnp.uint32)
        keys = jax.random.key(0) if not shape else jax.vmap(jax.random.key)(seeds.reshape(-1)).reshape(shape)
        return keys if keys.dtype == leaf.dtype else jax.random.key(0, impl=jax.random.key_impl(leaf))
    dtype = jnp.dtype(leaf.dtype)
    known = None if like is None or np.size(like) == 0 else np.asarray(like)
    if dtype == np.bool_:
        return random.random(shape) < 0.5
    if jnp.issubdtype(dtype, jnp.integer):
        least, most = (0, 1) if known is None else (int(known.min()), int(known.max()))
        return random.integers(least, most + 1, size=shape).astype(dtype)
    scale, mean = 1.0, 0.0
    if known is not None and np.isfinite(known.astype(complex)).all():
        wide = known.astype(complex if jnp.issubdtype(dtype, jnp.complexfloating) else float)
        scale, mean = float(wide.std()) or 1.0, wide.mean()
    values = scale * random.normal(size=shape)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        values = values + 1j * scale * random.normal(size=shape)
    return np.asarray(mean + values).astype(dtype)
