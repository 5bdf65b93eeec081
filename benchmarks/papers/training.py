"""A training loop for the tasks: Adam on batches that a key draws, many steps in one program."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import optax


def train(
    loss: Callable[[Any, Any], jax.Array],
    params: Any,
    draw: Callable[[jax.Array], Any],
    *,
    steps: int,
    rate: float,
    clip: float | None = None,
    seed: int = 0,
) -> Any:
    """Train with Adam.

    Args:
        loss: `loss(params, batch)`.
        params: the parameters to begin with.
        draw: makes a batch of a key.
        steps: the number of steps.
        rate: the learning rate.
        clip: the largest norm of the gradients; None: any.
        seed: of the batches.

    Returns:
        The trained parameters.
    """
    return trainer(loss, params, draw, rate=rate, clip=clip, seed=seed)(steps)


def trainer(
    loss: Callable[[Any, Any], jax.Array],
    params: Any,
    draw: Callable[[jax.Array], Any],
    *,
    rate: float,
    clip: float | None = None,
    seed: int = 0,
) -> Callable[[int], Any]:
    """A function that trains for a number of further steps, and returns the parameters.

    The next call donates them, and `params` too. The arguments are those of `train`.
    """
    optimizer = optax.adam(rate) if clip is None else optax.chain(optax.clip_by_global_norm(clip), optax.adam(rate))

    @partial(jax.jit, donate_argnums=0)
    def step(state: Any, key: jax.Array) -> Any:
        params, optimizer_state = state
        gradients = jax.grad(loss)(params, draw(key))
        updates, optimizer_state = optimizer.update(gradients, optimizer_state, params)
        return optax.apply_updates(params, updates), optimizer_state

    state, key, done = (params, optimizer.init(params)), jax.random.key(seed), 0

    def run(steps: int) -> Any:
        nonlocal state, done
        for number in range(done, done + steps):
            state = step(state, jax.random.fold_in(key, number))
        done += steps
        return jax.block_until_ready(state[0])

    return run
