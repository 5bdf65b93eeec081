"""rnnscan: RNNs in JAX, with explicit control over what is saved for the backward pass."""

from importlib import import_module
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from rnnscan import attention as attention
    from rnnscan import cells as cells
    from rnnscan import checkpointing as checkpointing
    from rnnscan import decoding as decoding
    from rnnscan import export as export
    from rnnscan import graph as graph
    from rnnscan import insight as insight
    from rnnscan import interop as interop
    from rnnscan import linen as linen
    from rnnscan import nnx as nnx
    from rnnscan import sharding as sharding
    from rnnscan import train as train
    from rnnscan import truncated as truncated
    from rnnscan.checking.check import check as check
    from rnnscan.compose.adaptive_computation import adaptive_computation as adaptive_computation
    from rnnscan.compose.dropout import drop_weights as drop_weights
    from rnnscan.compose.dropout import dropout as dropout
    from rnnscan.compose.residual import residual as residual
    from rnnscan.compose.stack import stack as stack
    from rnnscan.compose.windowed import windowed as windowed
    from rnnscan.compose.zoneout import zoneout as zoneout
    from rnnscan.control.cond_net import cond_net as cond_net
    from rnnscan.control.do_net import do_net as do_net
    from rnnscan.control.scan_until import scan_until as scan_until
    from rnnscan.control.while_net import while_net as while_net
    from rnnscan.decoding.decode import decode as decode
    from rnnscan.engine.cache.closure_values import ChangedArrayWarning as ChangedArrayWarning
    from rnnscan.inside.nonfinite.find import first_nonfinite as first_nonfinite
    from rnnscan.inside.profiling.profile import profile as profile
    from rnnscan.inside.progress.cell import progress as progress
    from rnnscan.inside.tracing.trace import trace as trace
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
    from rnnscan.nets.bidirectional import bidirectional as bidirectional
    from rnnscan.nets.chain import chain as chain
    from rnnscan.nets.layer import layer as layer
    from rnnscan.newton import Newton as Newton
    from rnnscan.protocols import Cell as Cell
    from rnnscan.protocols import ComposableCell as ComposableCell
    from rnnscan.protocols import InitializableCell as InitializableCell
    from rnnscan.randomness import NoKeyWarning as NoKeyWarning
    from rnnscan.randomness import with_key as with_key
    from rnnscan.scanning import scan as scan
    from rnnscan.tuned import tuned_for as tuned_for
    from rnnscan.versions import JaxVersionWarning as JaxVersionWarning

    __version__: str

# What stands above, for Python: a module is imported when one of its names is used, because all of them take 0.6 of the
# time of `import jax`. `linen`, `nnx` and `train` need extras.
_MODULES = (
    "attention",
    "cells",
    "checkpointing",
    "decoding",
    "export",
    "graph",
    "insight",
    "interop",
    "linen",
    "nnx",
    "sharding",
    "train",
    "truncated",
)
_NAMES = {
    "checking.check": "check",
    "compose.adaptive_computation": "adaptive_computation",
    "compose.dropout": "drop_weights dropout",
    "compose.residual": "residual",
    "compose.stack": "stack",
    "compose.windowed": "windowed",
    "randomness": "NoKeyWarning with_key",
    "compose.zoneout": "zoneout",
    "control.cond_net": "cond_net",
    "control.do_net": "do_net",
    "control.scan_until": "scan_until",
    "control.while_net": "while_net",
    "decoding.decode": "decode",
    "engine.cache.closure_values": "ChangedArrayWarning",
    "inside.nonfinite.find": "first_nonfinite",
    "inside.tracing.trace": "trace",
    "insight.explain": "explain",
    "insight.memory_report": "memory_report",
    "insight.newton_iterations": "newton_iterations",
    "insight.plan": "plan",
    "inside.profiling.profile": "profile",
    "inside.progress.cell": "progress",
    "lengths": "last_valid mask_from_input pack reverse_by_length unpack",
    "memory": "Memory",
    "naming": "name",
    "net": "recurrent_net",
    "nets.bidirectional": "bidirectional",
    "nets.chain": "chain",
    "nets.layer": "layer",
    "newton": "Newton",
    "protocols": "Cell ComposableCell InitializableCell",
    "scanning": "scan",
    "tuned": "tuned_for",
    "versions": "JaxVersionWarning",
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = ["__version__", *_MODULES, *_MODULE_OF]


def __dir__() -> list[str]:
    return sorted(__all__)


def _missing(name: str) -> AttributeError:
    cells = () if name.startswith("_") else vars(import_module("rnnscan.cells"))
    known = {cell: f"rnnscan.cells.{cell}" for cell in cells if cell[0].isupper()}
    known |= {each: f"rnnscan.{each}" for each in __all__}
    error: AttributeError = import_module("rnnscan._util.messages").missing_attribute("rnnscan", name, known)
    return error


if not TYPE_CHECKING:  # A type checker that saw this would allow every name.

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            return import_module(f"rnnscan.{name}")
        if name in _MODULE_OF:
            value = getattr(import_module(f"rnnscan.{_MODULE_OF[name]}"), name)
        elif name == "__version__":
            value = import_module("importlib.metadata").version("rnnscan")
        else:
            raise _missing(name)
        globals()[name] = value
        return value
