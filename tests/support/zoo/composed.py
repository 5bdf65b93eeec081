"""Cells made of cells."""

import rnnscan as rs
from rnnscan import cells
from zoo.case import Case


CASES = {
    "Stack": Case(rs.stack(cells.LSTM(4), cells.GRU(5))),
    "Stack residual": Case(rs.stack(cells.GRU(4), cells.RNN(4), residual=[1], dropout=0.5)),
    "Residual": Case(rs.residual(cells.GRU(3))),
    "Dropout": Case(rs.dropout(cells.LSTM(4), 0.5)),
    "Zoneout": Case(rs.zoneout(cells.LSTM(4), (0.1, 0.5))),
    "AdaptiveComputation": Case(rs.adaptive_computation(cells.LSTM(4), 4)),
    "AdaptiveComputation around a stack": Case(rs.adaptive_computation(rs.stack(cells.GRU(4), cells.RNN(3)), 3)),
    "Windowed": Case(rs.windowed(cells.GRU(4), 2)),
}
