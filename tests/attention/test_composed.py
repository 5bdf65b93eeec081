"""Attention decoders in stacks, wrappers and nets, against the same composition by hand in a slow loop."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from decoding import gradients
from rnnscan import attention, cells
from tiers import variants
from zoo.case import assert_trees_close


pytestmark = pytest.mark.usefixtures("x64")

TIME, BATCH, ENCODER_TIME, ENCODER_SIZE, HIDDEN = 3, 3, 5, 2, 3
SIZE = HIDDEN + ENCODER_SIZE  # of the inputs, and of a decoder's output, so that residual fits
LENGTHS, ENCODER_LENGTHS = jnp.array([3, 2, 0]), jnp.array([5, 3, 4])
DECODER = attention.decoder(cells.RNN(HIDDEN), attention.Coverage(ENCODER_SIZE, 4))
GRU, INNER = cells.GRU(HIDDEN), DECODER.cell


def over(params, outputs, decoder=DECODER):
    return decoder.over(params, outputs, encoder_lengths=ENCODER_LENGTHS)


def loop(step, carry, xs, *, reverse=False):
    """Step by step, with the carry held and zero outputs in the padding."""
    ys = [None] * len(xs)
    for time in range(len(xs))[:: -1 if reverse else 1]:
        valid = time < LENGTHS
        select = lambda a, b, valid=valid: jnp.where(valid.reshape(-1, *[1] * (a.ndim - 1)), a, b)  # noqa: E731
        new, y = step(carry, xs[time])
        carry = jax.tree.map(select, new, carry)
        ys[time] = jax.tree.map(lambda leaf, select=select: select(leaf, jnp.zeros_like(leaf)), y)
    return carry, jax.tree.map(lambda *leaves: jnp.stack(leaves), *ys)


class Residual:
    parts = ((),)

    def make(self, outputs, cell):
        return rs.layer(rs.residual(cell))

    def step(self, params, outputs, carry, x):
        carry, (y, weights) = over(params, outputs)(params, carry, x)
        return carry, (y + x, weights)

    def run(self, params, outputs, carry, xs):
        return loop(partial(self.step, params, outputs), carry, xs)


class Below(Residual):
    """A layer above the decoder."""

    parts = (("layer_0",),)

    def make(self, outputs, cell):
        return rs.layer(rs.stack(cell, GRU))

    def step(self, params, outputs, carry, x):
        first, (y, _) = over(params["layer_0"], outputs)(params["layer_0"], carry[0], x)
        second, y = GRU(params["layer_1"], carry[1], y)
        return (first, second), y


class Above(Residual):
    """A layer below the decoder."""

    parts = (("layer_1",),)

    def make(self, outputs, cell):
        return rs.layer(rs.stack(GRU, cell))

    def step(self, params, outputs, carry, x):
        first, y = GRU(params["layer_0"], carry[0], x)
        second, y = over(params["layer_1"], outputs)(params["layer_1"], carry[1], y)
        return (first, second), y


class Windowed(Residual):
    def make(self, outputs, cell):
        return rs.layer(rs.windowed(cell, 2))

    def step(self, params, outputs, carry, x):
        inner, window = carry
        seen = jnp.concatenate([x, window[:, 0], window[:, 1]], -1)
        inner, (y, weights) = over(params, outputs)(params, inner, seen)
        return (inner, jnp.stack([window[:, 1], y], 1)), (y, weights)


class Twice(Residual):
    """The inner decoder's output is the outer one's query; its weights come last."""

    parts = (("cell",),)

    def make(self, outputs, cell):
        decoder = attention.decoder(cell, attention.Dot(ENCODER_SIZE, project_query=True))
        return rs.layer(over(decoder.init(jax.random.key(0), SIZE), outputs, decoder))  # Dot's keys have no parameters

    def step(self, params, outputs, carry, x):
        inner = params["cell"]
        new, (y, weights) = over(inner, outputs)(inner, carry[0], jnp.concatenate([x, carry[1]], -1))
        query = y @ params["attention"]["query_kernel"] + params["attention"]["bias"]
        scores = jnp.einsum("lne,ne->nl", outputs, query)
        valid = jnp.arange(ENCODER_TIME) < ENCODER_LENGTHS[:, None]
        outer_weights = jax.nn.softmax(jnp.where(valid, scores, -1e30))
        context = jnp.einsum("nl,lne->ne", outer_weights, outputs)
        return (new, context), (jnp.concatenate([y, context], -1), outer_weights, weights)


class ZonedInside(Residual):
    def make(self, outputs, cell):
        return rs.layer(replace(cell, decoder=attention.decoder(rs.zoneout(INNER, 0.25), DECODER.attention)))

    def step(self, params, outputs, carry, x):
        class Zoned:
            """The inner cell whose new state is a quarter of the old one."""

            names, output_size = INNER.names, HIDDEN
            init, initial_carry = INNER.init, INNER.initial_carry

            def __call__(self, params, carry, x):
                new, _ = INNER(params, carry, x)
                new = jax.tree.map(lambda a, b: 0.25 * a + 0.75 * b, carry, new)
                return new, new[0]

        cell = replace(over(params, outputs), decoder=replace(DECODER, cell=Zoned()))
        return cell(params, carry, x)


class Chained(Residual):
    parts = (("net_0",),)

    def make(self, outputs, cell):
        return rs.chain(rs.layer(cell), rs.layer(GRU))

    def run(self, params, outputs, carry, xs):
        first, (ys, _) = loop(partial(over(params["net_0"], outputs), params["net_0"]), carry[0], xs)
        second, ys = loop(partial(GRU, params["net_1"]), carry[1], ys)
        return (first, second), ys


class BothDirections(Residual):
    parts = (("forward",), ("backward",))

    def make(self, outputs, there, back):
        return rs.bidirectional(there, back)

    def run(self, params, outputs, carry, xs):
        there, back = (partial(over(params[part], outputs), params[part]) for part in ("forward", "backward"))
        first, (ys, weights) = loop(there, carry[0], xs)
        second, (back_ys, back_weights) = loop(back, carry[1], xs, reverse=True)
        return (first, second), (jnp.concatenate([ys, back_ys], axis=-1), weights, back_weights)


CASES = [Residual, Windowed, Below, Above, Twice, ZonedInside, Chained, BothDirections]


def net_of(case, params, outputs):
    """The composition, with each decoder's keys from its part of the parameters."""
    decoders = []
    for path in case.parts:
        part = params
        for name in path:
            part = part[name]
        decoders.append(over(part, outputs))
    return case.make(outputs, *decoders)


