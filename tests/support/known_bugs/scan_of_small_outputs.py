"""Each step of a scan with outputs under 256 bytes writes the whole stack (jax#40101)."""

import time

import jax
from jax import lax


STEPS = 20_000
# Of a step. It takes 5 ns, and 6.8 us where each step writes the stack: with the square of the steps.
MOST_SECONDS = 1e-6


def seconds(run):
    begin = time.perf_counter()
    run(1.0).block_until_ready()
    return time.perf_counter() - begin


outputs = jax.jit(lambda carry: lax.scan(lambda carry, _: (0.9 * carry + 0.1, carry), carry, None, length=STEPS)[1])
outputs(1.0).block_until_ready()
print("right" if min(seconds(outputs) for _ in range(5)) < STEPS * MOST_SECONDS else "wrong")
