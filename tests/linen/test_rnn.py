"""linen.RNN is flax.linen.RNN: variables, values and gradients, run side by side, for every cell and every option."""

import inspect
from itertools import pairwise

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import serialization
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import rnnscan as rs
from flax_cells import (
    BATCH,
    CELLS,
    HIDDEN_SIZE,
    INPUT_SIZE,
    LENGTHS,
    TIME,
    assert_same,
    assert_same_start,
    cell_and_inputs,
    draw,
    gradients,
    values,
    variables_of,
)
from rnnscan import linen
from tiers import variants
from zoo.case import assert_trees_close


pytestmark = pytest.mark.usefixtures("x64")


def rnns(cell, **options):
    return nn.RNN(cell, **options), linen.RNN(cell, **options)


def test_every_cell_of_flax_is_tested():
    cells = {name for name, value in vars(nn).items() if inspect.isclass(value) and issubclass(value, nn.RNNCellBase)}
    assert cells - {"RNNCellBase"} == {cell_type.__name__ for cell_type, _, _ in CELLS.values()}


def test_arguments_are_those_of_flax_and_more():
    flax, own = (inspect.signature(model).parameters for model in (nn.RNN, linen.RNN))
    assert set(own) - set(flax) == {"memory", "engine", "truncate", "parallel"}
    assert list(flax)[:-2] == list(own)[: len(flax) - 2]  # `parent` and `name` are last, and by keyword only
    assert all(own[name].default == parameter.default for name, parameter in flax.items())
    flax, own = (inspect.signature(model.__call__).parameters for model in (nn.RNN, linen.RNN))
    assert {name: parameter.default for name, parameter in own.items() if not name.startswith("reset")} == {
        name: parameter.default for name, parameter in flax.items()
    }


# The other forms of a cell are run in test_cells.
ONE_OF_EACH = ["LSTMCell", "OptimizedLSTMCell", "GRUCell", "MGUCell", "SimpleCell", "ConvLSTMCell 2D"]


@pytest.mark.core("Flax modules")
@pytest.mark.parametrize("name", variants(ONE_OF_EACH, ["ConvLSTMCell 2D"]))
def test_cells_over_rows_of_different_lengths(name):
    cell, inputs = cell_and_inputs(name, time_major=True)
    options = {"time_major": True, "return_carry": True, "reverse": True, "keep_order": True}
    assert_same(*rnns(cell, **options), inputs, seq_lengths=jnp.asarray(LENGTHS))


@pytest.mark.parametrize("name", variants(ONE_OF_EACH, ["OptimizedLSTMCell"]))
def test_variables_start_the_same(name):
    cell, inputs = cell_and_inputs(name)
    assert_same_start(*rnns(cell), inputs)


@pytest.mark.core("Flax modules")
@pytest.mark.slow
@pytest.mark.parametrize("name", CELLS)
def test_cells(name):
    cell, inputs = cell_and_inputs(name)
    assert_same(*rnns(cell, return_carry=True, unroll=2), inputs)


# Attributes, and arguments of the call.
OPTIONS = [
    ({"time_major": True, "unroll": 2}, {}),
    ({}, {"return_carry": True, "init_key": jax.random.key(7)}),
    ({"return_carry": True}, {"seq_lengths": jnp.array(LENGTHS), "time_major": True}),
    ({}, {"seq_lengths": jnp.array([TIME + 2, 2, 1]), "return_carry": True}),
    ({"reverse": True}, {"return_carry": True}),
    ({}, {"reverse": True, "keep_order": True, "time_major": True}),
    ({"keep_order": True}, {}),
    ({"return_carry": True, "reverse": True}, {"seq_lengths": jnp.array(LENGTHS)}),
    ({"keep_order": True}, {"reverse": True, "seq_lengths": jnp.array(LENGTHS)}),
    (
        {"time_major": True, "return_carry": True, "reverse": True, "keep_order": True},
        {"time_major": False, "return_carry": False, "reverse": False, "keep_order": False},
    ),
]