def arguments(case):
    """Random params, encoder outputs, carry and inputs; nothing is zero."""
    random = np.random.default_rng(0)
    outputs, xs = jnp.zeros((ENCODER_TIME, BATCH, ENCODER_SIZE)), jnp.zeros((TIME, BATCH, SIZE))

    @jax.eval_shape
    def shapes():
        like = over(DECODER.init(jax.random.key(0), SIZE), outputs)
        net = case.make(outputs, *[like] * len(case.parts))
        return net.init(jax.random.key(0), SIZE), outputs, net.initial_carry(xs), xs

    return jax.tree.map(lambda leaf: jnp.asarray(random.normal(size=leaf.shape)), shapes)


@pytest.mark.parametrize("case", variants(CASES, [Above]))
def test_values_and_gradients_are_those_of_the_composition_by_hand(case):
    case = case()
    memory = rs.Memory(recompute=("attention",))

    def run(params, outputs, carry, xs):
        return net_of(case, params, outputs)(params, xs, carry=carry, seq_lengths=LENGTHS, memory=memory)

    given = arguments(case)
    assert_trees_close(gradients(run, *given), gradients(case.run, *given))


@pytest.mark.parametrize("case", variants([Chained, Below], [Below]))
def test_windows_are_the_whole_with_dropout_and_resets(case):
    """Resets go back to the composition's own initial carry, and not to that of a window."""
    case = case()
    params, outputs, carry, xs = arguments(case)
    key, reset = jax.random.key(3), jnp.zeros((TIME, BATCH), bool).at[1, 0].set(True).at[2:, 1].set(True)
    net = case.make(outputs, *[rs.dropout(over(params[path], outputs), 0.4) for (path,) in case.parts])
    last, ys = net(params, xs, carry=carry, key=key, reset=reset)
    assert np.any(ys != net(params, xs, carry=carry, reset=reset)[1])
    step = jax.jit(net.step)
    for number in range(TIME):
        carry, y = step(params, xs[number], carry=carry, key=key, first_step=number, reset=reset[number])
        assert_trees_close(y, ys[number])
    assert_trees_close(carry, last)


def test_dropout_drops_the_output_and_not_the_weights():
    params, outputs, carry, xs = arguments(Residual())
    cell = over(params, outputs)
    last, (plain, weights) = rs.layer(cell)(params, xs, carry=carry)
    key = jax.random.key(4)
    dropped_last, (dropped, same) = rs.layer(rs.dropout(cell, 0.25))(params, xs, carry=carry, key=key)
    masks = [
        jax.random.bernoulli(jax.random.fold_in(jax.random.split(key)[0], t), 0.75, plain[t].shape) for t in range(TIME)
    ]
    assert_trees_close(dropped, jnp.where(jnp.stack(masks), plain / 0.75, 0))
    assert_trees_close((dropped_last, same), (last, weights))
    # Between the nets of a chain, too.
    chained = Chained()
    params, outputs, carry, xs = arguments(chained)
    net = rs.chain(*net_of(chained, params, outputs).nets, dropout=0.25)
    assert np.any(net(params, xs, carry=carry, key=key)[1] != net(params, xs, carry=carry)[1])


def test_a_wrapper_that_cannot_take_a_decoder_says_so():
    params, outputs, carry, xs = arguments(Residual())
    cell = over(params, outputs)
    with pytest.raises(TypeError, match=r"^zoneout: .* got AttentionCell\. Put zoneout directly around the cell"):
        rs.zoneout(cell, 0.5)
    for inside in (cell, rs.stack(GRU, cell)):
        zoned = rs.zoneout(rs.dropout(inside, 0.1), 0.5)
        carry = zoned.initial_carry(xs[0])
        with pytest.raises(TypeError, match=r"^zoneout: the carry must be a tuple of arrays; got "):
            zoned(params, carry, xs[0])
    with pytest.raises(TypeError, match=r"^dropout: on='recurrent' must directly wrap a cell"):
        rs.dropout(cell, 0.5, on="recurrent")


@pytest.mark.bad_input
def test_a_decoder_without_an_encoder_is_no_cell():
    with pytest.raises(TypeError, match=r"^layer: .* got Decoder, .* once it has an encoder: decoder\.over\(params, "):
        rs.layer(DECODER)


def test_reports_and_linen_take_a_composed_decoder():
    case = Below()
    params, outputs, carry, xs = arguments(case)
    cell = rs.dropout(net_of(case, params, outputs).cell, 0.2)
    report = rs.memory_report(cell, params, carry, xs, memory=rs.Memory(recompute=("attention",)))
    assert "params['layer_0']['attention']['key_kernel']" in str(report)
    module = rs.linen.RNN(cell, time_major=True, return_carry=True)
    variables = {"params": {"cell": params}}
    assert_trees_close(
        module.apply(variables, xs, initial_carry=carry), rs.scan(cell, params, carry, xs), tolerance=1e-12
    )
