"""Random cells under random orders of transformations equal plain scans. `python -m fuzz --orders` runs more."""

import jax
import pytest

from fuzz.orders import DERIVATIVES, WRAPPERS, RefusedError, check_order


pytestmark = pytest.mark.newest("orders of transformations")

ORDERS = 40
ORDERS_OF_A_TEST = 4


def check_orders(seeds):
    """The layers of the orders that plain `lax.scan` can run. UnequalError says which seed it is."""
    layers = []
    for seed in seeds:
        try:
            layers.append(check_order(seed))
        except RefusedError:
            continue
    return layers


@pytest.mark.fuzz
@pytest.mark.parametrize("first", range(0, ORDERS, ORDERS_OF_A_TEST))
def test_random_orders_equal_plain_scans(first):
    assert check_orders(range(first, first + ORDERS_OF_A_TEST))
    jax.clear_caches()  # What is compiled is used once, and would fill the memory.


@pytest.mark.fuzz
@pytest.mark.slow
@pytest.mark.parametrize("first", range(ORDERS, 1_000, 40))
def test_more_random_orders_equal_plain_scans(first):
    seeds = range(first, first + 40)
    layers = {layer for order in check_orders(seeds) for layer in order}
    assert layers >= {*WRAPPERS, "vmap"}
    assert layers & {*DERIVATIVES}
    jax.clear_caches()
