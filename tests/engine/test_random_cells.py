"""The fission engine equals plain autodiff on random cells. `python -m fuzz` runs more of them."""

import jax
import pytest

import rnnscan as rs
from fuzz.compare import UnequalError, check, features
from fuzz.random_cells import FEATURES


CELLS, CELLS_OF_A_TEST = 300, 10


@pytest.mark.parametrize("first", range(0, CELLS, CELLS_OF_A_TEST))
def test_random_cells_equal_plain_autodiff(first):
    unequal, refused = [], None
    for seed in range(first, first + CELLS_OF_A_TEST):
        try:
            check(seed)
        except UnequalError as error:
            unequal.append(str(error))
        except NotImplementedError as error:
            refused = error
    jax.clear_caches()  # What is compiled is used once, and would fill the memory.
    assert not unequal, "\n\n".join(unequal)
    if refused is not None:  # conftest.py skips it, where that is as it should be.
        raise refused


def test_every_feature_occurs_in_the_random_cells():
    occurring = frozenset().union(*map(features, range(CELLS)))
    assert occurring == set(FEATURES)


def test_another_result_is_found_and_says_how_to_replay_it(monkeypatch):
    scan = rs.scan

    def wrong(*arguments, engine, **options):
        final, ys = scan(*arguments, engine=engine, **options)
        return final, jax.tree.map(lambda leaf: leaf * 2, ys) if engine == "auto" else ys

    monkeypatch.setattr(rs, "scan", wrong)
    with pytest.raises(UnequalError, match="python -m fuzz --start 1 --count 1"):
        check(1)
