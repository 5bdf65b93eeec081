"""Where the bytes go: what is kept between the forward and the backward pass, counted and not estimated."""

from rnnscan.insight.bytes import kept_bytes as kept_bytes
from rnnscan.insight.bytes import temporary_bytes as temporary_bytes