# All attributes at once, lengths with each order, and a call that says otherwise than the attributes. Time first and in
# reverse is in the test of cells above.
@pytest.mark.core("Flax modules")
@pytest.mark.parametrize(
    ("attributes", "call"),
    variants({str(number): pair for number, pair in enumerate(OPTIONS)}, ["0", "2", "8", "9"]),
)
def test_options(attributes, call):
    cell, inputs = cell_and_inputs("SimpleCell", time_major=(attributes | call).get("time_major", False))
    variables = variables_of(nn.RNN(cell), jnp.ones((BATCH, TIME, INPUT_SIZE)))
    flax, own = (values(rnn, variables, inputs, **call) for rnn in rnns(cell, **attributes))
    assert_trees_close(own, flax, tolerance=1e-9)


@pytest.mark.parametrize(("batch", "time_major"), [((), False), ((2, 3), True)])
def test_any_number_of_batch_dimensions(batch, time_major):
    cell, inputs = cell_and_inputs("SimpleCell", batch, time_major)
    assert_same(*rnns(cell, time_major=time_major, return_carry=True), inputs, reverse=True)


def test_lengths_with_several_batch_dimensions():
    """Outputs are Flax's. Flax's carry has another shape there; each row's is that of the row alone."""
    cell, inputs = cell_and_inputs("LSTMCell", (2, 3))
    flax, own = rnns(cell)
    variables = variables_of(flax, inputs)
    lengths = jnp.array([[5, 4, 1], [2, 3, 5]])
    carry = (draw((2, 3, HIDDEN_SIZE), seed=2), draw((2, 3, HIDDEN_SIZE), seed=3))
    call = {"reverse": True, "keep_order": True}
    carry_after, outputs = values(own, variables, inputs, carry, seq_lengths=lengths, return_carry=True, **call)
    assert_trees_close(outputs, values(flax, variables, inputs, carry, seq_lengths=lengths, **call), tolerance=1e-9)
    flat = jax.tree.map(lambda leaf: leaf.reshape(6, *leaf.shape[2:]), (inputs, carry, carry_after))
    expected = values(flax, variables, *flat[:2], seq_lengths=lengths.reshape(6), return_carry=True, **call)
    assert_trees_close(flat[2], expected[0], tolerance=1e-9)


def test_an_initial_carry_and_its_gradient():
    cell, inputs = cell_and_inputs("LSTMCell")
    carry = (draw((BATCH, HIDDEN_SIZE), seed=2), draw((BATCH, HIDDEN_SIZE), seed=3))
    assert_same(*rnns(cell, return_carry=True), inputs, carry, seq_lengths=jnp.asarray(LENGTHS))


def test_no_step():
    cell, inputs = cell_and_inputs("SimpleCell")
    assert_same(*rnns(cell, return_carry=True), inputs[:, :0])


def test_a_row_of_length_zero_returns_the_initial_carry():
    """A deviation: Flax returns the carry after the last padded step."""
    cell, inputs = cell_and_inputs("GRUCell")
    carry = draw((BATCH, HIDDEN_SIZE), seed=2)
    model = linen.RNN(cell, return_carry=True)
    final, _ = values(model, variables_of(model, inputs), inputs, carry, seq_lengths=jnp.array([0, 2, 0]))
    np.testing.assert_array_equal(final[jnp.array([0, 2])], carry[jnp.array([0, 2])])
    assert (final[1] != carry[1]).all()


def test_a_length_above_the_steps_reverses_all_steps():
    """A deviation: Flax starts such a row at another step."""
    cell, inputs = cell_and_inputs("GRUCell")
    model = linen.RNN(cell, reverse=True, return_carry=True)
    variables, carry = variables_of(model, inputs), draw((BATCH, HIDDEN_SIZE), seed=2)
    beyond, whole = (
        values(model, variables, inputs, carry, seq_lengths=jnp.array([length, 2, 0])) for length in (TIME + 2, TIME)
    )
    assert_trees_close(beyond, whole, tolerance=1e-12)


