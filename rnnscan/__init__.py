"""rnnscan: recurrent networks in JAX that keep in memory what you say, and compute the rest again."""

from rnnscan import cells as cells
from rnnscan.compose import stack as stack
from rnnscan.insight.explain import explain as explain
from rnnscan.memory import Memory as Memory
from rnnscan.naming import name as name
from rnnscan.net import recurrent_net as recurrent_net
from rnnscan.scan import scan as scan
