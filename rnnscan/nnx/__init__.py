"""Modules of `flax.nnx`: `RNN` and `Bidirectional` replace Flax's own, `Cell` wraps a cell, `Streaming` keeps a carry.

The public names are those imported here.
"""

try:
    from rnnscan.nnx.bidirectional import Bidirectional as Bidirectional
    from rnnscan.nnx.cell import Cell as Cell
    from rnnscan.nnx.rnn import RNN as RNN
    from rnnscan.nnx.streaming import Streaming as Streaming
    from rnnscan.nnx.streaming import StreamState as StreamState
except ModuleNotFoundError as error:
    raise ImportError(
        f"rnnscan.nnx: the extra 'flax' must be installed; got no module {error.name!r}. "
        'Install it with the extra: pip install ".[flax]" in the checkout of rnnscan.',
        name=error.name,
    ) from error
