"""rnnscan: RNNs in JAX, with explicit control over what is saved for the backward pass."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rnnscan import attention as attention
from rnnscan import cells as cells
from rnnscan import checkpointing as checkpointing
from rnnscan import decoding as decoding
from rnnscan import export as export
from rnnscan import graph as graph
from rnnscan import interop as interop
from rnnscan import sharding as sharding
from rnnscan import truncated as truncated
from rnnscan.compose import adaptive_computation as adaptive_computation
from rnnscan.compose import drop_weights as drop_weights
from rnnscan.compose import dropout as dropout
from rnnscan.compose import residual as residual
from rnnscan.compose import stack as stack
from rnnscan.compose import windowed as windowed
from rnnscan.compose import with_key as with_key
from rnnscan.compose import zoneout as zoneout
from rnnscan.control import cond_net as cond_net
from rnnscan.control import do_net as do_net
from rnnscan.control import scan_until as scan_until
from rnnscan.control import while_net as while_net
from rnnscan.decoding.decode import decode as decode
from rnnscan.insight.explain import explain as explain
from rnnscan.insight.memory_report import memory_report as memory_report
from rnnscan.insight.newton_iterations import newton_iterations as newton_iterations
from rnnscan.insight.plan import plan as plan
from rnnscan.lengths import last_valid as last_valid
from rnnscan.lengths import mask_from_input as mask_from_input
from rnnscan.lengths import pack as pack
from rnnscan.lengths import reverse_by_length as reverse_by_length
from rnnscan.lengths import unpack as unpack
from rnnscan.memory import Memory as Memory
from rnnscan.naming import name as name
from rnnscan.net import recurrent_net as recurrent_net
from rnnscan.nets import bidirectional as bidirectional
from rnnscan.nets import chain as chain
from rnnscan.nets import layer as layer
from rnnscan.newton import Newton as Newton
from rnnscan.protocols import Cell as Cell
from rnnscan.protocols import ComposableCell as ComposableCell
from rnnscan.protocols import InitializableCell as InitializableCell
from rnnscan.scan import scan as scan
from rnnscan.tuned import tuned_for as tuned_for


if TYPE_CHECKING:
    from rnnscan import linen as linen
    from rnnscan import nnx as nnx
    from rnnscan import train as train
else:

    def __getattr__(name: str) -> Any:
        # What needs an extra is imported where it is used. mypy must not see this, or it allows every name.
        if name in ("linen", "nnx", "train"):
            return import_module(f"rnnscan.{name}")
        raise AttributeError(f"module 'rnnscan' has no attribute {name!r}")
