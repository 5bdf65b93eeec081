"""The cells of the library: frozen dataclasses of options. The names imported here are public."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from rnnscan._util.messages import missing_attribute as _missing_attribute
from rnnscan.cells import activations as activations
from rnnscan.cells import initializers as initializers
from rnnscan.cells.convolutional import ConvGRU as ConvGRU
from rnnscan.cells.convolutional import ConvLSTM as ConvLSTM
from rnnscan.cells.delta_net import DeltaNet as DeltaNet
from rnnscan.cells.gla import GLA as GLA
from rnnscan.cells.gru import GRU as GRU
from rnnscan.cells.indrnn import IndRNN as IndRNN
from rnnscan.cells.layer_norm import LayerNormGRU as LayerNormGRU
from rnnscan.cells.layer_norm import LayerNormLSTM as LayerNormLSTM
from rnnscan.cells.linear_attention import LinearAttention as LinearAttention
from rnnscan.cells.lru import LRU as LRU
from rnnscan.cells.lstm import LSTM as LSTM
from rnnscan.cells.mamba2 import Mamba2 as Mamba2
from rnnscan.cells.mgu import MGU as MGU
from rnnscan.cells.minimal import MinGRU as MinGRU
from rnnscan.cells.minimal import MinLSTM as MinLSTM
from rnnscan.cells.mlstm import MLSTM as MLSTM
from rnnscan.cells.multiplicative import MILSTM as MILSTM
from rnnscan.cells.multiplicative import LayerNormMILSTM as LayerNormMILSTM
from rnnscan.cells.para import ParaGRU as ParaGRU
from rnnscan.cells.para import ParaLSTM as ParaLSTM
from rnnscan.cells.qrnn import QRNN as QRNN
from rnnscan.cells.retnet import RetNet as RetNet
from rnnscan.cells.rglru import RGLRU as RGLRU
from rnnscan.cells.rnn import RNN as RNN
from rnnscan.cells.s6 import S6 as S6
from rnnscan.cells.slstm import SLSTM as SLSTM
from rnnscan.cells.sru import SRU as SRU


if not _TYPE_CHECKING:  # A type checker that saw this would allow every name.

    def __getattr__(name: str) -> object:
        known = {each: f"rnnscan.cells.{each}" for each in globals() if not each.startswith("_")}
        raise _missing_attribute("rnnscan.cells", name, known)
