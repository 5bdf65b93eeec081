"""Cells of the library: frozen dataclasses that hold configuration only, and know nothing of engines."""

from rnnscan.cells import activations as activations
from rnnscan.cells import initializers as initializers
from rnnscan.cells.gru import GRU as GRU
from rnnscan.cells.lstm import LSTM as LSTM
from rnnscan.cells.rnn import RNN as RNN
