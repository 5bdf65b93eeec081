"""Nets run cells over whole sequences and compose to nets. The public names are those imported here."""

from rnnscan.nets.bidirectional import Bidirectional as Bidirectional
from rnnscan.nets.bidirectional import bidirectional as bidirectional
from rnnscan.nets.chain import Chain as Chain
from rnnscan.nets.chain import chain as chain
from rnnscan.nets.layer import Layer as Layer
from rnnscan.nets.layer import layer as layer
