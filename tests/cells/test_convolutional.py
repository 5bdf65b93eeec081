"""The convolutional cells beside those of Keras and Flax, and against sums over shifted inputs."""

import itertools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import keras_on_jax as keras
import rnnscan as rs
from rnnscan import cells
from tiers import variants
from zoo.case import Case, assert_trees_close


KEY = jax.random.key(0)

LSTMS = {
    "one axis": (cells.ConvLSTM(2, kernel_size=(3,)), (5, 3)),
    "two axes": (cells.ConvLSTM(2, kernel_size=(3, 2)), (4, 5, 3)),
    "three axes": (cells.ConvLSTM(2, kernel_size=(2, 1, 3)), (3, 2, 4, 3)),
    "no bias": (cells.ConvLSTM(2, kernel_size=(2, 2), use_bias=False), (4, 3, 3)),
    "valid": (cells.ConvLSTM(2, kernel_size=(3, 2), padding="valid"), (4, 5, 3)),
    "strided": (cells.ConvLSTM(2, kernel_size=(3, 2), strides=(1, 2)), (4, 5, 3)),
    "strided valid": (cells.ConvLSTM(2, kernel_size=(2,), strides=2, padding="valid"), (5, 3)),
    "dilated": (cells.ConvLSTM(2, kernel_size=(3, 2), dilation=(1, 2)), (4, 5, 3)),
    "dilated valid": (cells.ConvLSTM(2, kernel_size=(3,), dilation=2, padding="valid"), (7, 3)),
}


# The most axes; each number of axes and each option is run by `make test-all`.
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("cell", "features"), variants(LSTMS, ["three axes"]))
def test_values_and_gradients_are_those_of_keras(cell, features):
    assert keras.backend.backend() == "jax"
    case = Case(cell, features=features, rows_alone=False)
    arguments = case.arguments(length=3)
    layer = getattr(keras.layers, f"ConvLSTM{len(cell.kernel_size)}D")(
        cell.hidden_size,
        cell.kernel_size,
        strides=cell.strides,
        padding=cell.padding,
        dilation_rate=cell.dilation,
        use_bias=cell.use_bias,
        # By name it is keras.ops.tanh, which on JAX casts float64 to float32.
        activation=jnp.tanh,
        return_sequences=True,
        return_state=True,
        dtype="float64",
    )
    layer.build((3, 3, *features))
    seeds = [variable.value for variable in layer.non_trainable_variables]

    def run_keras(params, carry, xs):
        weights = [params[name] for name in ("kernel", "recurrent_kernel", "bias") if name in params]
        (ys, *final), _ = layer.stateless_call(weights, seeds, xs.swapaxes(0, 1), initial_state=list(carry))
        return tuple(final), ys.swapaxes(0, 1)

    expected = jax.jit(lambda *a: case.gradients(run_keras, *a))(*arguments)
    actual = jax.jit(lambda *a: case.gradients(case.scan, *a))(*arguments)
    assert_trees_close(actual, expected, tolerance=1e-9)


@pytest.mark.usefixtures("x64")
def test_values_and_gradients_are_those_of_flax():
    case = Case(cells.ConvLSTM(2, kernel_size=(2, 3)), features=(4, 3, 3), rows_alone=False)
    flax_cell = nn.ConvLSTMCell(2, kernel_size=(2, 3), param_dtype=jnp.float64)
    _, carry, xs = case.arguments(length=3)
    random = np.random.default_rng(1)
    shapes = jax.eval_shape(lambda: flax_cell.init(KEY, carry, xs[0])["params"])
    weights = jax.tree.map(lambda leaf: jnp.asarray(0.5 * random.normal(size=leaf.shape)), shapes)

    def ordered(blocks):
        """Flax's gates are i g f o."""
        i, g, f, o = jnp.split(blocks, 4, axis=-1)
        return jnp.concatenate([i, f, g, o], axis=-1)

    def run_flax(weights, carry, xs):
        """Flax carries (c, h)."""
        final, ys = jax.lax.scan(lambda c, x: flax_cell.apply({"params": weights}, c, x), carry[::-1], xs)
        return final[::-1], ys

    def run_rnnscan(weights, carry, xs):
        """Flax has a bias on either convolution, and adds 1 to the forget gate in every step."""
        params = {
            "kernel": ordered(weights["ih"]["kernel"]),
            "recurrent_kernel": ordered(weights["hh"]["kernel"]),
            "bias": ordered(weights["ih"]["bias"] + weights["hh"]["bias"]).at[2:4].add(1.0),
        }
        return rs.scan(case.cell, params, carry, xs)

    expected = jax.jit(lambda *a: case.gradients(run_flax, *a))(weights, carry, xs)
    actual = jax.jit(lambda *a: case.gradients(run_rnnscan, *a))(weights, carry, xs)
    assert_trees_close(actual, expected, tolerance=1e-9)


