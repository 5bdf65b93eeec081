"""Cells with a small product and a reduction for each of more than 32,768 rows. `python -m fuzz --rows` runs more."""

import jax
import pytest

from fuzz.compare import UnequalError
from fuzz.many_rows import ManyRows, check_rows
from tiers import variants


# 28 is right with jaxlib 0.10.0 and 0.11, and wrong with 0.10.2.
TELLING = 28


def assert_equal(seed):
    try:
        check_rows(seed)
    except UnequalError as error:
        if not ManyRows(seed).is_miscompiled:
            raise
        pytest.xfail(f"jaxlib miscompiles it (docs/versions.md): {str(error)[:200]}")


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", variants(range(40), [TELLING]))
def test_many_rows_equal_few_at_a_time(seed):
    assert_equal(seed)
    jax.clear_caches()  # What is compiled is used once.


def test_a_wrong_row_is_found_and_says_how_to_replay_it(monkeypatch):
    by_rnnscan = ManyRows.by_rnnscan

    def wrong(self, *arguments):
        carry, ys = by_rnnscan(self, *arguments)
        return carry, ys.at[:, -1].add(1)

    monkeypatch.setattr(ManyRows, "by_rnnscan", wrong)
    with pytest.raises(UnequalError, match=f"python -m fuzz --rows --start {TELLING} --count 1"):
        check_rows(TELLING)
