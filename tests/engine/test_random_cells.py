"""The fission engine equals plain autodiff on random cells. `python -m fuzz` runs more of them."""

import secrets

import jax
import pytest

import rnnscan as rs
from fuzz.compare import UnequalError, check, features
from fuzz.random_cells import FEATURES
from tiers import variants


# The fewest seeds in which every feature occurs. The first ten have 118 of the 139.
FEW = (156, 214, 233, 138, 52, 251, 27, 76, 32, 23, 166, 51, 237, 30, 63, 22, 100)
CELLS_OF_A_TEST = 10


def assert_equal(seeds):
    """UnequalError says which seed it is and how to replay it."""
    unequal, refused = [], None
    for seed in seeds:
        try:
            check(seed)
        except UnequalError as error:
            unequal.append(str(error))
        except NotImplementedError as error:
            refused = error
    assert not unequal, "\n\n".join(unequal)
    if refused is not None:  # conftest.py skips it, where that is as it should be.
        raise refused


@pytest.mark.parametrize("seed", variants(FEW, FEW[:7]))
def test_random_cells_with_every_feature_equal_plain_autodiff(seed):
    assert_equal([seed])


@pytest.mark.fuzz
@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 300, CELLS_OF_A_TEST))
def test_more_random_cells_equal_plain_autodiff(first):
    assert_equal(range(first, first + CELLS_OF_A_TEST))
    jax.clear_caches()  # What is compiled is used once, and would fill the memory.


@pytest.mark.fuzz
@pytest.mark.slow
@pytest.mark.parametrize("part", range(5))
def test_cells_that_were_never_drawn_before_equal_plain_autodiff(part):
    first = 1_000 + secrets.randbelow(10**9)
    assert_equal(range(first, first + CELLS_OF_A_TEST))


def test_every_feature_occurs_in_the_random_cells():
    occurring = frozenset().union(*map(features, FEW))
    assert occurring == set(FEATURES)


def test_another_result_is_found_and_says_how_to_replay_it(monkeypatch):
    scan = rs.scan

    def wrong(*arguments, engine, **options):
        final, ys = scan(*arguments, engine=engine, **options)
        return final, jax.tree.map(lambda leaf: leaf * 2, ys) if engine == "auto" else ys

    monkeypatch.setattr(rs, "scan", wrong)
    with pytest.raises(UnequalError, match="python -m fuzz --start 92 --count 1"):
        check(92)
