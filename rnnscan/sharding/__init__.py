"""Sharding: which axes of a mesh share the parameters, inputs and steps of cells and nets."""

from rnnscan.nets.pipeline import stack_layers as stack_layers
from rnnscan.nets.pipeline import unstack_layers as unstack_layers
from rnnscan.sharding.over_time import scan_over_time as scan_over_time
from rnnscan.sharding.place import place as place
from rnnscan.sharding.place import place_inputs as place_inputs
from rnnscan.sharding.rules import rules as rules
from rnnscan.sharding.rules import units_over as units_over
