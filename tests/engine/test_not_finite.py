"""NaN, inf and overflows in the arguments of random cells reach what they reach in `lax.scan`, under every plan.

What does not depend on a value in the loop does not depend on it in any plan, and a select chooses.
`python -m fuzz --planted` runs more of them, and tests/cells/test_not_finite.py the cells of the library.
"""

import jax
import pytest

from fuzz.compare import UnequalError
from fuzz.orders import RefusedError
from fuzz.planted import check_planted


# These have plants in xs, carry and params, selects, resets and each kind of derivative.
FEW = (0, 1, 4, 9)
CELLS_OF_A_TEST = 10
PLATFORMS = ("cpu", "gpu", "tpu")


def assert_equal(seeds, platforms=()):
    """UnequalError says which seed it is and how to replay it."""
    unequal, compared = [], 0
    for seed in seeds:
        try:
            check_planted(seed, platforms)
            compared += 1
        except RefusedError:
            continue
        except UnequalError as error:
            unequal.append(str(error))
    assert not unequal, "\n\n".join(unequal)
    assert compared


@pytest.mark.parametrize("seed", FEW)
def test_what_is_not_finite_goes_no_further_than_in_lax_scan(seed):
    assert_equal([seed])


def test_what_depends_on_the_program_in_plain_jax_is_not_compared():
    # A product with ones and zeros, a relu that is differentiated twice, and a rule that is differentiated twice.
    assert_equal((52216, 52254, 52612))


@pytest.mark.fuzz
@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 200, CELLS_OF_A_TEST))
def test_what_is_not_finite_goes_no_further_under_the_choices_of_every_platform(first):
    assert_equal(range(first, first + CELLS_OF_A_TEST), PLATFORMS)
    jax.clear_caches()  # What is compiled is used once, and would fill the memory.
