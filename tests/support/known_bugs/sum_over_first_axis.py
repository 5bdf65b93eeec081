"""A sum over the first axis takes many times as long as one over the first two, which sums more."""

import time

import jax
import jax.numpy as jnp


MOST = 6


def seconds(axes):
    run = jax.jit(lambda values: jnp.sum(values, axis=axes))
    values = jnp.ones((8, 64, 1024))
    run(values).block_until_ready()
    times = []
    for _ in range(50):
        begin = time.perf_counter()
        run(values).block_until_ready()
        times.append(time.perf_counter() - begin)
    return min(times)


ratio = seconds((0,)) / seconds((0, 1))
print(f"{ratio:.1f}")
print("right" if ratio < MOST else "wrong")
