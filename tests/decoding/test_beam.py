"""Beam search: against enumeration, teacher forcing, greedy decoding, and one row at a time."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import rnnscan as rs
from rnnscan._util.step_wrappers import select_rows
from rnnscan.decoding import Beam, Decoded, GNMTPenalty, PowerPenalty
from rnnscan.decoding.top_k import top_k
from tiers import variants
from token_models import (
    assert_padded,
    decoder,
    enumerate_row,
    model,
    teacher_forced,
    tokens_of,
    with_aux,
)


close = partial(np.testing.assert_allclose, rtol=2e-5, atol=1e-6)
REWARDS = (0.3, -0.4, 0.9, 0.1)
PENALTIES = {
    None: lambda length: 1.0,
    GNMTPenalty(0.9): lambda length: ((5 + length) / 6) ** 0.9,
    PowerPenalty(0.7): lambda length: length**0.7,
    PowerPenalty(2.0): lambda length: length**2.0,
}
SEARCHES = {
    "plain": (None, None, 0),
    "gnmt": (GNMTPenalty(0.9), None, 0),
    "power": (PowerPenalty(0.7), None, 0),
    "long": (PowerPenalty(2.0), REWARDS, 0),
    "rewards": (None, REWARDS, 0),
    "gnmt with rewards": (GNMTPenalty(0.9), REWARDS, 0),
    "negative rewards": (PowerPenalty(0.7), tuple(-one for one in REWARDS), 0),
    "forbidden token": (PowerPenalty(0.7), (0.0, 0.0, -np.inf, 0.5), 0),
    "no end": (GNMTPenalty(0.9), REWARDS, None),
}


@pytest.mark.parametrize(("penalty", "rewards", "end"), variants(SEARCHES, quick=("long", "forbidden token")))
def test_a_wide_beam_is_exhaustive(penalty, rewards, end):
    """Its n-best list is that of all hypotheses, the early stop included. The lists of three rows are made at once."""
    steps, rows = 4, model(7, rows=3, scale=1.0)
    size = 4 * 3**3 if end is not None else 4**4
    beam = Beam(size, n_best=size // 4, length_penalty=penalty, word_rewards=rewards)
    decoded = rows.decode(with_aux, end=end, max_steps=steps, strategy=beam, has_aux=True)
    assert decoded.tokens.shape == (steps, 3, size // 4)
    for row in range(3):
        wanted = enumerate_row(rows.row(row), end=end, max_steps=steps, rewards=rewards, divisor=PENALTIES[penalty])
        wanted = [pair for pair in wanted if pair[0] > -np.inf][: size // 4]
        close(decoded.scores[row, : len(wanted)], [score for score, _ in wanted])
        assert (decoded.scores[row, len(wanted) :] == -jnp.inf).all()
        assert (decoded.lengths[row, len(wanted) :] == 0).all()
        found = {tokens_of(decoded, row, place) for place in range(len(wanted))}
        assert len(found) == len(wanted)
        # Ties at the end of the list, and rounding, may exchange the last ones.
        assert len(found & {tokens for _, tokens in wanted}) >= len(wanted) - 1
    if end is not None:
        assert_padded(decoded, end)


@pytest.mark.parametrize(("penalty", "rewards", "end"), variants(SEARCHES, quick=("gnmt with rewards",)))
def test_scores_equal_teacher_forcing(penalty, rewards, end):
    """Tokens' scores, the hypothesis' score and aux are those of the decoder run over the tokens returned."""
    rows = model(11, rows=4)
    beam = Beam(3, n_best=3, length_penalty=penalty, word_rewards=rewards)
    decoded = rows.decode(with_aux, end=end, strategy=beam, has_aux=True)
    assert (decoded.scores[:, :-1] >= decoded.scores[:, 1:]).all()
    for place in range(3):
        tokens = decoded.tokens[:, :, place]
        forced = teacher_forced(decoder, rows.params, rows.carry, 1, tokens)
        valid = np.arange(6)[:, None] < decoded.lengths[:, place]
        close(decoded.token_scores[:, :, place], np.where(valid, forced, 0))
        earned = 0 if rewards is None else np.asarray(rewards)[tokens]
        raw = np.where(valid, forced + earned, 0).sum(axis=0)
        close(decoded.scores[:, place], raw / PENALTIES[penalty](np.asarray(decoded.lengths[:, place], float)))

        inputs = jnp.concatenate([jnp.ones((1, 4), int), tokens[:-1]])
        _, (_, aux) = rs.scan(with_aux, rows.params, rows.carry, inputs)
        aux = select_rows(jnp.asarray(valid), aux, jax.tree.map(jnp.zeros_like, aux))
        jax.tree.map(close, jax.tree.map(lambda leaf, place=place: leaf[:, :, place], decoded.aux), aux)


def test_the_batch_equals_one_by_one():
    """Although rows stop at different steps."""
    rows = model(3, rows=5)
    beam = Beam(3, n_best=2, length_penalty=GNMTPenalty(0.6), word_rewards=REWARDS)
    decoded = rows.decode(with_aux, strategy=beam, max_steps=9, has_aux=True)
    assert len(set(decoded.lengths.ravel().tolist())) > 2
    for row in range(5):
        alone = rows.row(row).decode(with_aux, strategy=beam, max_steps=9, has_aux=True)
        axes = type(decoded)(tokens=1, lengths=0, scores=0, token_scores=1, aux=1)
        of_row = lambda leaf, axis, row=row: jnp.take(leaf, jnp.array([row]), axis)  # noqa: E731
        axes = jax.tree.map(lambda axis, part: jax.tree.map(lambda _: axis, part), axes, decoded)
        jax.tree.map(close, jax.tree.map(of_row, decoded, axes), alone)


@pytest.mark.parametrize("penalty", variants([None, PowerPenalty(2.0)], quick=[PowerPenalty(2.0)]))
def test_beam_one_equals_greedy(penalty):
    rows = model(3, rows=6)
    greedy, beam = rows.decode(), rows.decode(strategy=Beam(1, length_penalty=penalty))
    assert (greedy.tokens == beam.tokens[:, :, 0]).all()
    assert (greedy.lengths == beam.lengths[:, 0]).all()
    close(greedy.token_scores, beam.token_scores[:, :, 0])
    if penalty is None:
        close(greedy.scores, beam.scores[:, 0])


def scripted(steps):
    """A decoder without parameters: `steps` maps the last token to the probabilities of the next."""
    table = jnp.log(jnp.array(steps))
    return lambda params, carry, token: (carry + 1, table[token])


#   0 ends, 1 starts, 2 and 3 go on.
FINISHED_EARLY = [[1.0, 0.0, 0.0, 0.0], [0.4, 0.0, 0.35, 0.25], [0.5, 0.0, 0.25, 0.25], [0.9, 0.0, 0.05, 0.05]]


def test_finished_hypotheses_take_no_place():
    """The empty hypothesis ends first, with 0.4. Both live ones go on beside it: Caffe2 would have lost one of them."""
    run = partial(rs.decode, scripted(FINISHED_EARLY), None, jnp.zeros(1), start=1, end=0, max_steps=3)
    decoded = run(strategy=Beam(3, n_best=3))
    assert [tokens_of(decoded, 0, place) for place in range(3)] == [(0,), (3, 0), (2, 0)]
    close(jnp.exp(decoded.scores[0]), [0.4, 0.225, 0.175])


def test_the_search_stops_when_no_live_hypothesis_can_win():
    """The last carry is not returned, so a callback counts the steps."""
    counts = []

    def counted(params, carry, token):
        jax.debug.callback(lambda _: counts.append(1), jnp.int32(0))
        return scripted(FINISHED_EARLY)(params, carry, token)

    def steps(**options):
        counts.clear()
        rs.decode(counted, None, jnp.zeros(1), start=1, end=0, max_steps=12, strategy=Beam(2, **options))
        jax.effects_barrier()
        return len(counts)

    # After one step 0.4 has ended, and the best live hypothesis has 0.35.
    assert steps() == 1
    # The second best needs 0.35 * 0.5 to finish, and then only hypotheses of at most 0.35 * 0.25 live.
    assert steps(n_best=2) == 2
    # With a reward of 3 for each token, only the last step decides.
    assert steps(word_rewards=(0.0, 0.0, 3.0, 3.0)) == 12
    # -log 0.4 = 0.92 is above -log 0.35 / 12 = 0.09 until the live ones are as unlikely.
    assert 1 < steps(length_penalty=PowerPenalty(1.0)) < 12


@pytest.mark.parametrize(
    ("table", "rewards", "penalty"),
    [
        # (0) has 0.49 and live ones -0.31, but 2 0 will have 0.59.
        ([[1.0, 0, 0, 0], [0.6, 0, 0.2, 0.2], [0.9, 0, 0.05, 0.05], [1.0, 0, 0, 0]], (1.0, 0.0, 1.3, 1.3), None),
        # (0) has 0.2, 2 0 will have 0.58, and all of 12 tokens have less than 0.12.
        ([[1.0, 0, 0], [0.3, 0, 0.7], [0.9, 0, 0.1]], (1.4, 0.0, 1.4), PowerPenalty(2.0)),
    ],
    ids=["reward", "reward and penalty"],
)
def test_the_search_goes_on_while_rewards_can_make_a_live_hypothesis_win(table, rewards, penalty):
    beam = Beam(2, length_penalty=penalty, word_rewards=rewards)
    decoded = rs.decode(scripted(table), None, jnp.zeros(1), start=1, end=0, max_steps=12, strategy=beam)
    assert tokens_of(decoded, 0, 0) == (2, 0)


def test_ties_take_the_better_hypothesis_and_then_the_lowest_token():
    table = [[1.0, 0, 0, 0], [0.0, 0.25, 0.5, 0.25], [0.0, 0.5, 0.25, 0.25], [0.0, 0.5, 0.5, 0.0]]
    decoded = rs.decode(scripted(table), None, jnp.zeros(1), start=1, end=0, max_steps=2, strategy=Beam(3, n_best=3))
    # 2 1 has 0.25; 1 2, 2 2, 2 3, 3 1 and 3 2 have 0.125. Hypothesis 2 is the best, then 1, which is before 3.
    assert [tokens_of(decoded, 0, place) for place in range(3)] == [(2, 1), (2, 2), (2, 3)]


def test_impossible_tokens_are_never_chosen():
    """A row with one possible sequence has an n-best list of one."""
    table = [[1.0, 0, 0], [0, 0, 1.0], [1.0, 0, 0]]
    decoded = rs.decode(scripted(table), None, jnp.zeros(1), start=1, end=0, max_steps=3, strategy=Beam(3, n_best=3))
    assert decoded.lengths.tolist() == [[2, 0, 0]]
    assert decoded.scores.tolist() == [[0.0, -np.inf, -np.inf]]
    assert decoded.tokens[:, 0].tolist() == [[2, 0, 0], [0, 0, 0], [0, 0, 0]]


@pytest.mark.slow
def test_rewards_may_be_traced():
    rows = model(7)
    decode = jax.jit(lambda rewards: rows.decode(strategy=Beam(3, word_rewards=rewards), jit=False))
    traced, constant = decode(jnp.array(REWARDS)), rows.decode(strategy=Beam(3, word_rewards=REWARDS))
    jax.tree.map(close, traced, constant)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_the_early_stop_changes_nothing(seed):
    """Of random models: a bound of inf never stops a row, and the result is the same."""
    random = np.random.default_rng(seed)
    rows = model(seed, rows=4, vocabulary=5)
    penalty = [None, GNMTPenalty(random.uniform(0, 2)), PowerPenalty(random.uniform(0, 2))][seed % 3]
    rewards = random.normal(size=5) * (seed % 2)
    size = int(random.integers(1, 6))
    beam = Beam(size, n_best=int(random.integers(1, size + 1)), length_penalty=penalty, word_rewards=rewards)
    stopping = rows.decode(strategy=beam, max_steps=8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rnnscan.decoding.beam_search._bound", lambda best, *_: jnp.full_like(best, jnp.inf))
        whole = rows.decode(strategy=beam, max_steps=8)
    jax.tree.map(close, stopping, whole)


def test_rows_sharded_over_devices():
    """Under jax.shard_map each device stops when its own rows have."""
    rows, beam = model(3, rows=4), Beam(3, n_best=2, length_penalty=GNMTPenalty(0.6), word_rewards=REWARDS)

    def run(params, carry):
        return rs.decode(with_aux, params, carry, start=1, end=0, max_steps=6, strategy=beam, has_aux=True)

    mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    first, second = P("data"), P(None, "data")
    of_carry = jax.tree.map(lambda leaf: first if leaf.ndim else P(), rows.carry)
    out_specs = Decoded(tokens=second, lengths=first, scores=first, token_scores=second, aux=second)
    sharded = jax.jit(jax.shard_map(run, mesh=mesh, in_specs=(P(), of_carry), out_specs=out_specs))
    whole = rows.decode(with_aux, strategy=beam, has_aux=True)
    jax.tree.map(close, sharded(rows.params, rows.carry), whole)


def test_the_largest_values_on_a_mesh_are_those_of_top_k():
    values = jax.random.normal(jax.random.key(0), (4, 30)).round(1)
    values = values.at[0, 3].set(jnp.nan).at[1, :28].set(-jnp.inf).at[2, 5].set(jnp.inf)
    with jax.set_mesh(jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))):
        found = jax.jit(top_k, static_argnums=1)(values, 4)
    for one, expected in zip(found, lax.top_k(values, 4), strict=True):
        np.testing.assert_array_equal(one, expected)
