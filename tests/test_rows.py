"""The batch axis: one row without it, and initial carries that leave it out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import rnnscan as rs
from rnnscan import attention, cells
from tiers import variants
from zoo.case import Case, assert_trees_close


pytestmark = pytest.mark.usefixtures("x64")

CASE = Case(cells.LSTM(4))
LENGTHS = jnp.array([7, 3, 0])
MASK = jnp.asarray(np.random.default_rng(0).random((7, 3)) < 0.6)
RESET = jnp.asarray(np.random.default_rng(1).random((7, 3)) < 0.3)


def of_row(tree, row, axis=0):
    return jax.tree.map(lambda leaf: jnp.take(leaf, row, axis), tree)


@pytest.mark.core("rows")
@pytest.mark.parametrize(
    ("valid", "padding"),
    variants(
        {
            "lengths, zero": ({"seq_lengths": LENGTHS}, "zero"),
            "mask, hold": ({"mask": MASK}, "hold"),
            "mask, drop": ({"mask": MASK}, "drop"),
        },
        ["lengths, zero", "mask, hold"],
    ),
)
def test_one_row_alone_and_under_vmap(valid, padding):
    """Equinox's idiom: the cell sees one row, and `vmap` makes the batch."""
    params, carry, xs = CASE.arguments()
    (name, given), net = next(iter(valid.items())), rs.layer(CASE.cell)
    expected = rs.scan(CASE.cell, params, carry, xs, reset=RESET, padding=padding, **valid)
    axis = 0 if name == "seq_lengths" else 1

    def by_scan(carry, xs, given, reset):
        return rs.scan(CASE.cell, params, carry, xs, reset=reset, padding=padding, **{name: given})

    def by_net(carry, xs, given, reset):
        return net(params, xs, carry=carry, reset=reset, padding=padding, **{name: given})

    for run in (by_scan, by_net):
        rows = jax.vmap(run, in_axes=(0, 1, axis, 1), out_axes=(0, 1))(carry, xs, given, RESET)
        assert_trees_close(rows, expected)
    alone = by_scan(of_row(carry, 1), xs[:, 1], jnp.take(given, 1, axis), RESET[:, 1])
    assert_trees_close(alone, (of_row(expected[0], 1), expected[1][:, 1]))


@pytest.mark.core("windows equal the whole")
def test_one_row_in_windows_and_in_the_functions_of_lengths():
    params, carry, xs = CASE.arguments()
    row = (of_row(carry, 1), xs[:, 1])
    scan = jax.jit(lambda *row: rs.scan(CASE.cell, params, *row, seq_lengths=jnp.asarray(3), reset=RESET[:, 1]))
    expected = scan(*row)
    windows = {"every": 3, "back": 3, "seq_lengths": jnp.asarray(3), "reset": RESET[:, 1]}
    assert_trees_close(jax.jit(lambda *row: rs.truncated.by_window(CASE.cell, params, *row, **windows))(*row), expected)
    for function in (rs.reverse_by_length, rs.last_valid):
        axis = 1 if function is rs.reverse_by_length else 0
        function = jax.jit(function)
        assert_trees_close(function(xs[:, 1], jnp.asarray(3)), jnp.take(function(xs, LENGTHS), 1, axis))
        assert_trees_close(function(xs[:, 1], mask=MASK[:, 1]), jnp.take(function(xs, mask=MASK), 1, axis))
    assert_trees_close(rs.pack(xs[:, 1], jnp.asarray(3)), xs[:3, 1])
    assert_trees_close(
        rs.unpack(xs[:3, 1], jnp.asarray(3), length=7), rs.unpack(xs[:3, 1], jnp.array([3]), length=7)[:, 0]
    )


def concatenating(params, hidden, x):
    """A cell that does not take a carry without the batch axis."""
    hidden = jnp.tanh(jnp.concatenate([x, hidden], axis=-1) @ params)
    return hidden, hidden


def adding(params, hidden, x):
    hidden = jnp.tanh(x @ params + hidden)
    return hidden, hidden


def with_decoder(carry, xs):
    net = attention.decoder(cells.GRU(4), attention.Coverage(encoder_size=3, attention_size=4))
    params = net.init(jax.random.key(0), 3)
    return rs.scan(net.over(params, xs[:5]), params, carry, xs)


def with_convolution(carry, xs):
    case = Case(cells.ConvGRU(2), features=(3, 3, 3), rows_alone=False)
    params, _, images = case.arguments()
    return case.scan(params, carry, images)


