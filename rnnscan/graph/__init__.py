"""Cells as graphs: queries and rewrites that leave the function the same. What is imported here is public."""

from rnnscan.graph.bodies import bodies as bodies
from rnnscan.graph.built_in_statuses import status_of_memory as status_of_memory
from rnnscan.graph.built_in_statuses import status_of_types as status_of_types
from rnnscan.graph.built_in_statuses import status_of_work as status_of_work
from rnnscan.graph.graph import Graph as Graph
from rnnscan.graph.names import Literal as Literal
from rnnscan.graph.names import Name as Name
from rnnscan.graph.node import Captured as Captured
from rnnscan.graph.node import Node as Node
from rnnscan.graph.node import SubgraphIO as SubgraphIO
from rnnscan.graph.rewrites.dead_ends import remove_dead_ends as remove_dead_ends
from rnnscan.graph.rewrites.engine_passes import ENGINE_PASSES as ENGINE_PASSES
from rnnscan.graph.rewrites.match import Match as Match
from rnnscan.graph.rewrites.merge_common import merge_common as merge_common
from rnnscan.graph.rewrites.rename import fuse_names as fuse_names
from rnnscan.graph.rewrites.rename import rename_input as rename_input
from rnnscan.graph.rewrites.rename import rename_output as rename_output
from rnnscan.graph.rewrites.replace import matches as matches
from rnnscan.graph.rewrites.replace import replace as replace
from rnnscan.graph.rewrites.reshapes import remove_reshapes_for_dot as remove_reshapes_for_dot
from rnnscan.graph.rewrites.round_trips import fuse_round_trips as fuse_round_trips
from rnnscan.graph.status import Statuses as Statuses
from rnnscan.graph.status import infer_status as infer_status
from rnnscan.graph.status import same_status as same_status
from rnnscan.graph.trace import trace as trace
