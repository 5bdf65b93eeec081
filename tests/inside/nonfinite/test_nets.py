"""NaN planted in the scans of nets, Flax modules and `recurrent_net`."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from planted_values import Planted, own_name
from rnnscan import attention, cells
from tiers import variants


STEPS, ROWS, FEATURES = 6, 3, 5
XS = jnp.asarray(np.random.default_rng(0).uniform(-1, 1, size=(STEPS, ROWS, FEATURES)), jnp.float32)


def total(results):
    return sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(results))


class Logarithm:
    """A cell whose `logarithm` is NaN where the first feature is below -2."""

    names, output_size = ("logarithm",), 4

    def __init__(self):
        self.cell = cells.GRU(4)

    def init(self, key, input_size):
        return self.cell.init(key, input_size)

    def initial_carry(self, x):
        return self.cell.initial_carry(x)

    def __call__(self, params, carry, x):
        carry, y = self.cell(params, carry, x)
        return carry, rs.name(y + jnp.log(x[:, :1] + 2), "logarithm")


CELL = Logarithm()
NETS = {
    "layer": rs.layer(CELL),
    "reversed": rs.layer(CELL, reverse=True),
    "bidirectional": rs.bidirectional(cells.GRU(3), CELL),
    "chain": rs.chain(rs.layer(CELL), rs.layer(cells.LSTM(3))),
    "the second of a chain": rs.chain(rs.layer(cells.RNN(3, activation="relu")), rs.layer(CELL)),
}


def test_a_name_has_the_path_of_its_cell():
    net = NETS["chain"]
    report = rs.first_nonfinite(net, net.init(jax.random.key(0), FEATURES), XS.at[4, 1, 0].set(-3), loss=total)
    assert report.name == "net_0/logarithm"
    cell = rs.stack(cells.RNN(3), cells.GRU(4))
    params = cell.init(jax.random.key(0), FEATURES)
    params["layer_1"]["kernel"] = params["layer_1"]["kernel"].at[0, 0].set(jnp.inf)
    report = rs.first_nonfinite(cell, params, cell.initial_carry(XS[0]), XS, loss=total)
    assert "layer_1" in str(report)


@pytest.mark.parametrize("which", variants([name for name in NETS if "second" not in name], ["reversed", "chain"]))
@pytest.mark.parametrize("loss", [None, total])
def test_nets(which, loss):
    net = NETS[which]
    params = net.init(jax.random.key(0), FEATURES)
    assert rs.first_nonfinite(net, params, XS, loss=loss) is None
    report = rs.first_nonfinite(net, params, XS.at[4, 1, 0].set(-3), loss=loss)
    assert (report.step, report.row, own_name(report), report.direction) == (4, 1, "logarithm", "forward")
    assert (report.primitive, report.operands) == ("log", (-1.0,))
    assert report.origin == "xs"
    lengths = jnp.array([6, 4, 5])  # Step 4 of row 1 is padding.
    assert rs.first_nonfinite(net, params, XS.at[4, 1, 0].set(-3), loss=loss, seq_lengths=lengths) is None


def test_the_padding_may_be_nan_and_reach_nothing():
    net = NETS["bidirectional"]
    params = net.init(jax.random.key(0), FEATURES)
    xs = XS.at[4:, 1].set(jnp.nan)
    assert rs.first_nonfinite(net, params, xs, loss=total, seq_lengths=jnp.array([6, 4, 5])) is None
    report = rs.first_nonfinite(net, params, xs, loss=total, seq_lengths=jnp.array([6, 5, 5]))
    assert (report.origin, report.step, report.row) == ("xs", 4, 1)


def test_a_carry_of_a_net():
    net = NETS["layer"]
    params = net.init(jax.random.key(0), FEATURES)
    carry = jax.tree.map(lambda leaf: leaf.at[2, 0].set(jnp.nan), net.initial_carry(XS))
    report = rs.first_nonfinite(net, params, XS, carry=carry)
    assert (report.origin, report.row) == ("carry[0]", 2)


def test_an_attention_decoder_with_lengths_of_its_memory():
    """The mask of -inf over the keys is there in each step, and is not to blame."""
    memory = jnp.asarray(np.random.default_rng(1).normal(size=(7, ROWS, 4)), jnp.float32)
    decoder = attention.decoder(cells.GRU(4), attention.Dot(4))
    params = decoder.init(jax.random.key(0), FEATURES)

    def loss(params, xs, memory):
        cell = decoder.over(params, memory, encoder_lengths=jnp.array([7, 3, 1]))
        return total(rs.scan(cell, params, cell.initial_carry(xs[0]), xs))

    function = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))
    assert rs.first_nonfinite(function, params, XS, memory) is None
    report = rs.first_nonfinite(function, params, XS.at[3, 2, 1].set(jnp.nan), memory)
    assert (report.origin, report.step, report.row) == ("xs", 3, 2)
    report = rs.first_nonfinite(function, params, XS, 1e38 * memory)
    assert (own_name(report), report.direction) == ("attention", "backward")
    assert (report.primitive, report.origin) == ("dot_general", "memory")


def test_recurrent_net():
    def cell_net(params, input_t, hidden_t_prev):
        hidden = rs.name(jnp.log(input_t @ params + 40) + hidden_t_prev, "hidden")
        return {"hidden_t": hidden}

    def run(params, inputs):
        outputs = rs.recurrent_net(
            cell_net,
            params,
            inputs={"input_t": inputs},
            initial_cell_inputs={"hidden_t_prev": jnp.zeros((ROWS, 4))},
            links={"hidden_t_prev": "hidden_t"},
        )
        return outputs["hidden_t_all"].sum()

    function, params = jax.jit(jax.value_and_grad(run)), jnp.ones((FEATURES, 4))
    assert rs.first_nonfinite(function, params, XS) is None
    report = rs.first_nonfinite(function, params, XS.at[3, 2].set(-9))
    assert (report.step, report.row, own_name(report), report.primitive) == (3, 2, "hidden", "log")


@pytest.mark.parametrize("library", ["linen", "nnx"])
def test_flax_modules(library):
    xs = jnp.swapaxes(XS, 0, 1).at[2, 3, 0].set(-3)  # row, step, feature
    cell = CELL
    if library == "linen":
        module = rs.linen.RNN(cell)
        variables = module.init(jax.random.key(0), xs)
        function = jax.jit(lambda variables, xs: jax.tree.leaves(module.apply(variables, xs)))
        clean, report = (rs.first_nonfinite(function, variables, each) for each in (0 * xs, xs))
        of_module = rs.first_nonfinite(module, variables, xs, mutable=False)
        assert str(of_module) == str(report).replace("xs", "inputs")
    else:
        from flax import nnx

        model = rs.nnx.RNN(cell, in_features=FEATURES, rngs=nnx.Rngs(0))
        graph, state = nnx.split(model)
        function = jax.jit(lambda state, xs: jax.tree.leaves(nnx.merge(graph, state)(xs)))
        clean, report = (rs.first_nonfinite(function, state, each) for each in (0 * xs, xs))
    assert clean is None
    assert (report.step, report.row, report.primitive) == (3, 2, "log")
    assert own_name(report) == "logarithm"


def test_dropout_with_a_key():
    net = rs.layer(rs.dropout(CELL, 0.5))
    params = net.init(jax.random.key(0), FEATURES)
    xs = XS.at[4, 1, 0].set(-3)
    report = rs.first_nonfinite(net, params, xs, loss=total, key=jax.random.key(1))
    assert (report.step, report.row, own_name(report)) == (4, 1, "logarithm")


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_under_vmap_of_sequences(direction):
    """The axis of sequences is one more axis of rows."""
    cell = Planted(cells.GRU(4))
    params = cell.cell.init(jax.random.key(0), FEATURES)
    carry = cell.cell.initial_carry(XS[0])
    clean = cell.plants(STEPS, ROWS)
    plants = {
        **clean,
        direction: {"gates": clean[direction]["gates"].at[2, 1].set(2.0 if direction == "forward" else 1)},
    }
    both = jax.tree.map(lambda *leaves: jnp.stack(leaves), clean, plants)

    def loss(params, plants):
        return total(rs.scan(cell, params, carry, (XS, plants)))

    function = jax.jit(jax.grad(lambda params, plants: jax.vmap(partial(loss, params))(plants).sum()))
    assert rs.first_nonfinite(function, params, jax.tree.map(lambda leaf: 0 * leaf, both)) is None
    report = rs.first_nonfinite(function, params, both)
    assert (report.step, own_name(report), report.direction) == (2, "gates", direction)
    assert report.index[:2] == (1, 1)