def with_net(carry, xs):
    net = rs.chain(rs.layer(cells.RNN(4)), rs.layer(cells.RNN(2)))
    return net(net.init(jax.random.key(0), 3), xs, carry=carry, reset=RESET)


def with_windows(carry, xs):
    params = CASE.arguments()[0]
    return rs.truncated.by_window(CASE.cell, params, carry, xs, every=2, back=3, mask=MASK, reset=RESET)


KERNEL = np.random.default_rng(2).normal(size=(7, 4))
RUNS = {
    # name: (run of a carry and xs, sizes of a carry without the batch axis)
    "a cell": (lambda carry, xs: CASE.scan(CASE.arguments()[0], carry, xs, seq_lengths=LENGTHS), ((4,), (4,))),
    "as many units as rows": (
        lambda carry, xs: rs.scan(cells.GRU(3), cells.GRU(3).init(jax.random.key(0), 3), carry, xs),
        ((3,),),
    ),
    "a convolution": (with_convolution, ((3, 3, 2),)),
    "a function": (lambda carry, xs: rs.scan(adding, jnp.asarray(KERNEL[:3]), carry, xs), (4,)),
    "a function that needs rows": (lambda carry, xs: rs.scan(concatenating, jnp.asarray(KERNEL), carry, xs), (4,)),
    "a net": (with_net, (((4,),), ((2,),))),
    "windows": (with_windows, ((4,), (4,))),
    "a decoder": (with_decoder, (((4,),), (3,), (5,))),
}


# An image and an own function.
@pytest.mark.parametrize("name", variants(RUNS.keys(), ["a convolution", "a function that needs rows"]))
def test_a_carry_without_the_batch_axis_is_shared_by_the_rows(name):
    run, sizes = RUNS[name]
    random = np.random.default_rng(5)
    is_size = lambda size: all(isinstance(axis, int) for axis in size)  # noqa: E731
    row = jax.tree.map(lambda size: jnp.asarray(0.5 * random.normal(size=size)), sizes, is_leaf=is_size)
    xs = CASE.arguments()[2]

    def repeated(row, xs):
        return run(jax.tree.map(lambda leaf: jnp.tile(leaf, (3, *[1] * leaf.ndim)), row), xs)

    def loss_and_results(run, row):
        results = run(row, xs)
        return CASE.loss(results), results

    shared, expected = (
        jax.jit(jax.value_and_grad(lambda row, run=one: loss_and_results(run, row), has_aux=True))(row)
        for one in (run, repeated)
    )
    assert_trees_close(shared, expected)
    assert all(float(jnp.abs(leaf).max()) > 0 for leaf in jax.tree.leaves(shared[1]))


def test_carries_that_might_be_either_are_refused_as_before():
    xs = jnp.ones((5, 3, 3))
    with pytest.raises(TypeError, match=r"went in as float64\[3\] and came out as float64\[3,3\].*jnp\.broadcast_to\("):
        rs.scan(adding, jnp.ones((3, 3)), jnp.ones(3), xs)
    with pytest.raises(TypeError, match=r"went in as float64\[\] and came out as float64\[3,4\]"):
        rs.scan(adding, jnp.ones((3, 4)), 0.0, xs)
    with pytest.raises(ValueError, match=r"LSTM: hidden in the carry must be \(3, 4\).* got float64\[5\]"):
        rs.scan(CASE.cell, CASE.arguments()[0], (jnp.ones(5), jnp.ones(4)), CASE.arguments()[2])
    # One row of three features is no batch of three rows.
    with pytest.raises(ValueError, match=r"LSTM: hidden in the carry must be \(4,\).* got float64\[\]"):
        rs.scan(CASE.cell, CASE.arguments()[0], (0.0, 0.0), CASE.arguments()[2][:, 0])


@pytest.mark.core("devices")
@pytest.mark.parametrize("rows", ["a shared row", "rows of each device"])
def test_a_shared_carry_varies_over_a_mesh_as_the_inputs_do(rows):
    params, carry, xs = CASE.arguments(batch=2)
    shared = of_row(carry, 0) if rows == "a shared row" else jax.tree.map(lambda leaf: leaf[:1], carry)
    mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    split = PartitionSpec(None, "data")

    def run(params, shared, xs):
        return CASE.scan(params, shared, xs)[1]

    def loss(params, shared):
        on_mesh = jax.shard_map(run, mesh=mesh, in_specs=(PartitionSpec(), PartitionSpec(), split), out_specs=split)
        return jnp.sin(on_mesh(params, shared, xs)).sum()

    def whole(params, shared):
        if rows != "a shared row":
            shared = jax.tree.map(lambda leaf: jnp.repeat(leaf, 2, axis=0), shared)
        return jnp.sin(run(params, shared, xs)).sum()

    gradients = (jax.jit(jax.grad(function, (0, 1)))(params, shared) for function in (loss, whole))
    assert_trees_close(*gradients)


