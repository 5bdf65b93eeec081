"""All that runs cells under `jax.numpy_rank_promotion("raise")`; tests/cells/test_rank_promotion.py has the cells."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import rnnscan as rs
import rnnscan.linen
import rnnscan.nnx
from rnnscan import attention, cells
from rnnscan.engine.loops.decays import decayed
from tiers import variants


T, N, H = 5, 3, 4
XS = jax.random.normal(jax.random.key(1), (T, N, H))
LENGTHS = jnp.array([2, 5, 3])
KEY = jax.random.key(0)


def initialized(make):
    """Parameters of 0.3 with the shapes of those that a function makes."""
    return jax.tree.map(lambda leaf: jnp.full(leaf.shape, 0.3, leaf.dtype), jax.eval_shape(make))


def attending(mechanism):
    decoder = attention.decoder(cells.GRU(H), mechanism)

    def run(params, xs):
        cell = decoder.over(params, XS, encoder_lengths=LENGTHS)
        return rs.scan(cell, params, cell.initial_carry(xs[0]), xs, seq_lengths=LENGTHS)

    return run, initialized(lambda: decoder.init(KEY, H))


def scanned(cell, **options):
    def run(params, xs):
        return rs.scan(cell, params, cell.initial_carry(xs[0]), xs, seq_lengths=LENGTHS, **options)

    return run, initialized(lambda: cell.init(KEY, H))


def masking():
    """One mask of the units for all rows."""
    cell, mask = cells.LSTM(H), jnp.arange(H) / H

    def run(params, xs):
        step = lambda params, carry, x: cell(params, carry, x, recurrent_mask=mask)  # noqa: E731
        return rs.scan(step, params, cell.initial_carry(xs[0]), xs)

    return run, initialized(lambda: cell.init(KEY, H))


def convolving(cell):
    def run(params, xs):
        images = jnp.broadcast_to(xs[:, :, None, None], (T, N, 3, 3, H))
        return rs.scan(cell, params, cell.initial_carry(images[0]), images, seq_lengths=LENGTHS)

    return run, initialized(lambda: cell.init(KEY, H))


def by_window():
    cell = cells.GRU(H)

    def run(params, xs):
        return rs.truncated.by_window(cell, params, cell.initial_carry(xs[0]), xs, every=1, back=2)

    return run, initialized(lambda: cell.init(KEY, H))


def linen_modules():
    model = rnnscan.linen.Bidirectional(rnnscan.linen.RNN(nn.GRUCell(H)), rnnscan.linen.RNN(cells.LSTM(H)))
    run = lambda variables, xs: model.apply(variables, jnp.swapaxes(xs, 0, 1), seq_lengths=LENGTHS)  # noqa: E731
    return run, initialized(lambda: model.init(KEY, jnp.ones((N, T, H))))


def nnx_modules():
    layers = [rnnscan.nnx.RNN(cells.GRU(H), in_features=H, rngs=nnx.Rngs(0)) for _ in range(2)]
    graph, params, others = nnx.split(rnnscan.nnx.Bidirectional(*layers), nnx.Param, ...)

    def run(params, xs):
        return nnx.merge(graph, params, others)(jnp.swapaxes(xs, 0, 1), seq_lengths=LENGTHS)

    return run, params


def control():
    """Nets over named values and loops that stop, by row and for all rows."""

    def step(params, carry, x):
        return jnp.tanh(carry @ params + x), carry

    def branch(params, value):
        return {"value": value @ params}

    def run(params, xs):
        stop = lambda params, carry, y: carry.sum(-1) > 2.0  # noqa: E731
        until = rs.scan_until(step, params, xs[0], xs, stop, max_steps=T)[:2]
        condition = lambda params, value: jnp.sum(jnp.abs(value)) > 0.5  # noqa: E731
        looped = rs.while_net(condition, lambda params, value: 0.5 * value, xs[0], params=params, max_steps=8)[0]
        chosen = rs.cond_net(xs[0, 0, 0] > 0, branch, branch, params, {"value": xs[0]})
        bound = rs.do_net(branch, {"value": "outer"})(params, outer=xs[0])
        return until, looped, chosen, bound

    return run, jnp.full((H, H), 0.1)


def language_model():
    model = rs.train.LanguageModel(hidden=H, layers=2, embedding=H)
    codes = np.arange(T * N).reshape(T, N) % 256
    return lambda params, xs: model.loss(params, model.initial_carry(N), codes, codes)[0], model.init(KEY)


WRAPPED = rs.stack(rs.windowed(cells.GRU(H), 2), rs.residual(rs.zoneout(cells.LSTM(H), 0.2)), dropout=0.2)
PARTS = {
    "additive attention": lambda: attending(attention.Additive(H, 6)),
    "recurrent additive attention": lambda: attending(attention.RecurrentAdditive(H, 6)),
    "coverage": lambda: attending(attention.Coverage(H, 6)),
    "dot attention": lambda: attending(attention.Dot(H, project_query=True, scale=True)),
    "multi-head attention": lambda: attending(attention.MultiHead(H, 6, heads=2)),
    "adaptive computation": lambda: scanned(rs.adaptive_computation(cells.RNN(H), 2)),
    "wrappers": lambda: scanned(WRAPPED),
    "wrappers in training": lambda: scanned(WRAPPED, key=KEY),
    "recurrent dropout": lambda: scanned(rs.dropout(cells.LSTM(H), 0.2, on="recurrent"), key=KEY),
    "mask": masking,
    "ConvLSTM": lambda: convolving(cells.ConvLSTM(H, kernel_size=(3, 3))),
    "ConvGRU": lambda: convolving(cells.ConvGRU(H, kernel_size=(3, 3))),
    "Newton's method": lambda: scanned(cells.GRU(H), parallel=rs.Newton(jacobian="diagonal")),
    "Newton's method by heads": lambda: scanned(cells.SLSTM(H, heads=2), parallel=rs.Newton(jacobian="diagonal")),
    "Newton's method, damped": lambda: scanned(cells.IndRNN(H), parallel=rs.Newton(damping=0.5)),
    "windows": by_window,
    "linen": linen_modules,
    "nnx": nnx_modules,
    "control": control,
    "language model": language_model,
}


@pytest.mark.parametrize(
    "name",
    variants(
        {name: (name,) for name in PARTS},
        ["coverage", "multi-head attention", "adaptive computation", "Newton's method by heads", "windows"],
    ),
)
def test_values_and_gradients(name):
    run, params = PARTS[name]()

    def loss(params, xs):
        results = run(params, xs)
        return sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(results) if jnp.issubdtype(leaf.dtype, jnp.inexact))

    def gradients():
        return jax.jit(jax.value_and_grad(loss, (0, 1)))(params, XS)

    with jax.numpy_rank_promotion("raise"):
        actual = gradients()
    for one, other in zip(jax.tree.leaves(actual), jax.tree.leaves(gradients()), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)


STRATEGIES = {
    "greedy": (rs.decoding.Greedy(), None),
    "sample": (rs.decoding.Sample(0.7, top_k=3, top_p=0.9, min_p=0.05), KEY),
    "beam": (
        rs.decoding.Beam(3, n_best=2, length_penalty=rs.decoding.GNMTPenalty(0.6), word_rewards=jnp.ones(7)),
        None,
    ),
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_decoding(name):
    strategy, key = STRATEGIES[name]
    cell = cells.GRU(H)
    params = {
        "embed": jax.random.normal(KEY, (7, H)),
        "cell": cell.init(KEY, H),
        "project": {"kernel": jax.random.normal(KEY, (H, 7)), "bias": jnp.ones(7)},
    }
    decode = lambda: rs.decode(  # noqa: E731
        rs.decoding.decoder(cell),
        params,
        cell.initial_carry(XS[0]),
        start=1,
        end=0,
        max_steps=T,
        strategy=strategy,
        key=key,
    )
    with jax.numpy_rank_promotion("raise"):
        actual = decode()
    for one, other in zip(jax.tree.leaves(actual), jax.tree.leaves(decode()), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("width", [1, H])
@pytest.mark.parametrize("rounds", [False, True])
def test_decays_of_a_chunk_of_matrix_states(rounds, width):
    query, key, decay = jax.random.uniform(KEY, (3, N, T, H))

    def run():
        result = decayed([query], [key], decay[..., :width], rounds=rounds)
        return result.from_start, result.to_end, result.whole, result.scores

    with jax.numpy_rank_promotion("raise"):
        actual = run()
    for one, other in zip(jax.tree.leaves(actual), jax.tree.leaves(run()), strict=True):
        np.testing.assert_array_equal(one, other)
