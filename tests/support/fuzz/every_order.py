"""Every order of transformations around scans of odd steps: `rs.scan` must be what `lax.scan` is there.

Each pair of a step and an order is run with one choice of memory, engine and platform. The choice goes round, so that
each step and each order meet them all.
"""

import itertools
import traceback
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import rnnscan as rs
from fuzz.compare import COMPILER_OPTIONS
from fuzz.layers import DEGREES, MAPS, is_inexact, transformed
from fuzz.leaves import Run, runs_of_leaves
from fuzz.steps_with_effects import HAPPENED, PURE, WITH_EFFECTS


ROWS = 3
# Of float32, for derivatives of up to the third degree, relative to the largest element of a leaf.
TOLERANCE = 5e-4
# Of bfloat16: gradients are rounded to it, by `lax.scan` after each step, by rnnscan at the end. Computed in float32,
# they lie one spacing from either.
TOLERANCE_OF_HALF = 2.0**-8
GREATEST_DEGREE = 3
DEEP_LAYERS = ("jit", "checkpoint", "vmap", "vmap by name", "grad", "jvp", "linearize", "jacfwd", "hessian")
SHALLOW_LAYERS = (*DEEP_LAYERS, "policy", "cond", "scan")

PLATFORMS = ("cpu", "gpu", "tpu")
MEMORIES = {
    "default": rs.Memory(),
    "all": rs.Memory(recompute="all"),
    "sqrt": rs.Memory(segment="sqrt"),
    "None": None,
}
# A step with effects is refused where a memory choice asks to run it again.
MEMORIES_OF_EFFECTS = ("default", "None")

# Which of the results the loss reads: the others have symbolic zeros as their cotangents.
LOSSES = {"all": slice(None), "one leaf": slice(1), "the outputs": slice(-1, None), "no first leaf": slice(1, None)}

# Memory, engine, platform, what the loss reads, and whether the whole is jitted.
Choice = tuple[str, str, str, str, bool]

STEPS: dict[str, Run] = {**dict(runs_of_leaves()), **PURE, **WITH_EFFECTS}


@dataclass(frozen=True)
class Failure:
    """Where `rs.scan` is not what `lax.scan` is.

    Attributes:
        step: the name of the step.
        order: the transformations, from the inside to the outside.
        choice: how it was run.
        kind: what differs.
        detail: the message.
    """

    step: str
    order: tuple[str, ...]
    choice: Choice
    kind: str
    detail: str

    def __str__(self) -> str:
        order = " of ".join(reversed(self.order)) or "nothing"
        memory, engine, platform, loss, jitted = self.choice
        how = f"memory {memory}, engine {engine}, {platform}, loss of {loss}{', jitted' if jitted else ''}"
        return f"{self.kind}: {self.step}: {order}, {how}: {self.detail}"


def orders(depth: int) -> list[tuple[str, ...]]:
    """All orders of so many transformations that are worth a run."""
    layers = SHALLOW_LAYERS if depth < 3 else DEEP_LAYERS
    return [order for order in itertools.product(layers, repeat=depth) if _is_worth_it(order)]


def _is_worth_it(order: Sequence[str]) -> bool:
    repeated = any(one == other and one not in (*DEGREES, "vmap") for one, other in itertools.pairwise(order))
    return (
        not repeated
        and sum(DEGREES.get(layer, 0) for layer in order) <= GREATEST_DEGREE
        and order.count("vmap by name") < 2
    )


def choice_of(step: str, order: Sequence[str]) -> Choice:
    """How a step is run under an order."""
    number = zlib.crc32(" ".join([step, *order]).encode())
    memories = MEMORIES_OF_EFFECTS if step in WITH_EFFECTS else (*MEMORIES,)
    number, memory = divmod(number, len(memories))
    number, platform = divmod(number, len(PLATFORMS))
    number, jitted = divmod(number, 3)
    number, loss = divmod(number, len(LOSSES))
    return memories[memory], "lax" if number % 6 == 0 else "auto", PLATFORMS[platform], [*LOSSES][loss], jitted > 0


