"""The cache of compiled programs, from one thread and from several."""

import sys
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from rnnscan.engine.cache.bounded_cache import BoundedCache


THREADS = 8


@pytest.fixture
def often_switching():
    """Threads that interrupt each other as often as they can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def in_threads(work):
    with ThreadPoolExecutor(THREADS) as pool:
        return [future.result() for future in [pool.submit(work, number) for number in range(THREADS)]]


def test_it_forgets_the_entry_that_was_used_least_recently():
    cache = BoundedCache(2)
    cache["one"], cache["two"] = 1, 2
    assert cache.get("one") == 1
    cache["three"] = 3
    assert [cache.get(key) for key in ("one", "two", "three")] == [1, None, 3]
    assert len(cache) == 2


@pytest.mark.usefixtures("often_switching")
def test_threads_share_it():
    cache = BoundedCache(4)

    def work(number):
        for turn in range(4_000):
            key = (number * turn) % 7
            value = cache.get(key)
            assert value in (None, key * 10)
            if value is None:
                cache[key] = key * 10

    in_threads(work)
    assert len(cache) <= 4


@pytest.mark.usefixtures("often_switching")
def test_threads_scan_with_one_cell():
    def cell(params, carry, x):
        return jnp.tanh(carry * params + x), carry

    def work(number):
        length = 3 + number % 4
        return [np.asarray(rs.scan(cell, 0.5, jnp.ones(2), jnp.ones((length, 2)))[0]) for _ in range(5)]

    with jax.disable_jit():
        expected = [rs.scan(cell, 0.5, jnp.ones(2), jnp.ones((3 + number, 2)))[0] for number in range(4)]
    for number, results in enumerate(in_threads(work)):
        for result in results:
            np.testing.assert_allclose(result, expected[number % 4], rtol=1e-6)
