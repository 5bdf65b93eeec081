"""One step of a net, and inputs that may be one step or one row."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from drawn import normal
from rnnscan import cells
from zoo.case import assert_trees_close


pytestmark = pytest.mark.typed  # `make test` runs these with the run-time type checks.


GRU = cells.GRU(4)
XS = jax.random.normal(jax.random.key(0), (3, 2, 5))
NETS = {
    "layer": rs.layer(GRU),
    "stack": rs.layer(rs.stack(rs.residual(cells.LSTM(5)), GRU)),
    "bidirectional": rs.bidirectional(GRU),
    "chain": rs.chain(rs.layer(rs.dropout(cells.LSTM(4), 0.3)), rs.layer(GRU), dropout=0.3),
}


def arguments(net):
    """Random params and carry; nothing is zero."""
    random = np.random.default_rng(0)
    shapes = jax.eval_shape(lambda: (net.init(jax.random.key(0), 5), net.initial_carry(XS)))
    return jax.tree.map(lambda leaf: normal(random, leaf.shape, leaf.dtype), shapes)


@pytest.mark.parametrize("kind", ["stack", "chain"])
def test_steps_are_the_whole(kind):
    net = NETS[kind]
    params, carry = arguments(net)
    key = jax.random.key(1)
    last, ys = jax.jit(net)(params, XS, carry=carry, key=key)
    step, outputs = jax.jit(net.step), []
    for number, x in enumerate(XS):
        carry, y = step(params, x, carry=carry, key=key, first_step=number)
        outputs.append(y)
    assert_trees_close((carry, jnp.stack(outputs)), (last, ys), tolerance=1e-6)


def test_a_step_starts_from_zeros_and_takes_one_row():
    net = NETS["layer"]
    params, _ = arguments(net)
    (hidden,), y = net.step(params, XS[0])
    assert_trees_close((hidden, y), (y, net(params, XS[:1])[1][0]), tolerance=1e-6)
    assert_trees_close(net.step(params, XS[0, 1])[1], y[1], tolerance=1e-6)
    assert_trees_close(
        net.step(params, np.asarray(XS[0]), carry=(hidden,))[0], GRU(params, (hidden,), XS[0])[0], tolerance=1e-6
    )


@pytest.mark.parametrize("kind", NETS)
def test_inputs_that_may_be_one_step_or_one_row_are_an_error(kind):
    net = NETS[kind]
    params, carry = arguments(net)
    with pytest.raises(ValueError, match=r"^\w+: .* got float32\[2,5\], which may be one step \(N, D\) or one row"):
        net(params, XS[0])
    with pytest.raises(ValueError, match=r"got float32\[2,5\], which is one step for this carry\. Call net\.step"):
        net(params, XS[0], carry=carry)
    with pytest.raises(ValueError, match=r"must have a time axis and a batch axis, \(T, N, D\); got float32\[5\]\."):
        net(params, XS[0, 0])


@pytest.mark.parametrize("kind", ["layer", "bidirectional"])
def test_one_row_says_so_by_its_carry(kind):
    net = NETS[kind]
    params, _ = arguments(net)
    _, ys = net(params, XS)
    one_row = lambda xs: net(params, xs, carry=net.initial_carry(xs))[1]  # noqa: E731
    assert_trees_close(one_row(XS[:, 1]), ys[:, 1], tolerance=1e-6)
    assert_trees_close(jax.vmap(one_row, in_axes=1, out_axes=1)(XS), ys, tolerance=1e-6)
    assert_trees_close(net(params, XS[:, 1:])[1][:, 0], ys[:, 1], tolerance=1e-6)


def test_a_step_refuses_what_is_none():
    params, carry = arguments(NETS["layer"])
    with pytest.raises(ValueError, match=r"^step: `x` must be one step's input, \(N, D\); got float32\[3,2,5\]\."):
        NETS["layer"].step(params, XS)
    with pytest.raises(TypeError, match=r"^step: one step takes no padding or truncation; got 'mask'\."):
        NETS["layer"].step(params, XS[0], carry=carry, mask=jnp.ones(2, bool))
    with pytest.raises(ValueError, match=r"^step: the net must run in pieces; .* starts at the end of the sequence"):
        NETS["bidirectional"].step(arguments(NETS["bidirectional"])[0], XS[0])


def test_a_convolutional_cell_counts_its_axes():
    net = rs.layer(cells.ConvLSTM(2, kernel_size=(3,)))
    params = net.init(jax.random.key(0), 5)
    assert net(params, XS[:, :, None])[1].shape == (3, 2, 1, 2)
    with pytest.raises(ValueError, match=r"\(T, N, .*D\); got float32\[3,2,5\], which may be one step"):
        net(params, XS)


def test_a_cell_that_does_not_declare_its_axes_is_not_asked():
    class Embedded:
        """A GRU over token ids `(N,)`."""

        names, output_size = GRU.names, 4

        def init(self, key, input_size):
            return {"table": jax.random.normal(key, (7, input_size)), "gru": GRU.init(key, input_size)}

        def initial_carry(self, x):
            return (jnp.zeros((*x.shape, 4)),)

        def __call__(self, params, carry, x):
            return GRU(params["gru"], carry, params["table"][x])

    for cell in (Embedded(), rs.dropout(Embedded(), 0.1)):
        net = rs.layer(cell)
        assert net(net.init(jax.random.key(0), 5), jnp.array([[1, 2], [3, 4], [5, 6]]))[1].shape == (3, 2, 4)
