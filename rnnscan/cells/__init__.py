"""The cells of the library: frozen dataclasses of options. The names imported here are public."""

from rnnscan.cells import activations as activations
from rnnscan.cells import initializers as initializers
from rnnscan.cells.convolutional import ConvGRU as ConvGRU
from rnnscan.cells.convolutional import ConvLSTM as ConvLSTM
from rnnscan.cells.gru import GRU as GRU
from rnnscan.cells.indrnn import IndRNN as IndRNN
from rnnscan.cells.layer_norm import LayerNormGRU as LayerNormGRU
from rnnscan.cells.layer_norm import LayerNormLSTM as LayerNormLSTM
from rnnscan.cells.lru import LRU as LRU
from rnnscan.cells.lstm import LSTM as LSTM
from rnnscan.cells.mgu import MGU as MGU
from rnnscan.cells.minimal import MinGRU as MinGRU
from rnnscan.cells.minimal import MinLSTM as MinLSTM
from rnnscan.cells.mlstm import MLSTM as MLSTM
from rnnscan.cells.multiplicative import MILSTM as MILSTM
from rnnscan.cells.multiplicative import LayerNormMILSTM as LayerNormMILSTM
from rnnscan.cells.qrnn import QRNN as QRNN
from rnnscan.cells.rglru import RGLRU as RGLRU
from rnnscan.cells.rnn import RNN as RNN
from rnnscan.cells.slstm import SLSTM as SLSTM
from rnnscan.cells.sru import SRU as SRU
