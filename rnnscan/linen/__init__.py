"""Modules of `flax.linen`: `RNN` and `Bidirectional` replace Flax's own, `Cell` wraps a cell of rnnscan.

The public names are those imported here.
"""

try:
    from rnnscan.linen.bidirectional import Bidirectional as Bidirectional
    from rnnscan.linen.cell import Cell as Cell
    from rnnscan.linen.rnn import RNN as RNN
except ModuleNotFoundError as error:
    raise ImportError(
        f"rnnscan.linen: the extra 'flax' must be installed; got no module {error.name!r}. "
        'Install it with the extra: pip install ".[flax]" in the checkout of rnnscan.',
        name=error.name,
    ) from error
