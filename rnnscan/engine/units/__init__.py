"""Hidden units that are sharded over a mesh: a step whose loop moves only its state between devices."""

from rnnscan.engine.units.mesh import batch_devices as batch_devices
from rnnscan.engine.units.mesh import explicit_reason as explicit_reason
from rnnscan.engine.units.mesh import shard_as_step as shard_as_step
from rnnscan.engine.units.shard_units import shard_units as shard_units