@pytest.mark.parametrize("dtype", [jnp.uint8, jnp.int8], ids=["uint8", "int8"])
def test_more_steps_than_the_dtype_of_lengths_has(dtype):
    cell, _ = cell_and_inputs("SimpleCell")
    model = linen.RNN(cell, reverse=True, return_carry=True)
    inputs = draw((2, 300, INPUT_SIZE), seed=0)
    variables = variables_of(model, inputs)
    start = draw((2, HIDDEN_SIZE), seed=2)
    final, _ = values(model, variables, inputs, start, seq_lengths=jnp.array([5, 100], dtype))
    carry = start[1]
    for step in reversed(range(100)):
        carry, _ = cell.apply({"params": variables["params"]["cell"]}, carry, inputs[1, step])
    np.testing.assert_allclose(final[1], carry, rtol=1e-10)


@pytest.mark.parametrize("is_flax", [True, False], ids=["Flax", "rnnscan"])
def test_exported_for_any_number_of_rows_and_steps(is_flax):
    cell = cell_and_inputs("GRUCell")[0] if is_flax else rs.cells.GRU(HIDDEN_SIZE)
    model = linen.RNN(cell, return_carry=True, reverse=True)
    inputs, lengths = draw((BATCH, TIME, INPUT_SIZE), seed=0), jnp.asarray(LENGTHS)
    variables = variables_of(model, inputs)

    def run(inputs, lengths):
        return model.apply(variables, inputs, seq_lengths=lengths)

    rows, steps = jax.export.symbolic_shape("rows, steps")
    types = (
        jax.ShapeDtypeStruct((rows, steps, INPUT_SIZE), inputs.dtype),
        jax.ShapeDtypeStruct((rows,), lengths.dtype),
    )
    exported = jax.export.export(jax.jit(run))(*types)
    assert_trees_close(exported.call(inputs, lengths), run(inputs, lengths), tolerance=1e-12)


def test_lengths_on_an_explicit_mesh():
    """The initial carry, whose rows are whole, is beside carries whose rows are sharded."""
    mesh = jax.make_mesh((2,), ("rows",), axis_types=(AxisType.Explicit,))
    model = linen.RNN(cell_and_inputs("GRUCell")[0], return_carry=True)
    inputs, lengths = draw((4, TIME, INPUT_SIZE), seed=0), jnp.array([TIME, 2, 1, 3])
    variables = variables_of(model, inputs)
    expected = model.apply(variables, inputs, seq_lengths=lengths)
    with jax.set_mesh(mesh):
        given = jax.device_put((inputs, lengths), NamedSharding(mesh, PartitionSpec("rows")))
        results = jax.jit(lambda inputs, lengths: model.apply(variables, inputs, seq_lengths=lengths))(*given)
    assert_trees_close(results, expected, tolerance=1e-12)


def test_a_checkpoint_of_one_loads_into_the_other():
    cell, inputs = cell_and_inputs("LSTMCell")
    flax, own = rnns(cell)
    variables = variables_of(flax, inputs)
    expected = values(flax, variables, inputs)
    for model in (flax, own):
        template = jax.tree.map(jnp.zeros_like, variables_of(model, inputs))
        loaded = serialization.from_bytes(template, serialization.to_bytes(variables))
        assert_trees_close(values(own, loaded, inputs), expected, tolerance=1e-9)


@pytest.mark.parametrize(
    ("engine", "reverse"), variants({"forward": ("fission", False), "reverse": ("lax", True)}, ["forward"])
)
def test_truncate(engine, reverse):
    """The gradient is that of pieces, each of which starts from the carry of the last as a constant."""
    cell, inputs = cell_and_inputs("SimpleCell")
    own = linen.RNN(cell, truncate=2, engine=engine, reverse=reverse)

    class Pieces(nn.Module):
        rnn: nn.Module

        def __call__(self, inputs, initial_carry):
            carry, outputs = initial_carry, []
            steps = jnp.flip(inputs, axis=1) if reverse else inputs
            for piece in (steps[:, :2], steps[:, 2:4], steps[:, 4:]):
                carry, ys = self.rnn(piece, initial_carry=jax.lax.stop_gradient(carry) if outputs else carry)
                outputs.append(ys)
            return jnp.concatenate(outputs, axis=1)

    carry = draw((BATCH, HIDDEN_SIZE), seed=2)
    variables = variables_of(own, inputs)
    pieces = Pieces(nn.RNN(cell, return_carry=True))
    expected, (of_params, *others) = gradients(pieces, {"params": {"rnn": variables["params"]}}, inputs, carry)
    assert_trees_close(
        gradients(own, variables, inputs, carry), (expected, (of_params["rnn"], *others)), tolerance=1e-9
    )


