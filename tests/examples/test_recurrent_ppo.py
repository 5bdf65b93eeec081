"""The recurrent PPO in examples/: acting and learning agree, and equal a plain `lax.scan`, which keeps more."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

import rnnscan as rs
from example import load
from pages import number, table
from rnnscan.insight import kept_bytes
from zoo.case import assert_trees_close


ppo = load("recurrent_ppo")
HIDDEN, ROWS, STEPS = 5, 6, 14


def plain_agent(params, carry, observations, first):
    """The agent on plain `lax.scan`, with the equations of the GRU and the reset written out."""
    gru = params["net"]

    def step(hidden, step_input):
        x, first = step_input
        hidden = jnp.where(first[:, None], 0, hidden)
        x_r, x_z, x_n = jnp.split(x @ gru["kernel"] + gru["bias"], 3, axis=-1)
        h_r, h_z, h_n = jnp.split(hidden @ gru["recurrent_kernel"], 3, axis=-1)
        update = jax.nn.sigmoid(x_z + h_z)
        new = jnp.tanh(x_n + jax.nn.sigmoid(x_r + h_r) * (h_n + gru["recurrent_bias"]))
        hidden = (1 - update) * new + update * hidden
        return hidden, hidden

    xs = jax.nn.relu(observations @ params["embedding"]["kernel"] + params["embedding"]["bias"])
    hidden, states = jax.lax.scan(step, carry[0], (xs, first))
    logits = states @ params["policy"]["kernel"] + params["policy"]["bias"]
    values = states @ params["value"]["kernel"] + params["value"]["bias"]
    return (hidden,), logits, values[..., 0]


def plain_loss(params, carry, transitions, advantages):
    _, logits, values = plain_agent(params, carry, transitions.observation, transitions.first)
    return ppo.ppo_loss(logits, values, transitions, advantages)


@pytest.fixture(scope="module")
def rollout():
    """In float64: an agent, random parameters, a carry amid episodes, and the rollout that begins with it."""
    agent = ppo.make_agent(HIDDEN)
    with jax.enable_x64(True):
        random = np.random.default_rng(0)
        params = jax.tree.map(
            lambda leaf: jnp.asarray(random.normal(size=leaf.shape)), jax.eval_shape(agent.init, jax.random.key(0))
        )
        collect = jax.jit(lambda *given: ppo.collect(agent, *given, steps=STEPS))
        episodes = ppo.begin_episodes(jax.random.key(1), ROWS)
        episodes, carry, *_ = collect(params, episodes, agent.initial_carry(ROWS), jax.random.key(2))
        _, last, transitions, next_value = collect(params, episodes, carry, jax.random.key(3))
        first = transitions.first
        # Some episodes go on from the rollout before, and some begin within.
        assert first[0].sum() < ROWS
        assert (first[1:].sum(axis=0) > 0).all()
        assert (jnp.abs(carry[0]) > 1e-3).all()
    return agent, params, carry, transitions, last, next_value


@pytest.mark.usefixtures("x64")
def test_acting_is_learning(rollout):
    agent, params, carry, transitions, last, _ = rollout
    learnt_last, logits, values = jax.jit(agent)(params, carry, transitions.observation, transitions.first)
    assert_trees_close((learnt_last, values), (last, transitions.value))
    assert_trees_close(ppo.log_prob_of(logits, transitions.action), transitions.log_prob)
    act = jax.jit(agent.step)
    for step in range(STEPS):
        carry, step_logits, value = act(params, carry, transitions.observation[step], transitions.first[step])
        assert_trees_close((step_logits, value), (logits[step], values[step]))
    assert_trees_close(carry, last)
    # A policy that ignores the carry would pass all of this.
    forgetful = jax.jit(agent)(params, carry, transitions.observation, jnp.ones((STEPS, ROWS), bool))
    assert float(jnp.abs(forgetful[1] - logits).max()) > 0.1


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("cut", [1, 9])
def test_two_windows_with_the_carry_handed_on_are_the_whole(rollout, cut):
    agent, params, carry, transitions, last, _ = rollout
    observations, first = transitions.observation, transitions.first
    run = jax.jit(agent)
    middle, *start = run(params, carry, observations[:cut], first[:cut])
    end, *rest = run(params, middle, observations[cut:], first[cut:])
    assert first[cut:].any()
    assert_trees_close(end, last)
    assert_trees_close(jax.tree.map(lambda *pieces: jnp.concatenate(pieces), start, rest)[1], transitions.value)


@pytest.mark.usefixtures("x64")
def test_advantages_are_those_of_a_loop(rollout):
    *_, transitions, _, next_value = rollout
    discount, decay = 0.9, 0.8
    advantage, following, expected = 0.0, next_value, []
    for step in reversed(range(STEPS)):
        goes_on = 1 - transitions.done[step]
        error = transitions.reward[step] + discount * following * goes_on - transitions.value[step]
        advantage = error + discount * decay * goes_on * advantage
        following = transitions.value[step]
        expected.append(advantage)
    got = jax.jit(ppo.advantages_of)(transitions, next_value, discount, decay)
    assert_trees_close(got, jnp.stack(expected[::-1]))


@pytest.mark.usefixtures("x64")
def test_gradients_equal_those_of_a_plain_scan(rollout):
    _, params, carry, transitions, _, next_value = rollout
    advantages = ppo.advantages_of(transitions, next_value)
    moved = jax.tree.map(lambda leaf: leaf * 1.1, params)  # Or no ratio would be away from 1.
    given = moved, carry, transitions, advantages
    expected = jax.jit(jax.grad(plain_loss, argnums=(0, 1)))(*given)
    assert all(float(jnp.abs(leaf).max()) > 1e-4 for leaf in jax.tree.leaves(expected))
    for memory in (rs.Memory(recompute="all"), rs.Memory()):
        agent = ppo.make_agent(HIDDEN, memory)
        run = jax.jit(jax.grad(lambda params, *rest, agent=agent: ppo.loss(params, agent, *rest), argnums=(0, 1)))
        assert_trees_close(run(*given), expected, tolerance=1e-9)


def test_less_is_kept_than_by_a_plain_scan():
    counted, agent = ppo.count_kept_bytes(64, rows=16, steps=32), ppo.make_agent(64)
    observations, first = jnp.zeros((32, 16, ppo.CUES + 1)), jnp.zeros((32, 16), bool)
    run = lambda params, carry: plain_agent(params, carry, observations, first)[1:]  # noqa: E731
    plain = kept_bytes(run, jax.eval_shape(agent.init, jax.random.key(0)), agent.initial_carry(16))
    assert counted["plain autodiff"] == plain
    assert counted["Memory()"] / plain < 0.615
    assert counted['Memory(recompute="all")'] / plain < 0.315
    assert [number(cell) for _, cell in table("lengths.md", "choice for the rollout")] == list(counted.values())


@pytest.mark.usefixtures("x64")
def test_episodes_reward_the_cue_at_the_last_step_alone():
    episodes = ppo.Episodes(jnp.array([2, 2, 2]), jnp.array([4, 4, 5]), jnp.array([3, 3, 3]))
    assert ppo.observe(episodes).tolist() == [[0, 0, 0, 0, 1], [0, 0, 0, 0, 1], [0, 0, 0, 0, 0]]
    after, reward, done = ppo.play(jax.random.key(0), episodes, jnp.array([2, 1, 2]))
    assert reward.tolist() == [1, 0, 0]
    assert done.tolist() == [True, True, False]
    assert after.step.tolist() == [0, 0, 4]
    assert ppo.observe(after)[:2, :4].sum(axis=1).tolist() == [1, 1]


def test_it_learns_the_task_and_without_memory_it_does_not():
    train = partial(ppo.train, ppo.make_agent(32), rows=32, steps=24, progress=False)
    _, rates = train(updates=25)
    _, again = train(updates=3)
    _, memoryless = train(updates=25, memoryless=True)
    assert again == rates[:3]
    assert np.mean(rates[:3]) < 0.4
    assert np.mean(rates[-3:]) > 0.8
    assert np.mean(memoryless[-10:]) < 0.35


def test_the_command_shows_success_and_bytes():
    runner = CliRunner()
    app = ppo.typer.Typer()
    app.command()(ppo.main)
    result = runner.invoke(app, ["--rows", "32", "--steps", "24", "--hidden", "32", "--updates", "2"])
    assert result.exit_code == 0, result.output
    sizes = [int(size.replace(",", "")) for size in re.findall(r"keeps +([\d,]+) bytes", result.output)]
    assert sizes == sorted(sizes, reverse=True)
    assert len(sizes) == 3
    assert re.search(r"update +1 +success +\d+%", result.output)
    assert "Success over the last 2 updates" in result.output
    refused = runner.invoke(app, ["--rows", "30"])
    assert refused.exit_code == 2
    assert "multiple of 4" in refused.output
