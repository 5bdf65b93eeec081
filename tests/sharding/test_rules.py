"""The shardings of parameters, and errors of shardings before any compute."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

import rnnscan as rs
from rnnscan import attention, cells


AUTO = (AxisType.Auto, AxisType.Auto)
MESH = AbstractMesh((2, 4), ("data", "model"), axis_types=AUTO)
ROWS, COLUMNS, WHOLE = PartitionSpec("model", None), PartitionSpec(None, "model"), PartitionSpec()


NETS = [
    rs.layer(cells.LSTM(8, proj_size=4)),
    rs.stack(cells.GRU(8), cells.LSTM(4)),
    rs.chain(rs.bidirectional(cells.GRU(8), cells.RNN(4)), rs.layer(rs.dropout(cells.LRU(8), 0.1))),
    attention.decoder(cells.LSTM(8), attention.Additive(6, 5)),
    rs.layer(cells.MLSTM(8)),
    rs.residual(cells.IndRNN(8)),
]


@pytest.mark.parametrize("net", NETS, ids=lambda net: type(net).__name__)
def test_specs_fit_the_parameters_of_every_input_size(net):
    specs = rs.sharding.rules(net, MESH)
    for size in (8,) if isinstance(net, type(NETS[-1])) else (8, 3):
        params = jax.eval_shape(lambda size=size: net.init(jax.random.key(0), size))
        assert jax.tree.structure(specs) == jax.tree.structure(params)
        for leaf, spec in zip(jax.tree.leaves(params), jax.tree.leaves(specs), strict=True):
            sharded = [length for length, axis in zip(leaf.shape, spec, strict=False) if axis == "model"]
            assert all(length % 4 == 0 for length in sharded)
            assert len(sharded) == (len(leaf.shape) > 1 and leaf.shape not in ((6, 5), (size, 2)))


def test_rows_are_sharded_then_columns():
    cell = attention.decoder(cells.LSTM(8), attention.Additive(6, 5))
    specs = rs.sharding.rules(cell, MESH)
    assert specs["cell"] == {"kernel": COLUMNS, "recurrent_kernel": ROWS, "bias": WHOLE}
    assert (specs["attention"]["query_kernel"], specs["attention"]["key_kernel"]) == (ROWS, WHOLE)
    assert rs.sharding.rules(cell, MESH, input_size=2)["cell"]["kernel"] == ROWS


def test_without_an_axis_for_units_nothing_is_sharded():
    one = AbstractMesh((8,), ("data",), axis_types=(AxisType.Explicit,))
    assert set(rs.sharding.rules(cells.LSTM(5), one, model=None).values()) == {WHOLE}
    assert set(rs.sharding.rules(cells.LSTM(5), AbstractMesh((8, 1), ("data", "model"))).values()) == {WHOLE}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: rs.sharding.rules(cells.LSTM(8), MESH, model="units"), "`model` must be an axis of the mesh"),
        (lambda: rs.sharding.rules(cells.LSTM(8), MESH, data="rows"), "got 'rows'"),
        (lambda: rs.sharding.rules(rs.layer(cells.LSTM(6)), MESH), r"4 devices .* divide the hidden units; got 6"),
        (
            lambda: rs.sharding.rules(
                cells.LSTM(8), AbstractMesh((2, 4), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
            ),
            "must be automatic",
        ),
        (lambda: rs.sharding.place_inputs(jnp.ones((8, 8, 2)), MESH, PartitionSpec("data")), "first axis .* is time"),
        (
            lambda: rs.sharding.place_inputs({"x": jnp.ones((4, 3, 2))}, MESH),
            r"2 devices must divide axis 1 of xs\['x'\]",
        ),
        (lambda: rs.sharding.place(jnp.ones(8), MESH, PartitionSpec("rows")), "a spec must name axes of the mesh"),
        (lambda: rs.sharding.place(jnp.ones(8), MESH, PartitionSpec(None, "model")), "at most one entry for each axis"),
        (lambda: rs.sharding.place({"w": jnp.ones(6)}, MESH, PartitionSpec("model")), r"at \['w'\]; got float32\[6\]"),
    ],
)
def test_errors_come_before_compute(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_only_what_makes_parameters_has_rules():
    with pytest.raises(TypeError, match="a cell or a net with `init`"):
        rs.sharding.rules(lambda params, carry, x: (carry, x), MESH)


def test_scan_says_that_time_cannot_be_sharded():
    cell = cells.GRU(4)
    xs = jax.device_put(jnp.ones((4, 2, 3)), jax.NamedSharding(jax.make_mesh((1,), ("data",)), PartitionSpec("data")))
    params = cell.init(jax.random.key(0), 3)
    with pytest.raises(ValueError, match=r"first axis of `xs` is time"):
        rs.scan(cell, params, cell.initial_carry(jnp.ones((2, 3))), xs)


EXPLICIT = AbstractMesh((2, 4), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)


def sharded(shape, *spec):
    sharding = jax.NamedSharding(EXPLICIT, PartitionSpec(*spec))
    return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding)


def test_a_carry_that_a_step_shards_otherwise_over_explicit_axes_is_an_error_that_says_what_to_do():
    def cell(params, carry, x):
        return jax.sharding.reshard(carry, PartitionSpec(None, "model")), x

    with (
        jax.sharding.use_abstract_mesh(EXPLICIT),
        pytest.raises(ValueError, match=r"must return a carry that is sharded as it was given; .*AxisType\.Auto"),
    ):
        jax.eval_shape(lambda c, xs: rs.scan(cell, {}, c, xs), sharded((8, 8), "data"), sharded((5, 8, 8)))


def test_products_over_explicit_units_that_jax_refuses_say_what_to_do():
    cell = cells.RNN(8)
    params = {"kernel": sharded((8, 8)), "recurrent_kernel": sharded((8, 8), "model"), "bias": sharded((8,))}
    with jax.sharding.use_abstract_mesh(EXPLICIT), pytest.raises(Exception, match="harding") as caught:
        jax.eval_shape(
            lambda params, carry, xs: rs.scan(cell, params, carry, xs),
            params,
            (sharded((8, 8), "data", "model"),),
            sharded((5, 8, 8)),
        )
    assert any("axis_types=(AxisType.Auto" in note for note in caught.value.__notes__)


def test_decoding_over_explicit_axes_is_an_error_before_compute():
    with (
        jax.sharding.use_abstract_mesh(EXPLICIT),
        pytest.raises(ValueError, match=r"not be sharded over explicit axes .* at `carry`\. Make the axes automatic"),
    ):
        jax.eval_shape(
            lambda carry: rs.decode(lambda _, c, token: (c, c), {}, carry, start=0, end=1, max_steps=3),
            sharded((8, 8), "data"),
        )
