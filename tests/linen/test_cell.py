"""A cell of rnnscan as a module: in linen.RNN, in Flax's own RNN, in its loops and transforms, and by itself."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import errors

import rnnscan as rs
from flax_cells import BATCH, INPUT_SIZE, KEYS, TIME, draw, fill, gradients, remat_in_a_loop, values, variables_of
from rnnscan import linen
from rnnscan.insight import kept_bytes
from tiers import variants
from zoo.case import assert_trees_close


pytestmark = [pytest.mark.usefixtures("x64"), pytest.mark.typed]

FLOAT = {"param_dtype": jnp.float64}
CELLS = {
    "lstm": rs.cells.LSTM(4, **FLOAT),
    "gru": rs.cells.GRU(4, reset_after=False, **FLOAT),
    "lru": rs.cells.LRU(4, **FLOAT),
    "stack": rs.stack(rs.cells.RNN(4, **FLOAT), rs.residual(rs.cells.GRU(4, **FLOAT)), dropout=0.5),
    "convolution": rs.dropout(rs.cells.ConvLSTM(2, kernel_size=(2,), **FLOAT), 0.5),
}


def inputs_of(name):
    return draw((BATCH, TIME, *((4,) if name == "convolution" else ()), INPUT_SIZE))


class OwnCell:
    """The least that is a cell."""

    def init(self, key, input_size):
        return {"kernel": jax.random.normal(key, (input_size, 2), jnp.float64)}

    def initial_carry(self, x):
        return jnp.zeros((*x.shape[:-1], 2), x.dtype)

    def __call__(self, params, carry, x):
        carry = carry + jnp.tanh(rs.name(x @ params["kernel"], "product"))
        return carry, carry


@pytest.mark.parametrize("name", variants(CELLS.keys(), ["lstm"]))
def test_in_an_rnn_it_is_the_cell_over_time(name):
    cell, inputs = CELLS[name], inputs_of(name)
    model, flax = linen.RNN(cell, return_carry=True), nn.RNN(linen.Cell(cell), return_carry=True)
    variables = variables_of(model, inputs)
    assert jax.eval_shape(flax.init, KEYS, inputs) == jax.eval_shape(model.init, KEYS, inputs)
    xs = jnp.moveaxis(inputs, 1, 0)
    params = variables["params"]["cell"]
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(
        jnp.shape, jax.eval_shape(lambda: cell.init(jax.random.key(0), INPUT_SIZE))
    )

    def loop(params, xs):
        carry, ys = rs.scan(cell, params, cell.initial_carry(xs[0]), xs)
        return carry, jnp.moveaxis(ys, 0, 1)

    # Without the rng "dropout" there is no choice to make: evaluation.
    def without_rngs(model):
        return jax.jit(lambda variables: model.apply(variables, inputs))(variables)

    assert_trees_close(without_rngs(model), jax.jit(loop)(params, xs), tolerance=1e-9)


def test_gradients_are_those_within_an_rnn_of_flax():
    inputs = inputs_of("stack")
    model, flax = linen.RNN(CELLS["lstm"]), nn.RNN(linen.Cell(CELLS["lstm"]))
    variables = variables_of(model, inputs)
    expected = gradients(flax, variables, inputs)
    assert_trees_close(gradients(model, variables, inputs), expected, tolerance=1e-9)


def test_parameters_start_as_the_cell_makes_them_from_one_key():
    """Those of an LRU start in one relation to each other, which two keys would not keep."""
    cell = rs.cells.LRU(4, **FLOAT)
    params = linen.Cell(cell).init(KEYS, cell.initial_carry(draw((BATCH, INPUT_SIZE))), draw((BATCH, INPUT_SIZE)))
    made = cell.init(jax.random.key(0), INPUT_SIZE)
    assert jax.tree.structure(params["params"]) == jax.tree.structure(made)
    decay = jnp.exp(params["params"]["log_decay"])
    np.testing.assert_allclose(params["params"]["log_scale"], 0.5 * jnp.log(1 - jnp.exp(-2 * decay)), rtol=1e-9)


def test_where_the_scope_of_a_cell_is():
    """A cell of rnnscan is in the RNN's scope; a module made in a model is in the model's, as all of Flax's are."""

    class Model(nn.Module):
        @nn.compact
        def __call__(self, inputs):
            hidden = linen.RNN(CELLS["gru"])(inputs)
            hidden = linen.RNN(CELLS["gru"], name="named")(hidden)
            return linen.RNN(linen.Cell(CELLS["gru"]))(hidden)

    params = variables_of(Model(), inputs_of("gru"))["params"]
    assert {scope: list(params[scope]) for scope in ("RNN_0", "named")} == {"RNN_0": ["cell"], "named": ["cell"]}
    assert set(params) == {"RNN_0", "named", "Cell_0"}
    assert "kernel" in params["Cell_0"]


@pytest.mark.parametrize(
    ("on", "each"),
    [
        ("output", "step"),
        ("recurrent", "sequence"),
        pytest.param("output", "sequence", marks=pytest.mark.slow),
        pytest.param("recurrent", "step", marks=pytest.mark.slow),
    ],
)
def test_random_choices(on, each):
    cell = rs.dropout(rs.cells.RNN(8, **FLOAT), 0.5, on=on, each=each)
    inputs = draw((BATCH, TIME, INPUT_SIZE))
    model = linen.RNN(cell)
    variables = variables_of(model, inputs)

    train = jax.jit(lambda key: model.apply(variables, inputs, rngs={"dropout": key}))
    trained = train(jax.random.key(1))
    assert not (train(jax.random.key(2)) == trained).all()
    evaluated = jax.jit(lambda: model.apply(variables, inputs))()
    later = slice(1, None)  # The first step has no state that could be dropped.
    assert not (trained == evaluated)[:, later].all(axis=(0, 2)).any()
    if on == "output":
        dropped = trained == 0
        assert 0.3 < dropped.mean() < 0.7
        assert bool((dropped == dropped[:, :1]).all()) == (each == "sequence")
        np.testing.assert_allclose(trained, jnp.where(dropped, 0, 2 * evaluated), rtol=1e-9)


