"""Recurrent PPO on a memory task, in plain JAX and optax, like PureJaxRL's ppo_rnn.

    pip install ".[train]"
    python examples/recurrent_ppo.py
    python examples/recurrent_ppo.py --memoryless     # for comparison: reset the carry before every step

The task: the first observation of an episode shows one of four cues. At the last step, 3 to 11 steps later, the agent
must name the cue for a reward of 1. Without memory it is right in 25 % of the episodes.

The agent runs in two ways, with the same logits and values:

    acting      `Agent.step`, one step at a time. The carry passes from step to step and from rollout to rollout.
    learning    `Agent.__call__`, over a whole rollout, from the rollout's initial carry.

In both, `reset` resets the carry before the first step of an episode. Episodes begin and end within rollouts.
"""

from dataclasses import dataclass
from functools import cache, partial
from time import perf_counter
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
import typer
from tqdm import tqdm

import rnnscan as rs
from rnnscan import cells
from rnnscan.insight import kept_bytes


CUES = 4
SHORTEST, LONGEST = 4, 12  # steps of an episode
MINIBATCHES = 4


class Episodes(NamedTuple):
    """The task: one episode in each row; leaves are `(N,)`."""

    cue: Any
    length: Any
    step: Any


def begin_episodes(key, rows):
    """New episodes with random cues and lengths."""
    cue_key, length_key = jax.random.split(key)
    cue = jax.random.randint(cue_key, (rows,), 0, CUES)
    length = jax.random.randint(length_key, (rows,), SHORTEST, LONGEST + 1)
    return Episodes(cue, length, jnp.zeros_like(cue))


def observe(episodes):
    """The observation `(N, CUES + 1)`: the cue at the first step, and a one at the last step."""
    cue = jnp.where(episodes.step[:, None] == 0, jax.nn.one_hot(episodes.cue, CUES), 0)
    return jnp.concatenate([cue, (episodes.step == episodes.length - 1)[:, None]], axis=1)


def play(key, episodes, action):
    """One step of the task: the new episodes, the rewards, and `done`, true at the last step of an episode."""
    done = episodes.step == episodes.length - 1
    reward = jnp.where(done & (action == episodes.cue), 1.0, 0.0)
    running = episodes._replace(step=episodes.step + 1)
    new = begin_episodes(key, len(done))
    return jax.tree.map(lambda *leaves: jnp.where(done, *leaves), new, running), reward, done


@dataclass(frozen=True)
class Agent:
    """A dense layer, a recurrent net, and dense layers for policy and value. Parameters are a plain dict."""

    net: Any
    memory: rs.Memory | None

    def init(self, key):
        """Make parameters."""
        keys, hidden = jax.random.split(key, 4), self.net.output_size
        return {
            "embedding": init_dense(keys[0], CUES + 1, hidden, scale=2**0.5),
            "net": self.net.init(keys[1], hidden),
            "policy": init_dense(keys[2], hidden, CUES, scale=0.01),
            "value": init_dense(keys[3], hidden, 1, scale=1),
        }

    def initial_carry(self, rows):
        """The carry before the first step: zeros."""
        return self.net.initial_carry(jnp.zeros((1, rows, self.net.output_size)))

    def step(self, params, carry, observation, first):
        """Act: one step. `observation` is `(N, D)`, and `first` `(N,)` is true at the first step of an episode."""
        x = jax.nn.relu(dense(params["embedding"], observation))
        carry, state = self.net.step(params["net"], x, carry=carry, reset=first)
        return carry, *self.outputs(params, state)

    def __call__(self, params, carry, observations, first):
        """Learn: the same over a rollout. `observations` is `(T, N, D)`, and `first` is `(T, N)`."""
        xs = jax.nn.relu(dense(params["embedding"], observations))
        carry, states = self.net(params["net"], xs, carry=carry, reset=first, memory=self.memory)
        return carry, *self.outputs(params, states)

    def outputs(self, params, states):
        """The logits of the actions, and the values."""
        return dense(params["policy"], states), dense(params["value"], states)[..., 0]


def make_agent(hidden, memory=rs.Memory(recompute="all")):
    """An agent whose GRU has `hidden` units."""
    return Agent(rs.layer(cells.GRU(hidden)), memory)


def init_dense(key, inputs, outputs, scale):
    """Parameters of a dense layer."""
    return {"kernel": jax.nn.initializers.orthogonal(scale)(key, (inputs, outputs)), "bias": jnp.zeros(outputs)}


