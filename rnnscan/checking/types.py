"""The check of the carry's types."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from rnnscan._util.messages import describe
from rnnscan.checking.checks import Check, Part, needs
from rnnscan.checking.compare import Finding
from rnnscan.checking.leaves import by_path, cast, types_of
from rnnscan.checking.loop import one_step
from rnnscan.checking.trial import Size, Trial


def _parts(trial: Trial) -> Iterator[tuple[str, Part]]:
    for dtype in (trial.dtype, jnp.float32, jnp.bfloat16):
        yield jnp.dtype(dtype).name, partial(keeps_its_types, dtype=dtype)


def keeps_its_types(trial: Trial, size: Size, *, dtype: Any) -> Finding:
    """The types of the carry before and after a step, where all floating arguments have one dtype."""
    size = Size(1, size.rows)
    arguments = (trial.params(), trial.start(size), trial.inputs(size))
    with jax.enable_x64(jnp.dtype(dtype) == jnp.float64):
        params, carry, xs = (types_of(cast(tree, dtype)) for tree in arguments)
        try:
            after = jax.eval_shape(lambda *arguments: one_step(trial).run(*arguments)[0], params, carry, xs)
        except TypeError as error:
            return Finding(jnp.inf, f"in {jnp.dtype(dtype).name}, a step raises: {str(error).splitlines()[0]}")
    before, now = by_path(carry, "carry"), by_path(after, "carry")
    structures: list[Any] = [jax.tree.structure(carry), jax.tree.structure(after)]
    if structures[0] != structures[1]:
        return Finding(jnp.inf, f"the carry is {structures[0]} before a step, and {structures[1]} after it")
    for name, leaf in before.items():
        new = now[name]
        # A leaf that the rows share may become one for each row.
        if leaf.dtype != new.dtype or new.shape not in (leaf.shape, (size.rows, *leaf.shape)):
            shown = f"{name} is {describe(leaf)} before a step, and {describe(new)} after it"
            return Finding(jnp.inf, f"in {jnp.dtype(dtype).name}, {shown}")
    return Finding()


TYPES = Check("types", "A step keeps the carry's structure, shapes and dtypes.", needs("carry"), _parts, is_long=False)
