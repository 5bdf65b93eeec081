"""Nets in pieces with the carry handed on: equal to the whole, or refused with the reason."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from flax import nnx

import rnnscan as rs
from drawn import normal
from rnnscan import cells
from rnnscan.train import begin, make_step


GRU = cells.GRU(4)
NEED_WHOLE = {
    "bidirectional": rs.bidirectional(GRU),
    "reversed": rs.layer(GRU, reverse=True),
    "chain": rs.chain(rs.layer(GRU), rs.chain(rs.bidirectional(GRU))),
}
WHY = r"starts at the end of the sequence"
XS = jax.random.normal(jax.random.key(0), (6, 2, 3))


def filled(tree):
    """Random leaves like those of a tree; none is zero."""
    random = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: normal(random, leaf.shape, leaf.dtype), tree)


def arguments(net):
    return filled((net.init(jax.random.key(1), 3), net.initial_carry(XS)))


def step_with(net, carry=None):
    """A training step whose loss hands the carry of the net on, or starts the net from another."""

    def loss(params, handed_on, batch, key):
        last, ys = net(params, batch, carry=handed_on if carry is None else carry)
        return jnp.mean(ys**2), last

    return make_step(loss, optax.sgd(0.1))


@pytest.mark.parametrize("kind", NEED_WHOLE)
def test_what_runs_pieces_refuses_a_net_that_needs_the_whole_sequence(kind):
    net = NEED_WHOLE[kind]
    params, carry = arguments(net)
    assert not net.runs_in_pieces
    with pytest.raises(ValueError, match=rf"^by_chunk: the net must run in pieces; .*{WHY}"):
        rs.truncated.by_chunk(net, params, XS, carry=carry, size=3)
    with pytest.raises(ValueError, match=rf"^by_window: the net must run in pieces; .*{WHY}"):
        rs.truncated.by_window(net, params, XS, carry=carry, every=2, back=3)
    state = begin(params, optax.sgd(0.1), carry=carry)
    with pytest.raises(ValueError, match=rf"the initial carry must not come from the previous training step; .*{WHY}"):
        step_with(net)(state, XS)
    with pytest.raises(ValueError, match=rf"`first_step` must be 0 .*; got 3\. .*{WHY}"):
        net(params, XS, carry=carry, first_step=3)
    with pytest.raises(ValueError, match=r"`first_step` must be 0 .*; got a traced value"):
        jax.jit(lambda first: net(params, XS, first_step=first))(0)


@pytest.mark.parametrize("kind", ["bidirectional", "reversed"])
def test_pieces_would_be_another_function_and_an_initial_carry_is_fine(kind):
    net = NEED_WHOLE[kind]
    params, carry = arguments(net)
    _, whole = net(params, XS, carry=carry, first_step=0)
    assert np.any(whole != net(params, XS)[1])
    middle, first = net(params, XS[:3], carry=carry)
    _, second = net(params, XS[3:], carry=middle)
    assert np.abs(jnp.concatenate([first, second]) - whole).max() > 0.01
    # A training step may start such a net from a carry that is not handed on.
    state, _ = step_with(net, carry)(begin(params, optax.sgd(0.1), carry=carry), XS)
    assert int(state.step) == 1


def test_a_reversed_layer_in_pieces_from_the_end_is_a_layer_over_the_flipped_sequence():
    net = NEED_WHOLE["reversed"]
    params, carry = arguments(net)
    last, whole = net(params, XS, carry=carry)
    forward, ys = rs.layer(GRU), []
    for _, piece in rs.truncated.chunks(jnp.flip(XS, 0), size=4):
        carry, y = forward(params, piece, carry=carry)
        ys.append(y)
    np.testing.assert_allclose(jnp.flip(jnp.concatenate(ys), 0), whole, atol=1e-6)
    np.testing.assert_allclose(carry[0], last[0], atol=1e-6)


def test_a_net_that_runs_forward_is_trained_in_pieces():
    net = rs.layer(GRU)
    assert rs.chain(net, net).runs_in_pieces
    params, carry = arguments(net)
    assert int(step_with(net)(begin(params, optax.sgd(0.1), carry=carry), XS)[0].step) == 1


@pytest.mark.parametrize("reverse", [False, True])
def test_the_training_step_refuses_modules_of_linen_that_need_the_whole_sequence(reverse):
    make = lambda **options: rs.linen.RNN(nn.GRUCell(4), return_carry=True, time_major=True, **options)  # noqa: E731
    module = make(reverse=True) if reverse else rs.linen.Bidirectional(make(), make(), return_carry=True)
    carry = jnp.ones((2, 4)) if reverse else (jnp.ones((2, 4)), jnp.ones((2, 4)))
    params = module.init(jax.random.key(0), XS)["params"]

    def loss(params, carry, batch, key):
        carry, ys = module.apply({"params": params}, batch, initial_carry=carry)
        return jnp.mean(ys**2), carry

    with pytest.raises(ValueError, match=rf"^linen\.(RNN|Bidirectional): the initial carry .*{WHY}"):
        make_step(loss, optax.sgd(0.1))(begin(params, optax.sgd(0.1), carry=carry), XS)


@pytest.mark.bad_input
@pytest.mark.parametrize("reverse", [False, True])
def test_the_training_step_refuses_modules_of_nnx_that_need_the_whole_sequence(reverse):
    make = lambda **options: rs.nnx.RNN(  # noqa: E731
        nnx.GRUCell(3, 4, rngs=nnx.Rngs(0)), return_carry=True, time_major=True, **options
    )
    module = make(reverse=True) if reverse else rs.nnx.Bidirectional(make(), make(), return_carry=True, time_major=True)
    carry = jnp.ones((2, 4)) if reverse else (jnp.ones((2, 4)), jnp.ones((2, 4)))
    graph, params, rest = nnx.split(module, nnx.Param, ...)

    def loss(params, carry, batch, key):
        carry, ys = nnx.merge(graph, params, rest)(batch, initial_carry=carry)
        return jnp.mean(ys**2), carry

    with pytest.raises(ValueError, match=rf"^nnx\.(RNN|Bidirectional): the initial carry .*{WHY}"):
        make_step(loss, optax.sgd(0.1))(begin(params, optax.sgd(0.1), carry=carry), XS)
    with pytest.raises((TypeError, ValueError), match=rf"^nnx\.Streaming: .*{WHY}"):
        rs.nnx.Streaming(module, (2, 3))
