"""The probes of an accelerator: its launch, its bandwidth and its products."""

import jax.numpy as jnp

from benchmarks.cost_model.probe import Probe, Sizes, loop


LAUNCH, BYTE, FLOP = "launch", "byte", "flop"


def accelerator_probes(sizes: Sizes) -> list[Probe]:
    """The nanoseconds of a launch, of a byte that is read or written, and of an operation of a product."""
    small, steps = jnp.full((8, 8), 0.1), sizes.steps

    def squared(a: jnp.ndarray) -> jnp.ndarray:
        return 0.1 * a @ a

    launches = [(1.0, loop(lambda a: squared(squared(squared(a))), small, steps)), (-1.0, loop(squared, small, steps))]
    large, side = jnp.zeros(sizes.rows * sizes.width * 16), 8 * sizes.width
    # One pass reads and writes each element once.
    passes = [(1.0, lambda: large + 1), (-1.0, lambda: large[: large.size // 4] + 1)]
    square = jnp.full((side, side), 0.01)
    products = [(1.0, lambda: square @ square), (-1.0, lambda: square[: side // 4] @ square)]
    return [
        Probe(LAUNCH, "8 x 8 products in a loop", launches, 2 * steps),
        Probe(BYTE, f"{large.nbytes} bytes", passes, 1.5 * large.nbytes),
        Probe(FLOP, f"{side} x {side}", products, 1.5 * side**3),
    ]
