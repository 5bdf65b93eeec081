"""A small training loop, and the language model of the command line. The public names are those imported here.

    >>> import tempfile
    >>> import jax, jax.numpy as jnp, numpy as np, optax
    >>> import rnnscan as rs
    >>> from rnnscan import cells, train
    >>> cell, optimizer = cells.GRU(8), optax.adam(1e-2)
    >>> def batch_at(step):  # 4 rows of 16 steps, continued from batch to batch
    ...     times = 16 * step + np.arange(17)[:, None, None]
    ...     return np.sin(times / 5 + np.arange(4)[:, None]).astype(np.float32)
    >>> def loss(params, carry, batch, key):
    ...     carry, outputs = rs.scan(cell, params, carry, batch[:-1])
    ...     return jnp.mean((outputs.mean(axis=-1, keepdims=True) - batch[1:]) ** 2), carry

    >>> run = train.RunDirectory(tempfile.mkdtemp())  # or train.RunDirectory("runs/mine")
    >>> state = train.begin(cell.init(jax.random.key(0), 1), optimizer, carry=cell.initial_carry(jnp.zeros((4, 1))))
    >>> step = train.make_step(loss, optimizer, clip_norm=1.0)
    >>> state = train.fit(step, run.restore(state), batch_at, steps=50, run=run, checkpoint_every=20)
    >>> losses = [line["loss"] for line in run.read_metrics()]
    >>> len(losses), losses[-1] < losses[0] / 2
    (50, True)

Run again after a kill, it resumes from the last checkpoint and ends with the same parameters, bit for bit. The loss may
use any function of the parameters: plain arrays, Flax's `module.apply`, `nnx.merge`.
"""

try:
    from rnnscan.train.config import TrainConfig as TrainConfig
    from rnnscan.train.language_export import export_language_model as export_language_model
    from rnnscan.train.language_model import LanguageModel as LanguageModel
    from rnnscan.train.language_training import begin_language_model as begin_language_model
    from rnnscan.train.language_training import begin_on_mesh as begin_on_mesh
    from rnnscan.train.language_training import bits_per_byte as bits_per_byte
    from rnnscan.train.language_training import train_language_model as train_language_model
    from rnnscan.train.language_training import window_loss as window_loss
    from rnnscan.train.loop import Stopped as Stopped
    from rnnscan.train.loop import fit as fit
    from rnnscan.train.placement import make_mesh as make_mesh
    from rnnscan.train.placement import place_rows as place_rows
    from rnnscan.train.placement import place_state as place_state
    from rnnscan.train.processes import join_processes as join_processes
    from rnnscan.train.run_directory import RunDirectory as RunDirectory
    from rnnscan.train.state import TrainState as TrainState
    from rnnscan.train.state import begin as begin
    from rnnscan.train.step import make_step as make_step
    from rnnscan.train.text import Text as Text
    from rnnscan.train.text import read_text as read_text
except ModuleNotFoundError as error:
    raise ImportError(
        f"rnnscan.train: the extra 'train' must be installed; got no module {error.name!r}. "
        'Install it with the extra: pip install ".[train]" in the checkout of rnnscan.',
        name=error.name,
    ) from error
