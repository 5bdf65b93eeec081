"""Strategies of `rnnscan.decode`, and decoders for it. The names imported here are public."""

from rnnscan.decoding.decoder import decoder as decoder
from rnnscan.decoding.ensemble import ensemble as ensemble
from rnnscan.decoding.length_penalty import GNMTPenalty as GNMTPenalty
from rnnscan.decoding.length_penalty import LengthPenalty as LengthPenalty
from rnnscan.decoding.length_penalty import PowerPenalty as PowerPenalty
from rnnscan.decoding.result import Decoded as Decoded
from rnnscan.decoding.strategies import Beam as Beam
from rnnscan.decoding.strategies import Greedy as Greedy
from rnnscan.decoding.strategies import Sample as Sample