@pytest.mark.core("Flax modules")
@pytest.mark.parametrize(
    ("reverse", "lengths"),
    [
        pytest.param(False, LENGTHS, marks=pytest.mark.slow),
        pytest.param(True, None, marks=pytest.mark.slow),
        (True, LENGTHS),
        pytest.param(False, None, marks=pytest.mark.slow),
    ],
)
def test_reset(reverse, lengths):
    """Where a row is reset, what follows is what it would be in a sequence of its own, in either direction."""
    cell, inputs = cell_and_inputs("SimpleCell", time_major=True)
    carry = draw((BATCH, HIDDEN_SIZE), seed=2)
    starts = [[2, 4], [], [1, 3]]
    reset = jnp.array([[step in row for row in starts] for step in range(TIME)])
    options = {"time_major": True, "reverse": reverse, "keep_order": True, "return_carry": True}
    flax, own = rnns(cell, **options)
    variables = variables_of(flax, inputs)

    class Documents(nn.Module):
        """Each row in pieces, one by one."""

        rnn: nn.Module

        def __call__(self, inputs, initial_carry):
            carries, outputs = [], []
            for row, row_starts in enumerate(starts):
                length = TIME if lengths is None else lengths[row]
                bounds = [0, *[start for start in row_starts if start < length], length]
                one = jax.tree.map(lambda leaf, row=row: leaf[row : row + 1], initial_carry)
                pieces = [
                    self.rnn(inputs[first:last, row : row + 1], initial_carry=one) for first, last in pairwise(bounds)
                ]
                carries.append(pieces[0 if reverse else -1][0])
                padding = jnp.zeros((TIME - length, 1, HIDDEN_SIZE))
                outputs.append(jnp.concatenate([*[ys for _, ys in pieces], padding]))
            return (
                jax.tree.map(lambda *rows: jnp.concatenate(rows), *carries),
                jnp.concatenate(outputs, axis=1),
            )

    class WithoutPadding(nn.Module):
        """The RNN with zeros in the place of what it makes of padding."""

        rnn: nn.Module

        def __call__(self, inputs, initial_carry):
            given = None if lengths is None else jnp.asarray(lengths)
            options = {"reset": reset, "reset_to": initial_carry, "seq_lengths": given}
            carry, outputs = self.rnn(inputs, initial_carry=initial_carry, **options)
            if lengths is not None:
                outputs = jnp.where((jnp.arange(TIME)[:, None] < given)[..., None], outputs, 0)
            return carry, outputs

    variables = {"params": {"rnn": variables["params"]}}
    expected = gradients(Documents(flax), variables, inputs, carry)
    assert_trees_close(gradients(WithoutPadding(own), variables, inputs, carry), expected, tolerance=1e-9)


def test_reset_batch_major():
    cell, inputs = cell_and_inputs("SimpleCell", (2, 3))
    carry = draw((2, 3, HIDDEN_SIZE), seed=2)
    reset = jnp.asarray(np.random.default_rng(0).random((2, 3, TIME)) < 0.4)
    own = linen.RNN(cell, return_carry=True)
    variables = variables_of(own, inputs)
    actual = values(own, variables, inputs, carry, reset=reset, reset_to=carry)
    swapped = {"reset": jnp.moveaxis(reset, 2, 0), "reset_to": carry, "time_major": True}
    time_major = values(own, variables, jnp.moveaxis(inputs, 2, 0), carry, **swapped)
    assert_trees_close(actual, (time_major[0], jnp.moveaxis(time_major[1], 0, 2)))
    for row in ((0, 0), (1, 2)):
        one = values(own, variables, inputs[row], carry[row], reset=reset[row], reset_to=carry[row])
        assert_trees_close(one, jax.tree.map(lambda leaf, row=row: leaf[row], actual), tolerance=1e-9)
