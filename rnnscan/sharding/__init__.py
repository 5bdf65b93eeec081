"""Sharding: which axes of a mesh share the parameters and the inputs of cells and nets."""

from rnnscan.sharding.place import place as place
from rnnscan.sharding.place import place_inputs as place_inputs
from rnnscan.sharding.rules import rules as rules
from rnnscan.sharding.rules import units_over as units_over