def dense(params, x):
    """A dense layer."""
    return x @ params["kernel"] + params["bias"]


class Transition(NamedTuple):
    """The steps of a rollout; leaves are `(T, N, ...)`."""

    observation: Any
    first: Any
    action: Any
    log_prob: Any
    value: Any
    reward: Any
    done: Any


def collect(agent, params, episodes, carry, key, *, steps, memoryless=False):
    """Act for some steps: the new episodes and carry, the transitions, and the next observation's value."""

    def act(episodes, carry):
        observation, first = observe(episodes), (episodes.step == 0) | memoryless
        return observation, first, *agent.step(params, carry, observation, first)

    def step(state, key):
        action_key, task_key = jax.random.split(key)
        episodes, carry = state
        observation, first, carry, logits, value = act(episodes, carry)
        action = jax.random.categorical(action_key, logits)
        episodes, reward, done = play(task_key, episodes, action)
        log_prob = log_prob_of(logits, action)
        return (episodes, carry), Transition(observation, first, action, log_prob, value, reward, done)

    (episodes, carry), transitions = jax.lax.scan(step, (episodes, carry), jax.random.split(key, steps))
    return episodes, carry, transitions, act(episodes, carry)[-1]


def log_prob_of(logits, action):
    """The logarithm of the probability of the actions."""
    return jnp.take_along_axis(jax.nn.log_softmax(logits), action[..., None], axis=-1)[..., 0]


def advantages_of(transitions, next_value, discount=0.99, decay=0.95):
    """Generalized advantage estimation (Schulman et al. 2016), a linear scan from the last step to the first.

        error_t = reward_t + discount * value_{t+1} - value_t
        advantage_t = error_t + discount * decay * advantage_{t+1}

    Advantages do not cross the end of an episode.
    """
    discounts = discount * (1 - transitions.done)
    next_values = jnp.concatenate([transitions.value[1:], next_value[None]])
    errors = transitions.reward + discounts * next_values - transitions.value

    def step(_, advantage, x):
        error, factor = x
        advantage = error + factor * advantage
        return advantage, advantage

    return rs.scan(step, None, jnp.zeros_like(next_value), (errors, decay * discounts), reverse=True)[1]


def ppo_loss(logits, values, transitions, advantages, *, clip=0.2, value_weight=0.5, entropy_weight=0.01):
    """The clipped loss (Schulman et al. 2017) of new logits and values for old transitions."""
    ratio = jnp.exp(log_prob_of(logits, transitions.action) - transitions.log_prob)
    gains = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    policy_loss = -jnp.minimum(ratio * gains, jnp.clip(ratio, 1 - clip, 1 + clip) * gains).mean()
    targets = transitions.value + advantages
    clipped = transitions.value + jnp.clip(values - transitions.value, -clip, clip)
    value_loss = 0.5 * jnp.maximum((values - targets) ** 2, (clipped - targets) ** 2).mean()
    entropy = -(jax.nn.softmax(logits) * jax.nn.log_softmax(logits)).sum(-1).mean()
    return policy_loss + value_weight * value_loss - entropy_weight * entropy


def loss(params, agent, carry, transitions, advantages):
    """The loss of a rollout that began with `carry`."""
    _, logits, values = agent(params, carry, transitions.observation, transitions.first)
    return ppo_loss(logits, values, transitions, advantages)


@cache  # One object for each rate, so that `update` compiles once.
def make_optimizer(learning_rate):
    """Adam with clipped gradients."""
    return optax.chain(optax.clip_by_global_norm(0.5), optax.adam(learning_rate, eps=1e-5))


class State(NamedTuple):
    """The state of the training."""

    params: Any
    optimizer: Any
    episodes: Any
    carry: Any
    key: Any


@partial(jax.jit, static_argnames=("agent", "optimizer", "rows"))
def begin(agent, optimizer, rows, seed):
    """The state before the first update."""
    params_key, task_key, key = jax.random.split(jax.random.key(seed), 3)
    params = agent.init(params_key)
    return State(params, optimizer.init(params), begin_episodes(task_key, rows), agent.initial_carry(rows), key)