def test_a_deterministic_cell_makes_no_choice():
    cell = rs.dropout(rs.cells.RNN(4, **FLOAT), 0.5)
    inputs = draw((BATCH, TIME, INPUT_SIZE))
    variables = variables_of(linen.RNN(cell), inputs)
    expected = jax.jit(lambda: linen.RNN(cell).apply(variables, inputs))()
    deterministic = linen.RNN(linen.Cell(cell, deterministic=True))
    assert_trees_close(values(deterministic, variables, inputs), expected)


def test_random_choices_from_an_rng_of_another_name_and_in_a_loop_of_flax():
    cell = linen.Cell(rs.dropout(rs.cells.RNN(8, **FLOAT), 0.5), rng_collection="noise")
    inputs = draw((BATCH, TIME, INPUT_SIZE))
    variables = variables_of(linen.RNN(cell), inputs)
    models = [
        linen.RNN(cell),
        nn.RNN(cell, split_rngs={"params": False, "noise": True}),
        nn.RNN(cell, split_rngs={"params": False, "noise": False}),
    ]
    own, each, once = (
        jax.jit(lambda model=model: model.apply(variables, inputs, rngs={"noise": jax.random.key(1)}))() == 0
        for model in models
    )
    assert all(0.3 < dropped.mean() < 0.7 for dropped in (own, each, once))
    assert not (own == own[:, :1]).all()
    assert not (each == each[:, :1]).all()
    assert (once == once[:, :1]).all()


@remat_in_a_loop
def test_within_loops_and_transforms_of_flax():
    cell = CELLS["lstm"]

    class Loop(nn.Module):
        @nn.compact
        def __call__(self, inputs):
            scan = nn.scan(
                nn.remat(linen.Cell), variable_broadcast="params", split_rngs={"params": False}, in_axes=1, out_axes=1
            )
            module = scan(cell, name="cell")
            return module(module.initialize_carry(jax.random.key(0), inputs[:, 0].shape), inputs)

    inputs = inputs_of("lstm")
    model = linen.RNN(cell, return_carry=True)
    variables = variables_of(model, inputs)
    assert jax.eval_shape(Loop().init, KEYS, inputs) == jax.eval_shape(model.init, KEYS, inputs)
    assert_trees_close(values(Loop(), variables, inputs), values(model, variables, inputs), tolerance=1e-9)
    remat = linen.RNN(nn.remat(linen.Cell)(cell), return_carry=True)
    assert_trees_close(values(remat, variables, inputs), values(model, variables, inputs), tolerance=1e-9)


def test_by_itself_with_any_batch():
    cell = linen.Cell(CELLS["gru"])
    x = draw((2, 3, INPUT_SIZE))
    carry = cell.initialize_carry(jax.random.key(0), x.shape)
    (hidden,), y = cell.init_with_output(KEYS, carry, x)[0]
    assert hidden.shape == y.shape == (2, 3, 4)


def test_the_least_cell_and_its_names():
    inputs = draw((BATCH, TIME, INPUT_SIZE))
    model = linen.RNN(OwnCell(), memory=rs.Memory(recompute=("product",)))
    params = {"kernel": draw((INPUT_SIZE, 2), seed=4)}
    expected = jnp.cumsum(jnp.tanh(inputs @ params["kernel"]), axis=1)
    assert_trees_close(values(model, {"params": {"cell": params}}, inputs), expected, tolerance=1e-9)


def test_the_initial_carry_is_typed_like_the_inputs():
    cell = rs.cells.GRU(4)
    with jax.enable_x64(False):
        inputs = jnp.ones((2, 5, 3), jnp.bfloat16)
        (carry,), _ = jax.eval_shape(lambda: linen.RNN(cell, return_carry=True).init_with_output(KEYS, inputs)[0])
        assert carry.dtype == jnp.bfloat16


MEMORIES = [rs.Memory(), rs.Memory(recompute="all"), rs.Memory(segment=8), None]


@pytest.mark.parametrize("memory", variants(MEMORIES, [rs.Memory(recompute="all"), None]), ids=str)
def test_what_is_kept_is_what_the_net_keeps(memory):
    cell = rs.dropout(rs.cells.LSTM(8), 0.5, on="recurrent", each="sequence")
    inputs = jnp.ones((64, 4, 3), jnp.float32)
    model, net = linen.RNN(cell, time_major=True, memory=memory), rs.layer(cell)
    with jax.enable_x64(False):
        variables = jax.eval_shape(model.init, KEYS, inputs)
        key = jax.random.key(1)
        kept = kept_bytes(lambda variables: model.apply(variables, inputs, rngs={"dropout": key}), variables)
        by_net = kept_bytes(lambda params: net(params, inputs, key=key, memory=memory)[1], variables["params"]["cell"])
    assert abs(kept - by_net) < 64 * 4  # Less than a float for each step and row: the key, and the like.


def test_parameters_of_another_size_are_refused():
    model, other = linen.RNN(rs.cells.GRU(4)), linen.RNN(rs.cells.GRU(5))
    inputs = jnp.ones((2, 5, 3))
    variables = fill(jax.eval_shape(other.init, KEYS, inputs))
    with pytest.raises(errors.ScopeParamShapeError, match='For parameter "bias"'):
        model.apply(variables, inputs)
