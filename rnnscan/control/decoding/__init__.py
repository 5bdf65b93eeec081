"""Strategies of `rnnscan.decode`, and decoders for it. The names imported here are public."""

from rnnscan.control.decoding.decoder import decoder as decoder
from rnnscan.control.decoding.ensemble import ensemble as ensemble
from rnnscan.control.decoding.length_penalty import GNMTPenalty as GNMTPenalty
from rnnscan.control.decoding.length_penalty import LengthPenalty as LengthPenalty
from rnnscan.control.decoding.length_penalty import PowerPenalty as PowerPenalty
from rnnscan.control.decoding.result import Decoded as Decoded
from rnnscan.control.decoding.strategies import Beam as Beam
from rnnscan.control.decoding.strategies import Greedy as Greedy
from rnnscan.control.decoding.strategies import Sample as Sample
