"""Cells as graphs: queries and rewrites that leave the function the same. What is imported here is public."""

from rnnscan.graph.graph import Graph as Graph
from rnnscan.graph.names import Literal as Literal
from rnnscan.graph.names import Name as Name
from rnnscan.graph.node import Captured as Captured
from rnnscan.graph.node import Node as Node
from rnnscan.graph.node import SubgraphIO as SubgraphIO
from rnnscan.graph.trace import trace as trace
