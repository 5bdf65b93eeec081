"""Nets against scans of their cells: directions, lengths, resets, chains, and who gets which option."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from rnnscan import cells
from zoo.case import assert_trees_close


pytestmark = pytest.mark.usefixtures("x64")

LENGTH, BATCH, SIZE = 5, 3, 3
LENGTHS = jnp.array([5, 2, 0])


def arguments(net, seed=0):
    """Random params, carry and inputs; nothing is zero."""
    random = np.random.default_rng(seed)
    xs = jnp.asarray(random.normal(size=(LENGTH, BATCH, SIZE)))
    shapes = jax.eval_shape(lambda: (net.init(jax.random.key(0), SIZE), net.initial_carry(xs)))
    return (*jax.tree.map(lambda leaf: jnp.asarray(0.5 * random.normal(size=leaf.shape)), shapes), xs)


def test_a_layer_is_a_scan():
    net = rs.layer(cells.LSTM(4))
    params, carry, xs = arguments(net)
    assert_trees_close(net(params, xs, carry=carry), rs.scan(net.cell, params, carry, xs))
    assert_trees_close(net(params, xs), net(params, xs, carry=net.initial_carry(xs)))


@pytest.mark.parametrize("merge", ["concat", "sum", "mean", "product", jnp.maximum])
def test_bidirectional_merges_a_row_with_its_reverse(merge):
    net = rs.bidirectional(cells.LSTM(4), cells.GRU(4), merge=merge)
    params, (forward, backward), xs = arguments(net)
    (forward_last, backward_last), ys = net(params, xs, carry=(forward, backward), seq_lengths=LENGTHS)
    numpy_merges = {
        "concat": lambda a, b: np.concatenate([a, b], -1),
        "sum": np.add,
        "mean": lambda a, b: (a + b) / 2,
        "product": np.multiply,
    }
    for row, length in enumerate(LENGTHS.tolist()):
        of_row = lambda tree, row=row: jax.tree.map(lambda leaf: leaf[row : row + 1], tree)  # noqa: E731
        steps = xs[:length, row : row + 1]
        last, there = rs.scan(net.forward, params["forward"], of_row(forward), steps)
        first, back = rs.scan(net.backward, params["backward"], of_row(backward), steps[::-1])
        assert_trees_close((of_row(forward_last), of_row(backward_last)), (last, first))
        merged = numpy_merges.get(merge, merge)(np.asarray(there), np.asarray(back[::-1]))
        np.testing.assert_allclose(ys[:length, row : row + 1], merged, atol=1e-12)
        assert not np.any(ys[length:, row])


def test_the_directions_swap_with_the_sequence():
    net = rs.bidirectional(cells.GRU(4))
    params, carry, xs = arguments(net)
    (there, back), ys = net(params, xs, carry=carry, seq_lengths=LENGTHS)
    swapped = {"forward": params["backward"], "backward": params["forward"]}
    reverse = lambda xs: rs.reverse_by_length(xs, LENGTHS)  # noqa: E731
    (swapped_there, swapped_back), swapped_ys = net(swapped, reverse(xs), carry=carry[::-1], seq_lengths=LENGTHS)
    assert_trees_close((swapped_back, swapped_there), (there, back))
    assert_trees_close(reverse(jnp.concatenate(jnp.split(swapped_ys, 2, axis=-1)[::-1], axis=-1)), ys)


def test_a_reset_begins_a_document_in_both_directions():
    net = rs.bidirectional(cells.GRU(4))
    params, carry, xs = arguments(net)
    reset = jnp.zeros((LENGTH, BATCH), bool).at[3, 0].set(True).at[1, 1].set(True)
    _, ys = net(params, xs, carry=carry, reset=reset, reset_to=carry)
    for row, begin in ((0, 3), (1, 1), (2, 0)):
        one = jax.tree.map(lambda leaf, row=row: leaf[row : row + 1], carry)
        documents = [piece[:, row : row + 1] for piece in (xs[:begin], xs[begin:]) if len(piece)]
        pieces = [net(params, document, carry=one)[1] for document in documents]
        assert_trees_close(ys[:, row : row + 1], jnp.concatenate(pieces))


def test_a_chain_feeds_each_net_with_the_outputs_of_the_one_before():
    first, second = rs.bidirectional(cells.LSTM(2)), rs.layer(cells.GRU(4))
    net = rs.chain(first, second)
    params, carry, xs = arguments(net)
    options = {"seq_lengths": LENGTHS}
    first_last, between = first(params["net_0"], xs, carry=carry[0], **options)
    second_last, ys = second(params["net_1"], between, carry=carry[1], **options)
    assert_trees_close(net(params, xs, carry=carry, **options), ((first_last, second_last), ys))
    assert net.output_size == 4
    assert first.output_size == 4


def test_dropout_between_nets_goes_on_over_pieces_and_is_drawn_again_the_same():
    net = rs.chain(rs.layer(cells.RNN(4)), rs.layer(cells.GRU(4)), dropout=0.5)
    params, carry, xs = arguments(net)
    key = jax.random.key(3)
    last, ys = net(params, xs, carry=carry, key=key)
    assert np.any(ys != net(params, xs, carry=carry)[1])
    middle, first_ys = net(params, xs[:2], carry=carry, key=key)
    end, second_ys = net(params, xs[2:], carry=middle, key=key, first_step=2)
    assert_trees_close((end, jnp.concatenate([first_ys, second_ys])), (last, ys))

    # The gradient is that of the masks that the forward pass drew, by finite differences along one direction.
    loss = lambda params, **options: jnp.sum(jnp.sin(net(params, xs, carry=carry, key=key, **options)[1]))  # noqa: E731
    value = jax.jit(loss)
    direction = arguments(net, seed=1)[0]
    move = lambda size: jax.tree.map(lambda a, b: a + size * b, params, direction)  # noqa: E731
    difference = (value(move(1e-5)) - value(move(-1e-5))) / 2e-5
    gradient = jax.jit(jax.grad(lambda params: loss(params, memory=rs.Memory(recompute="all"))))(params)
    along = sum(jax.tree.leaves(jax.tree.map(lambda a, b: jnp.sum(a * b), gradient, direction)))
    np.testing.assert_allclose(along, difference, rtol=1e-7)


def test_a_memory_choice_speaks_to_each_net_of_its_own_names():
    net = rs.chain(rs.layer(cells.LSTM(4)), rs.bidirectional(cells.RNN(4), cells.GRU(4)))
    params, carry, xs = arguments(net)
    assert net.names == ("gates", "preactivation")
    memory = rs.Memory(recompute=("preactivation",))
    assert_trees_close(net(params, xs, carry=carry, memory=memory), net(params, xs, carry=carry, memory=None))
    with pytest.raises(ValueError, match=r"^chain: .* got 'gate', and the net has 'gates', 'preactivation'\. Did you"):
        net(params, xs, memory=rs.Memory(recompute=("gate",)))


def test_no_steps():
    net = rs.chain(rs.bidirectional(cells.LSTM(4)), rs.layer(cells.GRU(5)))
    params, carry, xs = arguments(net)
    last, ys = net(params, xs[:0], carry=carry, key=jax.random.key(0))
    assert_trees_close(last, carry, tolerance=0)
    assert ys.shape == (0, BATCH, 5)


def test_a_net_under_jit_grad_and_vmap():
    net = rs.bidirectional(cells.RNN(4))
    params, carry, xs = arguments(net)
    run = lambda params, xs: net(params, xs, carry=carry)[1].sum()  # noqa: E731
    batched = jax.jit(jax.vmap(jax.grad(run), in_axes=(None, 0)))(params, jnp.stack([xs, 2 * xs]))
    one = jax.jit(jax.grad(run))(params, 2 * xs)
    assert_trees_close(jax.tree.map(lambda leaf: leaf[1], batched), one)


def test_what_is_no_net_in_a_chain():
    with pytest.raises(
        TypeError, match=r"^chain: every argument must be a net; got GRU\(hidden_size=4\)\. Make a net of a cell"
    ):
        rs.chain(cells.GRU(4))
    with pytest.raises(ValueError, match=r"^chain: there must be at least one net; got none\."):
        rs.chain()


@pytest.mark.bad_input
def test_a_merge_that_is_not_known_or_does_not_fit():
    with pytest.raises(ValueError, match=r"^bidirectional: `merge` must be .*; got 'add'\."):
        rs.bidirectional(cells.GRU(4), merge="add")
    net = rs.bidirectional(cells.GRU(4), cells.GRU(5), merge="sum")
    params = net.init(jax.random.key(0), SIZE)
    with pytest.raises(ValueError, match=r"^bidirectional: merge='sum' needs outputs of one shape; got \(5, 3, 4\)"):
        net(params, jnp.ones((LENGTH, BATCH, SIZE)))


def test_parameters_and_carries_without_one_entry_for_each_part():
    net = rs.bidirectional(cells.GRU(4))
    xs = jnp.ones((LENGTH, BATCH, SIZE))
    with pytest.raises(ValueError, match=r"^bidirectional: the parameters .* 'forward', 'backward'; got 'kernel', "):
        net(cells.GRU(4).init(jax.random.key(0), SIZE), xs)
    with pytest.raises(TypeError, match=r"^bidirectional: the carry must be a tuple with one carry for each of"):
        net(net.init(jax.random.key(0), SIZE), xs, carry=cells.GRU(4).initial_carry(xs[0]))


def test_a_carry_of_another_batch_says_so():
    net = rs.layer(cells.GRU(4))
    params, _, xs = arguments(net)
    with pytest.raises(ValueError, match=r"hidden in the carry .* got float64\[7,4\]\. Batch or"):
        net(params, xs, carry=(jnp.ones((7, 4)),))
