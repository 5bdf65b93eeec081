"""The training loop: truncated backpropagation through time over contiguous streams, and the held-out evaluation."""

from collections.abc import Callable
from functools import partial
from math import isfinite, log
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, UInt8
from tqdm import tqdm

import rnnscan as rs
from rnnscan.train.checkpoint import RunDirectory
from rnnscan.train.config import TrainConfig
from rnnscan.train.language_model import LanguageModel
from rnnscan.train.text import Text, check_enough, contiguous_streams


NATS_PER_BIT = log(2)
# Within 80 columns. What a narrower terminal cuts off is at the end.
PROGRESS = "{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt}{postfix} [{elapsed}<{remaining}]"


class TrainState(NamedTuple):
    """All that the rest of a training run follows from, beside its options and its text.

    Attributes:
        params: the model's parameters.
        optimizer_state: optax's state.
        carry: the state of the recurrent cells after the last window.
        step: the number of windows trained on. The place in the text follows from it.
    """

    params: Any
    optimizer_state: Any
    carry: Any
    step: Int[Array, ""]


@partial(jax.jit, static_argnames="config")
def initial_state(config: TrainConfig) -> TrainState:
    """The state before the first step.

    Args:
        config: the run's options.

    Returns:
        Fresh parameters, from the run's seed, and a carry of zeros.
    """
    params = config.model.init(jax.random.key(config.seed))
    return TrainState(params, optimizer(config).init(params), config.model.initial_carry(config.batch), jnp.array(0))


def optimizer(config: TrainConfig) -> optax.GradientTransformation:
    """AdamW on gradients of a norm of at most 1; the learning rate warms up for a twentieth of the run, then falls."""
    schedule = optax.warmup_cosine_decay_schedule(
        init_value=0.0,
        peak_value=config.learning_rate,
        warmup_steps=config.steps // 20,
        decay_steps=config.steps,
    )
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule))


def window_loss(
    config: TrainConfig, memory: rs.Memory | None, streams: Int[np.ndarray, "window_plus_1 batch"]
) -> Callable[[Any], Float[Array, ""]]:
    """One window's loss as a function of the parameters alone, for counting bytes and measuring time.

    Args:
        config: the run's options; what they say of memory is not read.
        memory: what to keep between the forward and the backward pass.
        streams: the window's bytes and the one after it, of each stream.

    Returns:
        The function.
    """
    carry = config.model.initial_carry(config.batch)
    inputs, targets = jnp.asarray(streams[:-1]), jnp.asarray(streams[1:])
    return lambda params: config.model.loss(params, carry, inputs, targets, memory=memory)[0]


@partial(jax.jit, static_argnames="config")
def train_step(
    state: TrainState, inputs: Int[Array, "window batch"], targets: Int[Array, "window batch"], *, config: TrainConfig
) -> tuple[TrainState, Float[Array, ""]]:
    """Train on one window.

    Args:
        state: the state before it.
        inputs: the window's bytes, of each stream.
        targets: the bytes that follow them.
        config: the run's options.

    Returns:
        The state after it, and the window's loss before the update, in nats a byte.
    """
    loss_and_gradient = jax.value_and_grad(partial(config.model.loss, memory=config.memory), has_aux=True)
    (loss, carry), gradient = loss_and_gradient(state.params, state.carry, inputs, targets)
    updates, optimizer_state = optimizer(config).update(gradient, state.optimizer_state, state.params)
    return TrainState(optax.apply_updates(state.params, updates), optimizer_state, carry, state.step + 1), loss


def train(
    config: TrainConfig, text: Text, *, state: TrainState | None = None, run: RunDirectory | None = None
) -> TrainState:
    """Train to the end of the run, with a progress bar.

    Args:
        config: the run's options.
        text: what to train on.
        state: where to go on from; None: from the beginning.
        run: where to write the losses of all steps and the checkpoints; None: nowhere.

    Returns:
        The state after the last step.

    Raises:
        FloatingPointError: if a loss is infinite or not a number. It is not written.
        ValueError: if the text is too short for one window.

    Example:
        >>> import numpy as np
        >>> bytes = np.arange(100, dtype=np.uint8)
        >>> text = Text(bytes, bytes, train_files=1, held_out_files=1)
        >>> config = TrainConfig(hidden=4, embedding=2, batch=2, window=8, steps=3)
        >>> int(train(config, text).step)
        3
    """
    check_enough(text, batch=config.batch, window=config.window)
    streams = contiguous_streams(text.train, config.batch)
    windows = (len(streams) - 1) // config.window
    state = initial_state(config) if state is None else state
    first = int(state.step)
    with tqdm(total=config.steps, initial=first, unit="step", bar_format=PROGRESS, dynamic_ncols=True) as progress:
        for step in range(first, config.steps):
            start = step % windows * config.window
            if start == 0:
                state = state._replace(carry=config.model.initial_carry(config.batch))
            window = streams[start : start + config.window + 1]
            state, loss = train_step(state, window[:-1], window[1:], config=config)
            nats = float(loss)
            if not isfinite(nats):
                raise FloatingPointError(
                    f"train: the loss must be finite; got {nats} at step {step + 1}, with the learning rate "
                    f"{config.learning_rate}. Start again with a lower learning rate."
                )
            progress.set_postfix_str(_status(progress, nats, tokens=config.batch * config.window), refresh=False)
            progress.update()
            if run is not None:
                run.log(step + 1, nats)
                if (step + 1) % config.checkpoint_every == 0 or step + 1 == config.steps:
                    run.save(state)
    return state


def _status(progress: Any, nats: float, *, tokens: int) -> str:
    """A step's loss and how fast the steps are, for the progress bar before it counts the step."""
    now = progress.format_dict
    # Before its first averages, tqdm knows no rate.
    steps_per_second = now["rate"] or (now["n"] + 1 - now["initial"]) / max(now["elapsed"], 1e-9)
    speed = tqdm.format_sizeof(tokens * steps_per_second)
    return f"loss {nats:#.3g}, {nats / NATS_PER_BIT:#.3g} bits/byte, {speed} tokens/s"


def evaluate(
    model: LanguageModel, params: dict[str, Any], text: UInt8[np.ndarray, " bytes"], *, rows: int, window: int
) -> float:
    """The bits a byte that a model needs for a text.

    Args:
        model: the model.
        params: its parameters.
        text: at least two bytes. The first, and less than `rows` at the end, are not predicted.
        rows: the most contiguous streams that are read side by side. There are fewer of a short text, so that each
            is longer than the memory of what came before it takes to build up.
        window: steps that are computed at once. It does not change the result.

    Returns:
        The mean of -log2 p over the bytes.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import numpy as np
        >>> model = LanguageModel(hidden=4, embedding=2)
        >>> params = jax.tree.map(jnp.zeros_like, model.init(jax.random.key(0)))
        >>> text = np.arange(100, dtype=np.uint8)
        >>> round(evaluate(model, params, text, rows=1, window=8), 3)  # all 256 bytes are as likely
        8.0
    """
    streams = contiguous_streams(text, max(1, min(rows, text.size // (8 * window))))
    carry = model.initial_carry(streams.shape[1])
    nats = 0.0
    for start in range(0, len(streams) - 1, window):
        part = streams[start : start + window + 1]
        loss, carry = _loss(params, carry, part[:-1], part[1:], model=model)
        nats += float(loss) * (len(part) - 1)
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
