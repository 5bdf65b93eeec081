"""Checkpointing schedules: how often steps have to run where only some of the carries are kept.

Backpropagation needs what each step computed, the last step first. With less memory than that takes, steps run again
from carries that were kept. A *slot* holds one carry, and what is counted is *evaluations*: how often the cell runs
forward, in all; the backward pass of each step comes on top, and costs about two of them. One evaluation of each step
is *taped*: what it computes is there for the backward pass. The carry that is being computed needs no slot.

`hidden_states`, `internal_states` and `mixed_states` are the least evaluations of any schedule, by the dynamic
programmes of Gruslys et al. 2016; `binomial` is the closed form of the first. `nested` is what `rnnscan.scan` can do:
loops within loops, of lengths that are known when the program is compiled.
"""

from rnnscan.checkpointing.nested_scan import NestedScan as NestedScan
from rnnscan.checkpointing.nested_scan import SubScan as SubScan
from rnnscan.checkpointing.nested_scan import nested as nested
from rnnscan.checkpointing.optimum import binomial as binomial
from rnnscan.checkpointing.optimum import hidden_states as hidden_states
from rnnscan.checkpointing.optimum import internal_states as internal_states
from rnnscan.checkpointing.optimum import mixed_states as mixed_states