@pytest.mark.parametrize(
    ("valid", "batch"),
    variants(
        {f"{valid}, {batch}": (valid, batch) for valid in ("seq_lengths", "mask") for batch in (2, 3)},
        ["seq_lengths, 2", "mask, 3"],
    ),
)
def test_raw_keys_with_lengths_are_refused_for_any_number_of_rows(batch, valid):
    def noisy(params, carry, x):
        return carry + jax.random.normal(x["key"], carry.shape), carry + x["value"]

    xs = {"value": jnp.ones((7, batch, 4)), "key": jax.random.split(jax.random.PRNGKey(0), 7)}
    given = {"seq_lengths": jnp.full(batch, 3)} if valid == "seq_lengths" else {"mask": jnp.ones((7, batch), bool)}
    message = (
        r"raw PRNG keys, .*; got uint32\[7,2\] at `xs\['key'\]`\. Make typed keys by jax\.random\.key, or cast .* int32"
    )
    with pytest.raises(ValueError, match=message):
        rs.scan(noisy, None, jnp.zeros((batch, 4)), xs, **given)
    rs.scan(noisy, None, jnp.zeros((batch, 4)), xs)
    typed = {**xs, "key": jax.random.split(jax.random.key(0), 7)}
    rs.scan(noisy, None, jnp.zeros((batch, 4)), typed, **given)


NOT_CELLS = {
    "of lax.scan": (
        lambda carry, x: (carry, x),
        r"got <lambda>\(carry, x\), which takes two arguments, as .* jax\.lax\.scan",
    ),
    "of one argument": (lambda x: x, r"got <lambda>\(x\)\. Bind further arguments"),
    "a class": (cells.LSTM, r"got the class LSTM\. Pass an object of it, LSTM\(\.\.\.\)"),
    "no function": (jnp.ones(3), r"got float64\[3\]\. The cell comes first"),
}


@pytest.mark.bad_input
@pytest.mark.parametrize("name", NOT_CELLS)
def test_what_cannot_be_called_as_a_cell(name):
    cell, message = NOT_CELLS[name]
    with pytest.raises(TypeError, match=r"^scan: .*cell\(params, carry, x\).*" + message):
        rs.scan(cell if name != "no function" else jnp.ones(3), None, jnp.ones(3), jnp.ones((5, 3)))


@pytest.mark.parametrize(
    "cell",
    [cells.GRU(4), rs.stack(rs.dropout(cells.LSTM(4), 0.5), cells.GRU(4)), rs.zoneout(cells.LSTM(4), (0.1, 0.2))],
)
def test_a_cell_is_an_argument_of_jit(cell):
    params, carry, xs = Case(cell).arguments()
    run = jax.jit(lambda *given: rs.scan(*given))
    assert_trees_close(run(cell, params, carry, xs), rs.scan(cell, params, carry, xs))
    run(cell, params, carry, xs)
    assert run._cache_size() == 1


def test_nets_and_what_a_cell_holds_are_arguments_of_jit():
    net = rs.chain(rs.bidirectional(cells.RNN(2)), rs.layer(cells.RNN(4)))
    xs = CASE.arguments()[2]
    params = jax.jit(net.init, static_argnums=1)(jax.random.key(0), 3)
    assert_trees_close(jax.jit(lambda net: net(params, xs))(net), net(params, xs))
    configuration = attention.decoder(cells.GRU(3), attention.Dot(encoder_size=3))
    made = jax.jit(configuration.init, static_argnums=1)(jax.random.key(0), 3)
    stacked = rs.stack(configuration.over(made, xs[:5]))
    assert {leaf.shape for leaf in jax.tree.leaves(stacked)} == {(3, 5, 3)}


class Own:
    """A cell that JAX takes for a number, as its `dtype` has it."""

    dtype = jnp.dtype(jnp.float32)

    def __call__(self, params, carry, x):
        return carry, x


@pytest.mark.bad_input
def test_a_cell_of_ones_own_as_an_argument_of_jit_is_to_be_static():
    with pytest.raises(TypeError, match=r"^scan: .* got the traced value float32\[\]\. .* static_argnums, or"):
        jax.jit(rs.scan)(Own(), None, jnp.ones(3), jnp.ones((5, 3)))
    jax.jit(rs.scan, static_argnums=0)(Own(), None, jnp.ones(3), jnp.ones((5, 3)))