def sum_over_shifts(x, kernel, *, same=True, stride=1, dilation=1):
    """A convolution without one: x is shifted, strided, and multiplied by the kernel at each of its places."""
    window = kernel.shape[:-2]
    total = 0
    if same:
        # As few zeros as every place needs; the odd one behind.
        sizes = [-(-length // stride) for length in x.shape[1:-1]]
        zeros = [
            max((size - 1) * stride + (width - 1) * dilation + 1 - length, 0)
            for size, width, length in zip(sizes, window, x.shape[1:-1], strict=True)
        ]
        x = jnp.pad(x, [(0, 0), *[(count // 2, count - count // 2) for count in zeros], (0, 0)])
    else:
        sizes = [
            (length - (width - 1) * dilation - 1) // stride + 1
            for width, length in zip(window, x.shape[1:-1], strict=True)
        ]
    for place in itertools.product(*map(range, window)):
        shifted = x
        for axis, (offset, size) in enumerate(zip(place, sizes, strict=True), start=1):
            start = offset * dilation
            shifted = jax.lax.slice_in_dim(shifted, start, start + (size - 1) * stride + 1, stride, axis)
        total += shifted @ kernel[place]
    return total


def gru(p, h, x, *, seen, reset_after, units=2, **options):
    """A step, each gate by itself."""
    of = lambda parameter, gate: p[parameter][..., gate * units : (gate + 1) * units]  # noqa: E731
    bias = [of("bias", gate) if "bias" in p else 0 for gate in range(3)]
    from_input = [sum_over_shifts(x, of("kernel", gate), **options) + bias[gate] for gate in range(3)]
    r, z = (
        1 / (1 + jnp.exp(-from_input[gate] - sum_over_shifts(seen, of("recurrent_kernel", gate)))) for gate in range(2)
    )
    if reset_after:
        recurrent = r * (sum_over_shifts(seen, of("recurrent_kernel", 2)) + p.get("recurrent_bias", 0))
    else:
        recurrent = sum_over_shifts(r * seen, of("recurrent_kernel", 2))
    return (1 - z) * jnp.tanh(from_input[2] + recurrent) + z * h


GRUS = {
    "two axes": (cells.ConvGRU(2), (4, 3, 3), {}),
    "two axes, even kernel": (cells.ConvGRU(2, kernel_size=(2, 4), reset_after=False), (3, 5, 3), {}),
    "one axis, strided": (cells.ConvGRU(2, kernel_size=(3,), strides=2), (6, 3), {"stride": 2}),
    "one axis, dilated": (
        cells.ConvGRU(2, kernel_size=(2,), dilation=2, padding="valid", use_bias=False),
        (5, 3),
        {"dilation": 2, "same": False},
    ),
    "three axes": (cells.ConvGRU(2, kernel_size=(1, 2, 3), reset_after=False, use_bias=False), (2, 3, 2, 3), {}),
}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("cell", "features", "options"), variants(GRUS, ["one axis, dilated"]))
def test_values_and_gradients_of_a_gru_are_those_of_its_equations(cell, features, options):
    case = Case(cell, features=features, rows_alone=False)
    arguments = case.arguments(length=3)

    def expected(params, carry, xs):
        def step(carry, x):
            h = gru(params, *carry, x, seen=carry[0], reset_after=cell.reset_after, **options)
            return (h,), h

        return jax.lax.scan(step, carry, xs)

    assert_trees_close(
        jax.jit(lambda *a: case.gradients(case.scan, *a))(*arguments),
        jax.jit(lambda *a: case.gradients(expected, *a))(*arguments),
        tolerance=1e-9,
    )


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("reset_after", [True, False])
def test_a_recurrent_mask_hides_the_state_from_the_convolution_alone(reset_after):
    cell = cells.ConvGRU(2, kernel_size=(3,), reset_after=reset_after)
    params, carry, xs = Case(cell, features=(4, 3)).arguments(length=1)
    mask = jnp.asarray(2.0 * np.random.default_rng(1).integers(0, 2, size=carry[0].shape))
    actual = jax.jit(lambda *a: cell(*a, recurrent_mask=mask))(params, carry, xs[0])
    h = gru(params, carry[0], xs[0], seen=mask * carry[0], reset_after=reset_after)
    assert_trees_close(actual, ((h,), h), tolerance=1e-9)


@pytest.mark.usefixtures("x64")
def test_a_recurrent_mask_scales_what_the_convolution_of_an_lstm_sees():
    cell = cells.ConvLSTM(2, kernel_size=(3,))
    params, carry, xs = Case(cell, features=(4, 3)).arguments(length=1)
    actual = jax.jit(lambda *a: cell(*a, recurrent_mask=jnp.full((), 0.5)))(params, carry, xs[0])
    halved = params | {"recurrent_kernel": 0.5 * params["recurrent_kernel"]}
    assert_trees_close(actual, jax.jit(cell)(halved, carry, xs[0]), tolerance=1e-9)


def test_each_block_of_a_kernel_starts_by_itself_with_its_window_in_the_fan_in():
    params = cells.ConvLSTM(8, kernel_size=(5, 3), forget_bias=0.5).init(KEY, 40)
    assert jax.tree.map(jnp.shape, params) == {
        "kernel": (5, 3, 40, 32),
        "recurrent_kernel": (5, 3, 8, 32),
        "bias": (32,),
    }
    for block in range(4):
        columns = slice(8 * block, 8 * (block + 1))
        recurrent = params["recurrent_kernel"][..., columns].reshape(-1, 8)
        np.testing.assert_allclose(recurrent.T @ recurrent, np.eye(8), atol=1e-5)
        # The standard deviation of 4800 numbers is known to 1 %.
        assert abs(params["kernel"][..., columns].std() * np.sqrt(5 * 3 * 40) - 1) < 0.05
    np.testing.assert_array_equal(params["bias"], np.repeat([0, 0.5, 0, 0], 8))


@pytest.mark.parametrize(
    ("cell", "features", "spatial"),
    [
        (cells.ConvLSTM(2, kernel_size=(3,)), (5, 3), (5,)),
        (cells.ConvLSTM(2, strides=2), (5, 6, 3), (3, 3)),
        (cells.ConvGRU(2, kernel_size=(2, 3), padding="valid", strides=(2, 1)), (4, 4, 3), (2, 2)),
        (cells.ConvGRU(2, kernel_size=(2, 3), padding="valid", dilation=(1, 2)), (2, 5, 3), (1, 1)),
    ],
    ids=repr,
)
def test_the_carry_is_as_large_as_the_convolved_input(cell, features, spatial):
    carry = cell.initial_carry(jnp.ones((3, *features)))
    assert {leaf.shape for leaf in carry} == {(3, *spatial, 2)}
    assert len(carry) == len(cell.carry_names)


@pytest.mark.parametrize("shape", [(5, 6, 3), (1, 2, 5, 6, 3)])
def test_an_input_of_another_number_of_axes(shape):
    cell = cells.ConvLSTM(2)
    params, carry = cell.init(KEY, 3), cell.initial_carry(jnp.ones((2, 5, 6, 3)))
    message = r"^ConvLSTM: one step's input must be \(N, height, width, 3\) for these parameters; got float32\["
    with pytest.raises(ValueError, match=message):
        cell(params, carry, jnp.ones(shape))
    with pytest.raises(ValueError, match=message):
        cell.initial_carry(jnp.ones(shape))


def test_an_input_smaller_than_the_kernel():
    cell = cells.ConvGRU(2, kernel_size=(3,), padding="valid", dilation=2)
    message = (
        r"^ConvGRU: with padding='valid' .* as the kernel; got \(2, 4, 3\) for kernel_size=\(3,\) and dilation=2\.$"
    )
    with pytest.raises(ValueError, match=message):
        cell.initial_carry(jnp.ones((2, 4, 3)))


def test_a_carry_of_another_spatial_size():
    cell = cells.ConvLSTM(2)
    x = jnp.ones((2, 5, 6, 3))
    with pytest.raises(ValueError, match=r"^ConvLSTM: hidden in the carry must be \(2, 5, 6, 2\).*\[2,5,5,2\]\."):
        cell(cell.init(KEY, 3), cell.initial_carry(x[:, :, 1:]), x)


def test_parameters_of_another_kernel_size():
    cell = cells.ConvLSTM(2)
    x = jnp.ones((2, 5, 6, 3))
    with pytest.raises(
        ValueError, match=r"^ConvLSTM: .* must be 'kernel' \(3, 3, D, 8\), .* of another kind or size\."
    ):
        cell(cells.ConvLSTM(2, kernel_size=(3, 5)).init(KEY, 3), cell.initial_carry(x), x)


def test_parameters_of_the_other_reset():
    cell = cells.ConvGRU(2)
    x = jnp.ones((2, 5, 6, 3))
    with pytest.raises(ValueError, match=r"They were made with reset_after=False, and the cell has True\.$"):
        cell(cells.ConvGRU(2, reset_after=False).init(KEY, 3), cell.initial_carry(x), x)


@pytest.mark.parametrize("cell_type", [cells.ConvLSTM, cells.ConvGRU])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kernel_size": ()}, r"`kernel_size` must be a tuple of 1 to 3 ints, .*; got \(\)\."),
        ({"kernel_size": (1, 1, 1, 1)}, r"`kernel_size` must be a tuple of 1 to 3 ints, .*; got \(1, 1, 1, 1\)\."),
        ({"kernel_size": (3, 0)}, r"`kernel_size` must be an int of at least 1; got 0\."),
        (
            {"strides": (2,)},
            r"`strides` must be an int, or a tuple .* each of the 2 axes of `kernel_size`; got \(2,\)\.",
        ),
        ({"strides": 0}, r"`strides` must be an int of at least 1; got 0\."),
        ({"dilation": (1, -1)}, r"`dilation` must be an int of at least 1; got -1\."),
        ({"dilation": (1, 1, 1)}, r"`dilation` must be an int, or a tuple .*; got \(1, 1, 1\)\."),
    ],
)
def test_sizes_that_cannot_be(cell_type, options, message):
    with pytest.raises(ValueError, match=rf"^{cell_type.__name__}: {message}"):
        cell_type(2, **options)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kernel_size": 3}, r"`kernel_size` must be a tuple of 1 to 3 ints, one for each spatial axis; got 3\."),
        ({"kernel_size": [3, 3]}, r"`kernel_size` must be a tuple of 1 to 3 ints, .*; got \[3, 3\]\."),
        ({"strides": 1.5}, r"`strides` must be an int of at least 1; got 1\.5\."),
        ({"padding": "SAME"}, r"`padding` must be one of 'same', 'valid'; got 'SAME'\."),
    ],
)
def test_options_of_wrong_types(options, message):
    with pytest.raises(ValueError, match=rf"^ConvLSTM: {message}"):
        cells.ConvLSTM(2, **options)
