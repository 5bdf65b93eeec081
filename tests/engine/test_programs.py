"""`python -m fuzz --programs` says which programs a change changes, and no others."""

from dataclasses import replace

import pytest

from fuzz.programs import changed, programs
from rnnscan.engine.costs import heuristics


pytestmark = pytest.mark.fuzz


def test_a_changed_program_is_found(tmp_path, monkeypatch):
    file = tmp_path / "programs.json"
    before = dict(programs(4))
    assert len(before) == 4
    assert changed(before, file) == []
    assert changed(dict(programs(4)), file) == []
    monkeypatch.setitem(heuristics.BACKENDS, "gpu", replace(heuristics.BACKENDS["tpu"], one_kernel=False))
    assert changed(dict(programs(4)), file) == ["seed 4, a gpu"]
