"""Hidden units that are sharded over a mesh: how a step is laid out so that a loop moves only its state."""

from rnnscan.engine.units.lay_out import lay_out as lay_out
from rnnscan.engine.units.mesh import batch_devices as batch_devices
from rnnscan.engine.units.mesh import explicit_reason as explicit_reason
from rnnscan.engine.units.mesh import shard_as_step as shard_as_step
