"""Cells composed of cells, which compose again. The names imported here are public."""

from rnnscan.compose.adaptive_computation import AdaptiveComputation as AdaptiveComputation
from rnnscan.compose.adaptive_computation import adaptive_computation as adaptive_computation
from rnnscan.compose.dropout import Dropout as Dropout
from rnnscan.compose.dropout import drop_weights as drop_weights
from rnnscan.compose.dropout import dropout as dropout
from rnnscan.compose.residual import Residual as Residual
from rnnscan.compose.residual import residual as residual
from rnnscan.compose.stack import Stack as Stack
from rnnscan.compose.stack import stack as stack
from rnnscan.compose.windowed import Windowed as Windowed
from rnnscan.compose.windowed import windowed as windowed
from rnnscan.compose.zoneout import Zoneout as Zoneout
from rnnscan.compose.zoneout import zoneout as zoneout
from rnnscan.randomness import with_key as with_key
