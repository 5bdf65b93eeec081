"""The simple, gated and long short-term memory cells, in each of their forms."""

from rnnscan import cells
from zoo.case import Case


CASES = {
    "LSTM": Case(cells.LSTM(4)),
    "LSTM peepholes": Case(cells.LSTM(4, peepholes=True)),
    "LSTM projected": Case(cells.LSTM(4, proj_size=2)),
    "LSTM coupled": Case(cells.LSTM(4, coupled_gates=True, peepholes=True)),
    "LSTM hard": Case(cells.LSTM(4, gate_activation="hard_sigmoid", activation="softsign", use_bias=False)),
    "LSTM clipped": Case(cells.LSTM(4, cell_clip=0.3)),
    "GRU": Case(cells.GRU(4)),
    "GRU reset before": Case(cells.GRU(4, reset_after=False)),
    "GRU no bias": Case(cells.GRU(4, use_bias=False, activation="softsign")),
    "RNN": Case(cells.RNN(4)),
    "RNN no bias": Case(cells.RNN(4, activation="softplus", use_bias=False)),
}
