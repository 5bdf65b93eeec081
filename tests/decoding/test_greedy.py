"""Greedy decoding, and what all strategies share."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from drawn import normal
from rnnscan import attention, decoding
from tiers import variants
from token_models import Model, assert_padded, decoder, model, teacher_forced, tokens_of, with_aux


pytestmark = pytest.mark.typed  # `make test` runs these with the run-time type checks.


# Beam search does all that greedy decoding does, and has more to map and to stop.
BEAM = decoding.Beam(3, n_best=2)
STRATEGIES = variants({"greedy": decoding.Greedy(), "beam": BEAM}, quick=("beam",))


def by_hand(model, row, *, start=1, end=0, max_steps=6):
    """Greedy decoding of one row as a Python loop."""
    carry, token, tokens, scores = model.row(row).carry, start, [], []
    while len(tokens) < max_steps and (not tokens or token != end):
        carry, logits = decoder(model.params, carry, jnp.array([token]))
        log_probs = np.asarray(jax.nn.log_softmax(logits))[0]
        token = int(log_probs.argmax())
        tokens.append(token)
        scores.append(log_probs[token])
    return tuple(tokens), scores


@pytest.mark.parametrize("end", variants([0, None], quick=[0]))
def test_greedy_equals_a_loop(end):
    rows = model(3, rows=5)
    decoded = rows.decode(end=end)
    for row in range(5):
        tokens, scores = by_hand(rows, row, end=end)
        assert tokens_of(decoded, row) == tokens
        np.testing.assert_allclose(decoded.token_scores[: len(tokens), row], scores, rtol=1e-5)
        np.testing.assert_allclose(decoded.scores[row], sum(scores), rtol=1e-5)
    assert len(set(decoded.lengths.tolist())) > 1 or end is None
    if end is not None:
        assert_padded(decoded, end)


def test_the_batch_equals_one_by_one_and_scores_equal_teacher_forcing():
    rows = model(3, rows=5)
    decoded = rows.decode(with_aux, has_aux=True)
    assert_padded(decoded, 0)
    for row in range(5):
        alone = rows.row(row).decode(with_aux, has_aux=True)
        at_row = jax.tree.map(lambda leaf, row=row: leaf[..., row : row + 1], (decoded.lengths, decoded.scores))
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5), at_row, (alone.lengths, alone.scores))
        by_step = lambda one: (one.tokens, one.token_scores, one.aux)  # noqa: E731
        of_row = jax.tree.map(lambda leaf, row=row: leaf[:, row : row + 1], by_step(decoded))
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5), of_row, by_step(alone))
        length = alone.lengths[0]
        forced = teacher_forced(decoder, rows.params, rows.row(row).carry, 1, alone.tokens)
        np.testing.assert_allclose(alone.token_scores[:length], forced[:length], rtol=1e-5)


@pytest.mark.slow
def test_start_tokens_by_row():
    rows = model(4, rows=3)
    decoded = rows.decode(start=jnp.array([1, 2, 3]))
    for row in range(3):
        assert tokens_of(decoded, row) == tokens_of(rows.row(row).decode(start=row + 1), 0)


def test_ties_take_the_lowest_token():
    def tied(params, carry, token):
        return carry, jnp.tile(jnp.array([0.0, 2.0, 1.0, 2.0]), (len(token), 1))

    decoded = rs.decode(tied, None, (), start=jnp.array([0]), end=0, max_steps=3)
    assert decoded.tokens.ravel().tolist() == [1, 1, 1]


def test_bfloat16_logits_are_scored_in_float32():
    rows = model(1)

    def narrow(params, carry, token):
        carry, logits = decoder(params, carry, token)
        return carry, logits.astype(jnp.bfloat16)

    decoded = rows.decode(narrow)
    assert decoded.token_scores.dtype == decoded.scores.dtype == jnp.float32
    _, logits = narrow(rows.params, rows.carry, jnp.full(3, 1))
    np.testing.assert_array_equal(decoded.token_scores[0], jax.nn.log_softmax(logits.astype(jnp.float32)).max(axis=-1))


@pytest.mark.parametrize("strategy", variants({"greedy": decoding.Greedy(), "beam": BEAM}, quick=("greedy",)))
def test_four_layers_compile_once_for_all_lengths(strategy):
    """The decoder is traced at the first call alone, and the loop stops when all rows have ended."""
    traces, steps = [], []
    cell = rs.stack(*[rs.cells.RNN(6)] * 4)
    keys = jax.random.split(jax.random.key(0), 3)
    params = {"cell": cell.init(keys[0], 5), "embed": jax.random.normal(keys[1], (7, 5))}
    params["project"] = {"kernel": jax.random.normal(keys[2], (6, 7)), "bias": jnp.zeros(7).at[0].set(-9)}
    inner = decoding.decoder(cell)

    def counted(params, carry, token):
        traces.append(token)
        jax.debug.callback(lambda _: steps.append(1), token[0])
        params, slope = params
        carry, count = carry
        carry, logits = inner(params, carry, token)
        return (carry, count + 1), logits.at[:, 0].add(slope * count)

    @jax.jit
    def run(slope):
        carry = cell.initial_carry(jnp.zeros((2, 5))), 0
        return rs.decode(counted, (params, slope), carry, start=1, end=0, max_steps=30, strategy=strategy)

    lengths, counts = [], set()
    for slope in (30.0, 3.0, 1.0, 0.0):
        decoded = run(slope)
        jax.effects_barrier()
        lengths.append(int(decoded.lengths.max()))
        counts.add(len(traces))
        if isinstance(strategy, decoding.Greedy):
            assert len(steps) == lengths[-1]
        assert len(steps) <= 30 * 3
        steps.clear()
    assert lengths == sorted(set(lengths))
    assert len(counts) == run._cache_size() == 1


def random_like(tree, seed=0):
    random = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: normal(random, leaf.shape, jnp.float32), tree)


def parameters(cell, outputs):
    """Random parameters of `decoding.decoder(cell)` for 5 tokens."""
    shape = partial(jax.ShapeDtypeStruct, dtype=jnp.float32)
    of_cell = jax.eval_shape(lambda: cell.init(jax.random.key(0), 3))
    return random_like({"cell": of_cell, "embed": shape((5, 3)), "project": {"kernel": shape((outputs, 5))}})


@partial(jax.jit, static_argnames="has_aux")
def decode(decoder, params, carry, *, has_aux=False):
    """The decoder of a cell is a pytree."""
    return rs.decode(decoder, params, carry, start=1, end=0, max_steps=4, strategy=BEAM, has_aux=has_aux)


def test_nets_are_decoded_as_stacks_are():
    net = rs.chain(rs.layer(rs.cells.RNN(4)), rs.layer(rs.cells.GRU(4)))
    stacked = rs.stack(rs.cells.RNN(4), rs.cells.GRU(4))
    params = parameters(net, 4)
    carry = random_like(jax.eval_shape(net.initial_carry, jnp.zeros((1, 2, 3))), seed=1)
    of_net = decode(decoding.decoder(net), params, carry)
    params["cell"] = {"layer_0": params["cell"]["net_0"], "layer_1": params["cell"]["net_1"]}
    of_stack = decode(decoding.decoder(stacked), params, carry)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5), of_net, of_stack)


def test_attention_weights_are_those_along_the_tokens_returned():
    attending = attention.decoder(rs.cells.RNN(4), attention.Additive(6, 5))
    params = parameters(attending, 10)
    outputs = random_like(jnp.zeros((7, 2, 6)), seed=2)
    cell = attending.over(params["cell"], outputs, encoder_lengths=jnp.array([7, 4]))
    carry = cell.initial_carry(jnp.zeros((2, 3)))
    decoded = decode(decoding.decoder(cell, has_aux=True), params, carry, has_aux=True)
    assert decoded.aux.shape == (4, 2, 2, 7)
    assert (decoded.aux[:, 1, :, 4:] == 0).all()
    assert_padded(decoded, 0)
    for place in range(2):
        tokens = decoded.tokens[:, :, place]
        xs = params["embed"][jnp.concatenate([jnp.ones((1, 2), int), tokens[:-1]])]
        _, (_, weights) = rs.scan(cell, params["cell"], carry, xs, seq_lengths=decoded.lengths[:, place])
        np.testing.assert_allclose(decoded.aux[:, :, place], weights, atol=1e-5)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_vmap_and_keys_in_the_carry(strategy):
    """A decoder that draws noise from a key in its carry, mapped over examples and over batches of one."""

    def noisy(params, carry, token):
        carry, keys, key = carry
        carry, logits = decoder(params, carry, token)
        noise = jax.vmap(lambda key: jax.random.normal(key, logits.shape[1:]))(keys)
        split = jax.vmap(lambda key: jax.random.split(key)[0])(keys)
        return (carry, split, jax.random.fold_in(key, 1)), logits + noise + jax.random.normal(key, logits.shape[1:])

    rows = model(5, rows=3)
    carry = (rows.carry, jax.random.split(jax.random.key(0), 3), jax.random.key(7))
    run = partial(rs.decode, noisy, start=1, end=0, max_steps=6, strategy=strategy)
    whole = jax.jit(run)(rows.params, carry)
    one_by_one = jax.tree.map(lambda leaf: leaf[:, None] if leaf.ndim else leaf, carry)
    axes = jax.tree.map(lambda leaf: 0 if leaf.ndim else None, carry)
    mapped = jax.jit(jax.vmap(run, in_axes=(None, axes)))(rows.params, one_by_one)
    assert (whole.tokens == jnp.moveaxis(mapped.tokens[:, :, 0], 0, 1)).all()
    np.testing.assert_allclose(whole.scores, mapped.scores[:, 0], rtol=1e-5)


def test_a_python_number_in_the_carry_takes_the_decoders_dtype():
    def summing(params, carry, token):
        carry = carry + params
        return carry, jnp.stack([carry, -carry], axis=-1) * jnp.ones((len(token), 1), carry.dtype)

    params = jnp.float32(1.5)
    decoded = rs.decode(summing, params, 0, start=jnp.array([0, 1]), end=1, max_steps=3)
    assert decoded.tokens.tolist() == [[0, 0]] * 3


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_nan_logits_show_in_the_scores(strategy):
    def breaking(params, carry, token):
        carry, logits = decoder(params, carry, token)
        return carry, jnp.where((carry["count"] == 5) & (jnp.arange(3) == params["row"])[:, None], jnp.nan, logits)

    def scores(row):
        rows = model(2)
        return Model({**rows.params, "row": row}, rows.carry, 4).decode(breaking, end=None, strategy=strategy).scores

    whole, broken = np.asarray(scores(9)), np.asarray(scores(1))
    assert np.isnan(broken[1]).all()
    np.testing.assert_allclose(broken[[0, 2]], whole[[0, 2]], rtol=1e-5)


@pytest.mark.parametrize("start", [1, jnp.array([1, 2, 0, 3, 1])], ids=["token", "tokens"])
@pytest.mark.parametrize("strategy", [decoding.Greedy(), BEAM, decoding.Sample(0.7)], ids=["greedy", "beam", "sample"])
def test_exported_for_any_number_of_rows(strategy, start):
    rows = model(4, rows=5)

    def run(carry, start):
        key = jax.random.key(0) if isinstance(strategy, decoding.Sample) else None
        return rs.decode(
            decoder, rows.params, carry, start=start, end=0, max_steps=6, strategy=strategy, key=key
        ).tokens

    (size,) = jax.export.symbolic_shape("rows")
    of_rows = lambda leaf: jax.ShapeDtypeStruct((size, *leaf.shape[1:]) if jnp.ndim(leaf) else (), leaf.dtype)  # noqa: E731
    start = jnp.asarray(start)
    exported = jax.export.export(jax.jit(run))(*jax.tree.map(of_rows, (rows.carry, start)))
    np.testing.assert_array_equal(exported.call(rows.carry, start), run(rows.carry, start))
