"""The cells whose state is linear in itself, each in its forms."""

from rnnscan.cells.lru import LRU
from rnnscan.cells.minimal import MinGRU, MinLSTM, positive
from rnnscan.cells.qrnn import QRNN
from rnnscan.cells.rglru import RGLRU
from rnnscan.cells.sru import SRU
from zoo.case import Case


CASES = {
    "SRU": Case(SRU(4)),
    "SRU as wide as x": Case(SRU(3, activation="tanh", highway_scale=1.7)),
    "SRU vectors": Case(SRU(4, recurrent_vectors=True, highway_bias=-1.0)),
    "SRU no bias": Case(SRU(4, use_bias=False)),
    "QRNN": Case(QRNN(4)),
    "QRNN f": Case(QRNN(4, pooling="f", window=3)),
    "QRNN ifo": Case(QRNN(4, pooling="ifo", use_bias=False, gate_activation="hard_sigmoid")),
    "MinGRU": Case(MinGRU(4)),
    "MinGRU positive": Case(MinGRU(4, activation=positive)),
    "MinLSTM": Case(MinLSTM(4)),
    "MinLSTM no bias": Case(MinLSTM(4, use_bias=False, activation="tanh")),
    "RGLRU": Case(RGLRU(4), features=(4,)),
    "RGLRU heads": Case(RGLRU(4, heads=2, use_bias=False), features=(4,)),
    "RGLRU plain first step": Case(RGLRU(4, heads=2, first_step="plain"), features=(4,)),
    "LRU": Case(LRU(4)),
    "LRU wide": Case(LRU(4, state_size=6, r_min=0.4, r_max=0.9, max_phase=0.3)),
    "LRU vector": Case(LRU(4, state_size=3, skip="vector"), features=(4,)),
}
