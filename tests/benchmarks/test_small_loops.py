"""Every small loop runs, with its gradient."""

import pytest

from benchmarks.small_loops import LOOPS, seconds_of


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_takes_time(name):
    forward, gradient = seconds_of(name, steps=3, calls=2)
    assert min(forward, gradient) > 0
