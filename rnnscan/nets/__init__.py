"""Nets: what runs cells over whole sequences, and is composed of such again."""

from rnnscan.nets.bidirectional import Bidirectional as Bidirectional
from rnnscan.nets.bidirectional import bidirectional as bidirectional
from rnnscan.nets.chain import Chain as Chain
from rnnscan.nets.chain import chain as chain
from rnnscan.nets.layer import Layer as Layer
from rnnscan.nets.layer import layer as layer
