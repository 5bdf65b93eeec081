"""Attention decoders: cells that attend to an encoder's outputs. The names imported here are public."""

from rnnscan.attention.additive import Additive as Additive
from rnnscan.attention.additive import Coverage as Coverage
from rnnscan.attention.additive import RecurrentAdditive as RecurrentAdditive
from rnnscan.attention.decoder import AttentionCell as AttentionCell
from rnnscan.attention.decoder import Decoder as Decoder
from rnnscan.attention.decoder import decoder as decoder
from rnnscan.attention.dot import Dot as Dot
from rnnscan.attention.mechanism import Mechanism as Mechanism
from rnnscan.attention.multi_head import MultiHead as MultiHead
