"""Sequences of different lengths, each function against a loop over rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rnnscan as rs
from tiers import variants


pytestmark = pytest.mark.typed  # `make test` runs these with the run-time type checks.


def masks(length, batch):
    return st.lists(st.lists(st.booleans(), min_size=batch, max_size=batch), min_size=length, max_size=length).map(
        np.array
    )


def drawn(**strategies):
    """The same few draws in `make test`; many, of which each run has others, in `make test-all`."""

    def decorate(test):
        few = settings(deadline=None, derandomize=True, max_examples=3, database=None)(given(**strategies)(test))
        many = settings(deadline=None, max_examples=100)(given(**strategies)(test))

        @pytest.mark.parametrize("count", variants(["few", "many"], ["few"]))
        def run(count):
            (few if count == "few" else many)()

        return run

    return decorate


XS = np.arange(4 * 3 * 2, dtype=np.int32).reshape(4, 3, 2) + 1


@drawn(mask=masks(4, 3))
def test_reversal_and_last_by_mask(mask):
    reversed_xs = np.asarray(rs.reverse_by_length(XS, mask=jnp.asarray(mask)))
    last = np.asarray(rs.last_valid(XS, mask=jnp.asarray(mask)))
    for row in range(3):
        expected = XS[:, row].copy()
        expected[mask[:, row]] = expected[mask[:, row]][::-1]
        np.testing.assert_array_equal(reversed_xs[:, row], expected)
        valid = XS[mask[:, row], row]
        np.testing.assert_array_equal(last[row], valid[-1] if len(valid) else [0, 0])
    np.testing.assert_array_equal(rs.reverse_by_length(reversed_xs, mask=jnp.asarray(mask)), XS)


@drawn(lengths=st.lists(st.integers(0, 6), min_size=3, max_size=3).map(np.array))
def test_packing_by_lengths(lengths):
    lengths = jnp.asarray(lengths)
    rows = [XS[:length, row] for row, length in enumerate(lengths.tolist())]
    packed = rs.pack(jnp.asarray(XS), lengths)
    np.testing.assert_array_equal(packed, np.concatenate(rows))
    shorter = jnp.minimum(lengths, 4)
    # The reference is NumPy's: JAX would compile each slice.
    unpacked = np.asarray(rs.unpack(packed, shorter, length=5))
    for row, values in enumerate(rows):
        np.testing.assert_array_equal(unpacked[: len(values), row], values)
        assert not np.any(unpacked[len(values) :, row])
    by_mask = rs.reverse_by_length(XS, mask=jnp.arange(4)[:, None] < lengths)
    np.testing.assert_array_equal(rs.reverse_by_length(XS, lengths), by_mask)
    by_mask = rs.last_valid(XS, mask=jnp.arange(4)[:, None] < lengths)
    np.testing.assert_array_equal(rs.last_valid(XS, lengths), by_mask)


def test_under_jit_with_the_size_given_and_the_rest_zeros():
    xs, lengths = jnp.asarray(XS), jnp.array([2, 0, 4])
    packed = jax.jit(lambda xs, lengths: rs.pack(xs, lengths, total=8))(xs, lengths)
    np.testing.assert_array_equal(packed, np.concatenate([XS[:2, 0], XS[:, 2], np.zeros((2, 2))]))
    unpacked = jax.jit(lambda values, lengths: rs.unpack(values, lengths, length=4))(packed, lengths)
    np.testing.assert_array_equal(unpacked, np.where((np.arange(4)[:, None] < lengths)[..., None], XS, 0))


def test_pack_and_unpack_are_each_others_gradient():
    lengths = jnp.array([2, 0, 3])
    xs = jnp.asarray(XS, float)
    values, pull = jax.vjp(lambda xs: rs.pack(xs, lengths), xs)
    cotangent = jnp.cos(values)
    np.testing.assert_array_equal(pull(cotangent)[0], rs.unpack(cotangent, lengths, length=4))


def test_no_rows_no_steps_and_pytrees():
    assert rs.pack(jnp.ones((0, 3)), jnp.array([2, 0, 1])).shape == (0,)
    assert rs.unpack(jnp.ones((0, 2)), jnp.array([0, 0])).shape == (0, 2, 2)
    assert rs.last_valid(jnp.ones((0, 3, 2)), jnp.array([2, 0, 1])).tolist() == [[0, 0]] * 3
    assert rs.reverse_by_length(jnp.ones((0, 3)), jnp.array([2, 0, 1])).shape == (0, 3)
    tree = rs.reverse_by_length({"a": XS, "b": XS[..., 0]}, jnp.array([4, 4, 4]))
    np.testing.assert_array_equal(tree["b"], XS[::-1, :, 0])


@pytest.mark.parametrize("padding_value", [0.0, -1.0, float("nan")])
def test_the_mask_of_an_input_is_where_any_feature_is_not_the_padding(padding_value):
    xs = np.full((3, 2, 2), padding_value)
    xs[0] = 5.0
    xs[1, 0, 1] = 5.0
    assert rs.mask_from_input(jnp.asarray(xs), padding_value).tolist() == [[True, True], [True, False], [False, False]]


def test_a_mask_of_an_input_without_features_is_refused():
    with pytest.raises(ValueError, match=r"^mask_from_input: `xs` must be \(T, N, \.\.\.\), .* got float32\[4,3\]"):
        rs.mask_from_input(jnp.ones((4, 3)))


@pytest.mark.parametrize("function", [rs.reverse_by_length, rs.last_valid])
def test_lengths_and_masks_that_do_not_fit(function):
    name = function.__name__
    with pytest.raises(ValueError, match=rf"^{name}: one of .* got neither\."):
        function(XS)
    with pytest.raises(ValueError, match=rf"^{name}: one of .* got both\."):
        function(XS, jnp.array([1, 2, 3]), mask=jnp.ones((4, 3), bool))
    with pytest.raises(ValueError, match=rf"^{name}: leaves must be \(T, 2, \.\.\.\), .* got int32\[4,3,2\] at `xs`"):
        function(XS, jnp.array([1, 2]))
    with pytest.raises(ValueError, match=rf"^{name}: leaves must be \(5, 3, \.\.\.\), .* got int32\[4,3,2\] at `xs`"):
        function(XS, mask=jnp.ones((5, 3), bool))


def test_sizes_that_cannot_be():
    lengths = jnp.array([2, 1, 4])
    with pytest.raises(ValueError, match=r"^pack: `total` must be at least 7 for these lengths; got 6\."):
        rs.pack(jnp.asarray(XS), lengths, total=6)
    with pytest.raises(ValueError, match=r"^unpack: `length` must be at least 4 for these lengths; got 3\."):
        rs.unpack(jnp.ones(7), lengths, length=3)
    with pytest.raises(ValueError, match=r"^unpack: there must be a value for each of the 7 steps; got float32\[6\]"):
        rs.unpack(jnp.ones(6), lengths)
    with pytest.raises(ValueError, match=r"^pack: under jit .* got traced lengths int32\[3\] and total=None\."):
        jax.jit(rs.pack)(jnp.asarray(XS), lengths)
