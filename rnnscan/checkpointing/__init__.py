"""Optimal checkpointing schedules, and the nested scans that come near them. The names imported here are public.

A checkpoint is a saved carry, from which the backward pass recomputes the steps after it. One *slot* holds one carry;
the carry being computed needs none. Schedules are compared by *evaluations*: how often the cell runs forward in total.
One evaluation of each step is *taped*: it saves the residuals of that step. Backward steps, each about as costly as two
evaluations, are not counted.

`hidden_states`, `internal_states` and `mixed_states` are the fewest evaluations of any schedule, and `binomial` is the
closed form of the first. `nested` is what `rnnscan.scan` can run: nested loops whose lengths are static.
"""

from rnnscan.checkpointing.nested_scan import NestedScan as NestedScan
from rnnscan.checkpointing.nested_scan import SubScan as SubScan
from rnnscan.checkpointing.nested_scan import nested as nested
from rnnscan.checkpointing.optimum import binomial as binomial
from rnnscan.checkpointing.optimum import hidden_states as hidden_states
from rnnscan.checkpointing.optimum import internal_states as internal_states
from rnnscan.checkpointing.optimum import mixed_states as mixed_states
