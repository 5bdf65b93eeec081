"""The cells with layer normalization, in each of their forms."""

from rnnscan import cells
from zoo.case import Case


CASES = {
    "LayerNormLSTM": Case(cells.LayerNormLSTM(4)),
    "LayerNormLSTM products": Case(cells.LayerNormLSTM(4, normalize="products")),
    "LayerNormLSTM no bias": Case(cells.LayerNormLSTM(4, use_bias=False, epsilon=1e-4)),
    "LayerNormLSTM products no bias": Case(cells.LayerNormLSTM(5, normalize="products", use_bias=False)),
    "LayerNormGRU": Case(cells.LayerNormGRU(4)),
    "LayerNormGRU no bias": Case(cells.LayerNormGRU(4, use_bias=False, activation="softsign")),
    "LayerNormMILSTM": Case(cells.LayerNormMILSTM(4)),
    "LayerNormMILSTM no bias": Case(cells.LayerNormMILSTM(4, use_bias=False)),
}
