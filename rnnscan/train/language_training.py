"""Train the byte-level language model on contiguous streams of text."""

from collections.abc import Callable
from functools import lru_cache, partial
from math import log
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, Int, UInt8
from tqdm import tqdm

from rnnscan.memory import Memory
from rnnscan.train.config import TrainConfig
from rnnscan.train.language_model import LanguageModel
from rnnscan.train.loop import fit
from rnnscan.train.metrics import Metrics
from rnnscan.train.placement import place_rows, place_state
from rnnscan.train.run_directory import RunDirectory
from rnnscan.train.state import TrainState, begin
from rnnscan.train.step import Step, make_step
from rnnscan.train.text import Text, check_enough, contiguous_streams, stream_bytes


NATS_PER_BIT = log(2)


@partial(jax.jit, static_argnames="config")
def begin_language_model(config: TrainConfig) -> TrainState:
    """The state before the first step: parameters from the run's seed, and a carry of zeros."""
    params = config.model.init(jax.random.key(config.seed))
    return begin(params, optimizer(config), carry=config.model.initial_carry(config.batch), seed=config.seed)


def begin_on_mesh(config: TrainConfig, mesh: Mesh) -> TrainState:
    """The state before the first step, on a mesh of `make_mesh`.

    Raises:
        ValueError: if the devices do not divide the streams or the units.
    """
    check_streams(config, mesh)
    specs, units = config.model.sharding_rules(mesh), PartitionSpec("data", "model")
    return place_state(begin_language_model(config), optimizer(config), mesh, specs, carry=units)


def check_streams(config: TrainConfig, mesh: Mesh) -> None:
    """Raise a ValueError if the devices of the axis `"data"` do not divide the streams."""
    if config.batch % mesh.shape["data"]:
        raise ValueError(
            f"train: the {mesh.shape['data']} devices of the axis 'data' must divide the streams; got "
            f"batch={config.batch}. Change the batch or the mesh."
        )


def optimizer(config: TrainConfig) -> optax.GradientTransformation:
    """AdamW with a learning rate that warms up for a twentieth of the run, then decays."""
    schedule = optax.warmup_cosine_decay_schedule(
        init_value=0.0,
        peak_value=config.learning_rate,
        warmup_steps=config.steps // 20,
        decay_steps=config.steps,
    )
    return optax.adamw(schedule)


@lru_cache(maxsize=8)  # Compiles a step once for all runs with the same options.
def language_model_step(config: TrainConfig) -> Step:
    """A step from `make_step` that clips gradients to norm 1. Its batch is `(window + 1, batch)` bytes."""

    def loss(
        params: dict[str, Any], carry: Any, streams: Int[Array, "window_plus_1 batch"], key: Array
    ) -> tuple[Float[Array, ""], Any, dict[str, Array]]:
        nats, carry = config.model.loss(params, carry, streams[:-1], streams[1:], memory=config.memory)
        return nats, carry, {"bits_per_byte": nats / NATS_PER_BIT}

    return make_step(loss, optimizer(config), clip_norm=1.0)


def window_loss(
    config: TrainConfig, memory: Memory | None, streams: Int[np.ndarray, "window_plus_1 batch"]
) -> Callable[[Any], Float[Array, ""]]:
    """One window's loss as a function of the parameters, to count bytes and measure time.

    Args:
        config: the run's options, except those of memory.
        memory: what to keep for the backward pass.
        streams: the window's bytes and the next one, of each stream.
    """
    carry = config.model.initial_carry(config.batch)
    inputs, targets = jnp.asarray(streams[:-1]), jnp.asarray(streams[1:])
    return lambda params: config.model.loss(params, carry, inputs, targets, memory=memory)[0]


