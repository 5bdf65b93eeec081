"""Steps under orders of transformations equal plain scans: `make test-orders`.

Odd steps under every order, and random cells under random orders, of which `python -m fuzz --orders` runs more.
"""

import jax
import pytest

from fuzz.every_order import STEPS, failure_of, failures, orders
from fuzz.orders import DERIVATIVES, WRAPPERS, RefusedError, check_order


pytestmark = pytest.mark.newest("orders of transformations")

ORDERS = 20
ORDERS_OF_A_TEST = 4

# What is to be mended yet: these steps are in no fast test.
TO_MEND: tuple[str, ...] = ()
# One in so many orders of two and of three transformations is run for a step, so that these many steps have them all.
SHARE_OF_TWO, SHARE_OF_THREE = 12, 120
STEPS_OF_A_TEST = 8


def some_steps():
    return [step for step in [*STEPS][::4] if step not in TO_MEND]


# In `make test` one step in four is run, under an order of two.
@pytest.mark.parametrize("first", range(0, len(some_steps()), STEPS_OF_A_TEST))
def test_a_step_under_an_order_is_as_in_lax_scan(first):
    pairs = orders(2)
    steps = some_steps()[first : first + STEPS_OF_A_TEST]
    found = [failure_of(step, pairs[(7 * [*STEPS].index(step)) % len(pairs)]) for step in steps]
    assert not any(found), "\n".join(map(str, filter(None, found)))


@pytest.mark.fuzz
@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
def test_a_step_under_every_order_is_as_in_lax_scan(step):
    found = [*failures(step, 1), *failures(step, 2, SHARE_OF_TWO), *failures(step, 3, SHARE_OF_THREE)]
    jax.clear_caches()
    assert not found, "\n".join(map(str, found))


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