def failure_of(step: str, order: Sequence[str], choice: Choice | None = None) -> Failure | None:
    """What differs for a step under an order, run in one way or as `choice_of` says; None if nothing does."""
    order = tuple(order)
    choice = choice or choice_of(step, order)
    memory, engine, platform, _, _ = choice
    failure = partial(Failure, step, order, choice)
    expected = _outcome(_plain_scan, STEPS[step], order, choice)
    ours = partial(rs.scan, memory=MEMORIES[memory], engine=engine)
    with rs.tuned_for(platform):
        actual = _outcome(ours, STEPS[step], order, choice)
    match expected, actual:
        case Exception(), Exception():
            if isinstance(actual, type(expected)):
                return None
            return failure("another error", f"{_line(actual)}; lax.scan: {_line(expected)}")
        case Exception(), _:
            # rnnscan may do more than lax.scan.
            return None
        case _, Exception():
            return failure("raises", _line(actual))
    expected, expected_effects = expected
    actual, effects = actual
    if effects != expected_effects:
        return failure("effects", f"{dict(effects)}, expected {dict(expected_effects)}")
    different = _difference(actual, expected, TOLERANCE_OF_HALF if step.startswith("half ") else TOLERANCE)
    return different and failure("values", different)


def _plain_scan(cell: Any, params: Any, carry: Any, xs: Any) -> Any:
    return jax.lax.scan(partial(cell, params), carry, xs)


def _line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()] or [""]
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/rnnscan/" in frame.filename]
    where = f" ({frames[-1].filename.split('/rnnscan/')[-1]}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {lines[0][:160]}{where}"


def _outcome(scan: Any, run: Run, order: tuple[str, ...], choice: Choice) -> Any:
    """The results and how often each effect happened; or the error."""
    HAPPENED.clear()
    *_, loss, jitted = choice

    def function(mapped: list[Any], shared: list[Any]) -> Any:
        results = [_data(leaf) for leaf in jax.tree.leaves(run(scan, *mapped, *shared))]
        return {"loss": _loss(results[LOSSES[loss]]), "rest": results}

    function = transformed(function, list(order))
    if jitted:
        function = jax.jit(function, compiler_options=COMPILER_OPTIONS)
    axes = sum(layer in MAPS for layer in order)
    mapped = jnp.asarray(0.4 + 0.3 * np.sin(np.arange(2.0 * ROWS**axes)), jnp.float32)
    try:
        results = function([mapped.reshape(*[ROWS] * axes, 2)], [jnp.asarray([0.7, 0.9], jnp.float32)])
        jax.block_until_ready(results)
        jax.effects_barrier()
    except Exception as error:
        return error
    return results, Counter(HAPPENED)


def _data(leaf: Any) -> Any:
    leaf = jnp.asarray(leaf)
    return jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf


def _loss(results: list[Any]) -> Any:
    """A sum with another weight for each element."""
    loss = jnp.zeros(())
    for leaf in results:
        if is_inexact(leaf):
            leaf = jnp.real(leaf) + jnp.imag(leaf) if jnp.iscomplexobj(leaf) else leaf
            weights = np.cos(np.arange(leaf.size)).reshape(leaf.shape).astype(np.float32)
            loss += jnp.sum(weights * jnp.sin(leaf.astype(jnp.float32)))
    return loss


def _difference(actual: Any, expected: Any, tolerance: float) -> str | None:
    if jax.tree.structure(actual) != jax.tree.structure(expected):
        return "another structure"
    paths = jax.tree_util.tree_leaves_with_path(expected)
    for (path, wanted), got in zip(paths, jax.tree.leaves(actual), strict=True):
        where = jax.tree_util.keystr(path)
        if (got.shape, got.dtype) != (wanted.shape, wanted.dtype):
            return f"{where} is {got.shape} {got.dtype}, expected {wanted.shape} {wanted.dtype}"
        if wanted.dtype == jax.dtypes.float0:
            continue
        got, wanted = np.asarray(got), np.asarray(wanted)
        if not is_inexact(wanted):
            if not np.array_equal(got, wanted):
                return f"{where} is {got.tolist()}, expected {wanted.tolist()}"
            continue
        got, wanted = (np.asarray(leaf, complex if np.iscomplexobj(leaf) else float) for leaf in (got, wanted))
        scale = 1 + np.max(np.abs(wanted), initial=0)
        if not np.allclose(got, wanted, rtol=0, atol=tolerance * scale, equal_nan=True):
            return f"{where} is {got.tolist()}, expected {wanted.tolist()}"
    return None


def failures(step: str, depth: int, share: int = 1) -> list[Failure]:
    """What differs for a step, under one in `share` of the orders of a depth."""
    found = [failure_of(step, order) for order in orders_of(step, depth, share)]
    return [failure for failure in found if failure is not None]


def orders_of(step: str, depth: int, share: int) -> Iterator[tuple[str, ...]]:
    """One in `share` of the orders, others for each step, so that `share` steps have them all."""
    place = [*STEPS].index(step)
    yield from (order for number, order in enumerate(orders(depth)) if number % share == place % share)