@partial(jax.jit, static_argnames=("agent", "optimizer", "steps", "epochs", "minibatches"))
def update(state, agent, optimizer, *, steps, epochs=4, minibatches=MINIBATCHES, memoryless=False):
    """Collect a rollout and learn from it, in minibatches of rows: the new state, and the share of right answers."""
    rows = len(state.episodes.cue)
    act_key, order_key, key = jax.random.split(state.key, 3)
    episodes, carry, transitions, next_value = collect(
        agent, state.params, state.episodes, state.carry, act_key, steps=steps, memoryless=memoryless
    )
    batch = transitions, advantages_of(transitions, next_value)

    def learn(learner, chosen):
        params, optimizer_state = learner
        # The rollout's initial carry, because the steps run again from the start.
        first_carry = jax.tree.map(lambda leaf: leaf[chosen], state.carry)
        gradients = jax.grad(loss)(params, agent, first_carry, *jax.tree.map(lambda leaf: leaf[:, chosen], batch))
        updates, optimizer_state = optimizer.update(gradients, optimizer_state)
        return (optax.apply_updates(params, updates), optimizer_state), None

    orders = jax.vmap(jax.random.permutation, in_axes=(0, None))(jax.random.split(order_key, epochs), rows)
    chosen = orders.reshape(epochs * minibatches, rows // minibatches)
    (params, optimizer_state), _ = jax.lax.scan(learn, (state.params, state.optimizer), chosen)
    success = transitions.reward.sum() / transitions.done.sum()
    return State(params, optimizer_state, episodes, carry, key), success


def train(agent, *, rows=64, steps=32, updates=50, learning_rate=2e-3, seed=0, memoryless=False, progress=True):
    """Train, and return the last state and the success rate of each update."""
    optimizer = make_optimizer(learning_rate)
    state = begin(agent, optimizer, rows, seed)
    rates = []
    with tqdm(range(1, updates + 1), unit="update", disable=None if progress else True, dynamic_ncols=True) as bar:
        for number in bar:
            state, success = update(state, agent, optimizer, steps=steps, memoryless=memoryless)
            rates.append(float(success))
            bar.set_postfix_str(f"success {rates[-1]:4.0%}", refresh=False)
            if progress and (number == 1 or number % 10 == 0):
                bar.write(f"update {number:4}   success {rates[-1]:4.0%}")
    return state, rates


def count_kept_bytes(hidden, rows, steps):
    """The bytes that a minibatch keeps for the backward pass, for each memory choice."""
    choices = {"plain autodiff": None, "Memory()": rs.Memory(), 'Memory(recompute="all")': rs.Memory(recompute="all")}
    agents = {name: make_agent(hidden, memory) for name, memory in choices.items()}
    observations, first = jnp.zeros((steps, rows, CUES + 1)), jnp.zeros((steps, rows), bool)
    return {
        name: kept_bytes(
            lambda *given, agent=agent: agent(*given, observations, first)[1:],
            jax.eval_shape(agent.init, jax.random.key(0)),
            agent.initial_carry(rows),
        )
        for name, agent in agents.items()
    }


def main(
    rows: Annotated[int, typer.Option(help=f"Parallel episodes, a multiple of {MINIBATCHES}.", min=1)] = 64,
    steps: Annotated[int, typer.Option(help="Steps of a rollout.", min=LONGEST)] = 32,
    updates: Annotated[int, typer.Option(help="Rollouts, and updates from them.", min=1)] = 50,
    hidden: Annotated[int, typer.Option(help="Units of the GRU.", min=1)] = 64,
    learning_rate: Annotated[float, typer.Option(help="Of Adam.")] = 2e-3,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    memoryless: Annotated[bool, typer.Option("--memoryless", help="Reset the carry before every step.")] = False,
) -> None:
    """Learn to recall a cue with recurrent PPO."""
    if rows % MINIBATCHES:
        raise typer.BadParameter(f"--rows must be a multiple of {MINIBATCHES}, the number of minibatches; got {rows}.")
    for name, size in count_kept_bytes(hidden, rows // MINIBATCHES, steps).items():
        print(f"A minibatch keeps {size:9,} bytes with {name}")
    began, options = perf_counter(), {"rows": rows, "steps": steps, "updates": updates, "seed": seed}
    _, rates = train(make_agent(hidden), **options, learning_rate=learning_rate, memoryless=memoryless)
    last = rates[-10:]
    print(f"Success over the last {len(last)} updates: {sum(last) / len(last):.0%} (chance: {1 / CUES:.0%})")
    print(f"{perf_counter() - began:.1f} s, with compilation")


if __name__ == "__main__":
    typer.run(main)
