"""What tests of Newton's method share."""

import jax
import pytest

from rnnscan.engine.loops import newton_solve
from rnnscan.engine.loops.step_by_step import CycleLoop


@pytest.fixture
def ran_step_by_step(monkeypatch):
    """An item for each chunk that runs step by step, as it runs."""
    ran = []

    class Counted(CycleLoop):
        def __call__(self, *arguments):
            jax.debug.callback(lambda: ran.append(1))
            return super().__call__(*arguments)

    monkeypatch.setattr(newton_solve, "CycleLoop", Counted)
    return ran
