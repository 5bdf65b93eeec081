"""Every cell of the library equals one device if devices share its units, and so does a cell of a user."""

import pytest

from programs import quick_or_slow, report_of


# A cell that joins input and state, and cuts its gates unevenly; with forward mode and vmap.
QUICK = ["Own"]
SLOW = [
    *("RNN", "LSTM", "GRU", "MGU", "LayerNormLSTM", "LayerNormGRU", "MILSTM", "LayerNormMILSTM", "IndRNN", "MinGRU"),
    *("MinLSTM", "QRNN", "SRU", "LRU", "RGLRU", "S6", "SLSTM", "MLSTM", "GLA", "RetNet", "LinearAttention"),
    *("Mamba2", "DeltaNet", "ParaGRU", "ParaLSTM"),
]


def found(quick):
    return report_of("units_of_cells.py", QUICK if quick else SLOW)


@pytest.mark.parametrize(("cell", "quick"), quick_or_slow(QUICK, SLOW))
def test_a_cell_with_sharded_units_equals_one_device(cell, quick):
    assert found(quick)[cell] < 3e-5
