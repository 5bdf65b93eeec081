"""Reports on memory and time: explain, memory_report, plan, the trade-off, and pictures."""

from rnnscan._util.byte_sizes import readable_bytes as readable_bytes
from rnnscan.insight.measure_losses import Tradeoff as Tradeoff
from rnnscan.insight.measure_losses import measure_losses as measure_losses
from rnnscan.insight.tradeoff import measure_tradeoff as measure_tradeoff
from rnnscan.planning.bytes import kept_bytes as kept_bytes
from rnnscan.planning.bytes import temporary_bytes as temporary_bytes