def train_language_model(
    config: TrainConfig,
    text: Text,
    *,
    state: TrainState | None = None,
    run: RunDirectory | None = None,
    mesh: Mesh | None = None,
    check_finite: bool = False,
) -> TrainState:
    """Train to the end of the run. The carry passes from window to window and restarts with each epoch.

    Args:
        config: the run's options.
        text: the text to train on.
        state: the state to resume from; None: start.
        run: the directory for metrics and checkpoints; None: write nothing.
        mesh: a mesh of `make_mesh`, on which `state` lies; None: one device.
        check_finite: whether to stop at the first step that is not finite, and to say where it began; see `fit`.

    Returns:
        The state after the last step.

    Raises:
        FloatingPointError: if the losses of several steps in a row are not finite; see `fit`.
        Stopped: after SIGTERM, if `run` is given.
        ValueError: if the text is too short for one window, or the devices do not divide the streams or the units.

    Example:
        >>> import numpy as np
        >>> bytes = np.arange(100, dtype=np.uint8)
        >>> text = Text(bytes, bytes, train_files=1, held_out_files=1)
        >>> config = TrainConfig(hidden=4, embedding=2, batch=2, window=8, steps=3)
        >>> int(train_language_model(config, text).step)
        3
    """
    check_enough(text, batch=config.batch, window=config.window)
    streams = stream_bytes(text.train, config.batch)
    windows = (len(streams) - 1) // config.window
    initial = begin_language_model(config) if mesh is None else begin_on_mesh(config, mesh)

    def batch_at(step: int) -> Int[np.ndarray | Array, "window_plus_1 batch"]:
        start = step % windows * config.window
        batch = streams[start : start + config.window + 1]
        if mesh is None:
            return batch.astype(np.int32)
        return place_rows(batch, mesh, PartitionSpec(None, "data"), np.int32)

    return fit(
        language_model_step(config),
        initial if state is None else state,
        batch_at,
        steps=config.steps,
        carry_at=lambda step, carry: initial.carry if step % windows == 0 else carry,
        run=run,
        checkpoint_every=None if run is None else config.checkpoint_every,
        check_finite=check_finite,
        describe=partial(_describe, tokens=config.batch * config.window),
    )


def _describe(metrics: Metrics, steps_per_second: float, *, tokens: int) -> str:
    """A step's loss and the speed, for the progress bar."""
    speed = tqdm.format_sizeof(tokens * steps_per_second)
    return f"loss {metrics['loss']:#.3g}, {metrics['bits_per_byte']:#.3g} bits/byte, {speed} tokens/s"


def bits_per_byte(
    model: LanguageModel, params: dict[str, Any], text: UInt8[np.ndarray, " bytes"], *, rows: int, window: int
) -> float:
    """The bits per byte that a model needs for a text: the mean of -log2 p over the bytes.

    Args:
        model: the model.
        params: its parameters.
        text: at least two bytes. The first, and fewer than `rows` at the end, are not predicted.
        rows: the largest number of contiguous streams. A short text has fewer, so that each stream is long enough for
            the carry to build up.
        window: steps to compute together. It does not change the result.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import numpy as np
        >>> model = LanguageModel(hidden=4, embedding=2)
        >>> params = jax.tree.map(jnp.zeros_like, model.init(jax.random.key(0)))
        >>> text = np.arange(100, dtype=np.uint8)
        >>> round(bits_per_byte(model, params, text, rows=1, window=8), 3)  # all 256 bytes are as likely
        8.0
    """
    streams = contiguous_streams(text, max(1, min(rows, text.size // (8 * window))))
    carry = model.initial_carry(streams.shape[1])
    nats = 0.0
    for start in range(0, len(streams) - 1, window):
        bytes_of_window = streams[start : start + window + 1]
        loss, carry = _loss(params, carry, bytes_of_window[:-1], bytes_of_window[1:], model=model)
        nats += float(loss) * (len(bytes_of_window) - 1)
    return nats / (len(streams) - 1) / NATS_PER_BIT


@partial(jax.jit, static_argnames="model")
def _loss(
    params: dict[str, Any],
    carry: Any,
    inputs: Int[Array, "window rows"],
    targets: Int[Array, "window rows"],
    *,
    model: LanguageModel,
) -> tuple[Float[Array, ""], Any]:
    return model.loss(params, carry, inputs, targets)
