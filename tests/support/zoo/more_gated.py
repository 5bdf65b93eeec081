"""The minimal gated unit, multiplicative integration, and independently recurrent cells, in each of their forms."""

from rnnscan import cells
from zoo.case import Case


CASES = {
    "MGU": Case(cells.MGU(4)),
    "MGU without reset": Case(cells.MGU(4, reset_gate=False)),
    "MGU no bias": Case(cells.MGU(4, use_bias=False, activation="softsign", gate_activation="hard_sigmoid")),
    "MILSTM": Case(cells.MILSTM(4)),
    "MILSTM no bias": Case(cells.MILSTM(4, use_bias=False)),
    "IndRNN": Case(cells.IndRNN(4)),
    "IndRNN tanh": Case(cells.IndRNN(4, activation="tanh", use_bias=False)),
    "ParaGRU": Case(cells.ParaGRU(4)),
    "ParaLSTM": Case(cells.ParaLSTM(4)),
    "ParaLSTM no bias": Case(cells.ParaLSTM(4, use_bias=False)),
    "IndRNN linear": Case(cells.IndRNN(4, activation="identity")),
}
