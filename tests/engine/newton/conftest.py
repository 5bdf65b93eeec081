"""What tests of Newton's method share."""

import jax
import pytest

from rnnscan.engine.loops.step_by_step import CycleLoop
from rnnscan.engine.run import runner


@pytest.fixture
def ran_step_by_step(monkeypatch):
    """An item for each chunk that runs step by step, as it runs."""
    ran = []

    class Counted(CycleLoop):
        def __call__(self, *arguments):
            jax.debug.callback(lambda: ran.append(1))
            return super().__call__(*arguments)

    monkeypatch.setattr(runner, "CycleLoop", Counted)
    return ran
