"""Random choices: what is dropped or kept, from which key, at which step, and the same when computed again."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from drawn import normal
from rnnscan import cells
from tiers import variants
from zoo.case import Case, assert_trees_close


pytestmark = pytest.mark.usefixtures("x64")

KEY = jax.random.key(7)
COUNTED = {"traces": 0}
LENGTH, BATCH, UNITS = 6, 3, 4

RANDOM = {
    "output": rs.dropout(cells.LSTM(UNITS), 0.4),
    "output variational": rs.dropout(cells.GRU(UNITS), 0.4, each="sequence"),
    "input": rs.dropout(cells.GRU(UNITS), 0.4, on="input"),
    "recurrent": rs.dropout(cells.GRU(UNITS), 0.4, on="recurrent"),
    "recurrent variational": rs.dropout(cells.LSTM(UNITS), 0.4, on="recurrent", each="sequence"),
    "zoneout": rs.zoneout(cells.LSTM(UNITS), (0.2, 0.5)),
    "stack": rs.stack(rs.zoneout(cells.RNN(UNITS), 0.3), cells.GRU(UNITS), residual=[1], dropout=0.4),
    "windowed": rs.windowed(rs.dropout(cells.RNN(UNITS), 0.4), 2),
}


@pytest.fixture(params=variants(RANDOM, ["recurrent variational", "stack"]))
def cell(request):
    return request.param


def keyed(cell, params, carry, xs, key=KEY, first_step=0, **options):
    """A scan of the cell in training."""
    step = rs.with_key(cell, key, params, xs[0])
    return rs.scan(step, params, carry, (xs, first_step + jnp.arange(xs.shape[0])), **options)


def by_layer(cell, *arguments, **options):
    return rs.layer(cell)(*arguments, **options)


# The default choice, which computes nothing of a choice again, is compared in tests/cells/test_battery.py.
AGAIN = {
    "recompute": {"memory": rs.Memory(recompute="all")},
    "segments": {"memory": rs.Memory(segment=4)},
    "lax": {"memory": rs.Memory(recompute="all"), "engine": "lax"},
}


def gradients(cell, **options):
    arguments = Case(cell).arguments(length=LENGTH, batch=BATCH)
    return jax.jit(lambda *a: Case(cell).gradients(lambda *a: keyed(cell, *a, **options), *a))(*arguments)


@functools.cache
def plain_gradients(cell):
    return gradients(cell, memory=None, engine="lax")


@pytest.mark.parametrize("options", variants(AGAIN, ["segments"]))
@pytest.mark.parametrize("cell", variants(RANDOM, ["stack"]))
def test_what_is_computed_again_makes_the_same_choices(cell, options):
    assert_trees_close(gradients(cell, **options), plain_gradients(cell))


def test_a_layer_with_a_key_is_the_scan_with_that_key(cell):
    params, carry, xs = Case(cell).arguments(length=LENGTH, batch=BATCH)
    assert_trees_close(rs.layer(cell)(params, xs, carry=carry, key=KEY), keyed(cell, params, carry, xs))
    assert_trees_close(rs.layer(cell)(params, xs, carry=carry), rs.scan(cell, params, carry, xs))


def test_choices_differ_by_key_and_by_step_and_go_on_over_pieces(cell):
    params, carry, xs = Case(cell).arguments(length=LENGTH, batch=BATCH)
    net = rs.layer(cell)
    last, ys = net(params, xs, carry=carry, key=KEY)
    assert not np.array_equal(ys, net(params, xs, carry=carry, key=jax.random.key(8))[1])
    assert not np.array_equal(ys, net(params, xs, carry=carry)[1])

    middle, first_ys = net(params, xs[:4], carry=carry, key=KEY)
    end, second_ys = net(params, xs[4:], carry=middle, key=KEY, first_step=4)
    assert_trees_close((end, jnp.concatenate([first_ys, second_ys])), (last, ys))


@pytest.mark.parametrize("each", ["step", "sequence"])
def test_outputs_are_dropped_at_their_rate_and_scaled(each):
    inner = cells.GRU(200)
    params, carry, xs = Case(inner).arguments(length=20, batch=5)
    cell = rs.dropout(inner, 0.3, each=each)
    _, kept = rs.scan(inner, params, carry, xs)
    last, ys = keyed(cell, params, carry, xs)
    dropped = np.asarray(ys == 0)
    np.testing.assert_allclose(ys, np.where(dropped, 0, kept / 0.7), rtol=1e-12)
    # Never on the way of the state: the last carry is the one without dropout.
    assert_trees_close(last, rs.scan(inner, params, carry, xs)[0])
    draws = dropped if each == "step" else dropped[0]
    assert np.all(dropped == dropped[0]) == (each == "sequence")
    # The share of n independent draws is within four standard deviations.
    assert abs(draws.mean() - 0.3) < 4 * np.sqrt(0.21 / draws.size)


def test_inputs_are_dropped_before_the_cell():
    inner = cells.GRU(UNITS)
    params, carry, xs = Case(inner).arguments(length=LENGTH, batch=BATCH)
    cell = rs.dropout(inner, 0.5, on="input", each="sequence")
    masks = keyed(rs.dropout(Echo(), 0.5, on="input", each="sequence"), None, (), jnp.ones_like(xs))[1]
    assert set(np.unique(masks)) == {0.0, 2.0}
    assert_trees_close(keyed(cell, params, carry, xs), rs.scan(inner, params, carry, xs * masks))


class Echo:
    """A cell whose output is its input."""

    names, output_size, output_part = (), 3, None

    def init(self, key, input_size):
        return None

    def initial_carry(self, x):
        return ()

    def __call__(self, params, carry, x):
        return (), x


class MaskOfItsProduct(Echo):
    """A cell whose output is the mask of what its recurrent product would read."""

    takes_recurrent_mask = True

    def __init__(self, inner):
        self.initial_carry = inner.initial_carry

    def __call__(self, params, carry, x, *, recurrent_mask=None):
        return carry, recurrent_mask


INNER = [cells.LSTM(UNITS), cells.GRU(UNITS), cells.GRU(UNITS, reset_after=False)]


@pytest.mark.parametrize("inner", variants(INNER, INNER[-1:]), ids=repr)
@pytest.mark.parametrize("each", ["step", "sequence"])
def test_recurrent_dropout_is_of_what_the_product_reads(inner, each):
    params, carry, xs = Case(inner).arguments(length=LENGTH, batch=BATCH)
    option = {"on": "recurrent", "each": each}
    masks = keyed(rs.dropout(MaskOfItsProduct(inner), 0.5, **option), None, carry, xs)[1]
    assert masks.shape == (LENGTH, BATCH, UNITS)
    assert set(np.unique(masks)) == {0.0, 2.0}
    assert np.all(masks == masks[0]) == (each == "sequence")

    def masked(params, carry, scanned):
        x, mask = scanned
        return inner(params, carry, x, recurrent_mask=mask)

    expected = rs.scan(masked, params, carry, (xs, masks))
    assert_trees_close(keyed(rs.dropout(inner, 0.5, **option), params, carry, xs), expected)


@pytest.mark.parametrize("inner", [cells.LSTM(UNITS), cells.GRU(UNITS), cells.RNN(UNITS)], ids=repr)
def test_a_recurrent_mask_drops_rows_of_the_recurrent_kernel(inner):
    params, carry, xs = Case(inner).arguments(batch=1)
    mask = jnp.array([0.0, 2.0, 2.0, 0.0])
    of_kernel = params | {"recurrent_kernel": params["recurrent_kernel"] * mask[:, None]}
    assert_trees_close(inner(params, carry, xs[0], recurrent_mask=mask), inner(of_kernel, carry, xs[0]))


def test_zoneout_keeps_units_at_their_rate_and_its_mean_in_evaluation():
    inner = cells.LSTM(200)
    params, carry, xs = Case(inner).arguments(length=1, batch=40)
    cell = rs.zoneout(inner, (0.1, 0.6))
    new, _ = inner(params, carry, xs[0])
    zoned, y = rs.with_key(cell, KEY, params, xs[0])(params, carry, (xs[0], jnp.asarray(0)))
    assert_trees_close(y, zoned[0])
    for rate, old_part, new_part, zoned_part in zip((0.1, 0.6), carry, new, zoned, strict=True):
        kept = np.asarray(zoned_part == old_part)
        np.testing.assert_array_equal(zoned_part, np.where(kept, old_part, new_part))
        assert abs(kept.mean() - rate) < 4 * np.sqrt(rate * (1 - rate) / kept.size)
    expected, y = cell(params, carry, xs[0])
    assert_trees_close(expected, tuple(r * a + (1 - r) * b for r, a, b in zip((0.1, 0.6), carry, new, strict=True)))
    assert_trees_close(y, expected[0])


def test_layers_of_a_stack_choose_apart():
    layer = rs.dropout(Echo(), 0.5)
    stack = rs.stack(layer, layer)
    xs = jnp.ones((50, 4, 3))
    ys = keyed(stack, {"layer_0": None, "layer_1": None}, ((), ()), xs)[1]
    # Twice dropped by masks of their own: 4 where both keep, a quarter of all. With one mask it would be a half.
    assert set(np.unique(ys)) == {0.0, 4.0}
    assert abs(np.mean(ys == 4.0) - 0.25) < 4 * np.sqrt(0.1875 / ys.size)


def test_drop_weights_drops_by_name_anywhere_and_gradients_reach_what_was_given():
    net = rs.bidirectional(cells.GRU(30))
    params = net.init(jax.random.key(0), 3)
    dropped = rs.drop_weights(params, KEY, 0.4)
    for direction in ("forward", "backward"):
        before, after = params[direction], dropped[direction]
        kept = np.asarray(after["recurrent_kernel"] != 0)
        np.testing.assert_allclose(after["recurrent_kernel"], np.where(kept, before["recurrent_kernel"] / 0.6, 0))
        assert abs(kept.mean() - 0.6) < 4 * np.sqrt(0.24 / kept.size)
        np.testing.assert_array_equal(after["kernel"], before["kernel"])
    assert not np.array_equal(dropped["forward"]["recurrent_kernel"] == 0, dropped["backward"]["recurrent_kernel"] == 0)
    gradient = jax.grad(lambda params: jnp.sum(rs.drop_weights(params, KEY, 0.4)["forward"]["recurrent_kernel"]))(
        params
    )
    of_dropped = gradient["forward"]["recurrent_kernel"]
    np.testing.assert_allclose(of_dropped, (dropped["forward"]["recurrent_kernel"] != 0) / 0.6, rtol=1e-6)


@pytest.mark.bad_input
@pytest.mark.parametrize("rate", [-0.1, 1.0, True])
@pytest.mark.parametrize("make", [rs.dropout, rs.zoneout])
def test_a_rate_that_cannot_be(make, rate):
    with pytest.raises(ValueError, match=r": `rate` must be a probability, at least 0 and below 1; got "):
        make(cells.LSTM(4), rate)


def test_zoneout_with_another_number_of_rates():
    cell = rs.zoneout(cells.GRU(4), (0.1, 0.2))
    params, carry, xs = Case(cell).arguments()
    with pytest.raises(ValueError, match=r"^zoneout: there must be one rate, or one for each of the 1 parts .* \(0\.1"):
        cell(params, carry, xs[0])


def test_zoneout_of_what_does_not_say_what_its_output_is():
    with pytest.raises(TypeError, match=r"^zoneout: .*`output_part`.* got Stack\. Put zone"):
        rs.zoneout(rs.stack(cells.LSTM(4)), 0.1)


def test_recurrent_dropout_of_what_has_no_recurrent_product_directly_inside():
    with pytest.raises(TypeError, match=r"^dropout: on='recurrent' must directly wrap a cell"):
        rs.dropout(rs.residual(cells.LSTM(4)), 0.1, on="recurrent")


@pytest.mark.bad_input
@pytest.mark.parametrize(("option", "value"), [("on", "outputs"), ("each", "row")])
def test_options_of_dropout_that_are_not_known(option, value):
    with pytest.raises(ValueError, match=rf"^dropout: `{option}` must be one of \(.*\); got '{value}'\."):
        rs.dropout(cells.LSTM(4), 0.1, **{option: value})


def test_drop_weights_of_a_name_that_is_not_there():
    params = cells.LSTM(4).init(jax.random.key(0), 3)
    with pytest.raises(ValueError, match=r"got 'recurent_kernel'.* Did you mean 'recurrent_kernel'\?"):
        rs.drop_weights(params, KEY, 0.5, names=["recurent_kernel"])


def test_a_key_may_be_given_within_a_step_and_the_engine_still_takes_the_step_apart():
    cell = rs.dropout(rs.cells.LSTM(8), 0.5)
    xs = jnp.linspace(-1.0, 1.0, 16 * 2 * 4).reshape(16, 2, 4)
    params, key, steps = cell.init(jax.random.key(0), 4), jax.random.key(1), jnp.arange(16)

    def keyed(params, carry, x):
        return rs.with_key(cell, key, params, x[0])(params, carry, x)

    carry = cell.initial_carry(xs[0])
    explanation = rs.explain(keyed, params, carry, (xs, steps))
    assert (explanation.engine, explanation.reason) == ("fission", "")
    outside = rs.with_key(cell, key, params, xs[0])
    within, without = (rs.scan(step, params, carry, (xs, steps))[1] for step in (keyed, outside))
    np.testing.assert_array_equal(within, without)


class Counted(cells.LSTM):
    """An LSTM that counts how often it is traced."""

    def __call__(self, params, carry, x):
        COUNTED["traces"] += 1
        return super().__call__(params, carry, x)


def test_scan_takes_a_key_as_nets_do_with_one_program_for_all_keys():
    cell = rs.zoneout(rs.dropout(Counted(4), 0.5), 0.25)
    xs = normal(np.random.default_rng(0), (6, 2, 3), jnp.float32)
    params = cell.init(KEY, input_size=3)
    carry = cell.initial_carry(xs[0])
    training = rs.scan(cell, params, carry, xs, key=KEY)
    assert_trees_close(training, rs.layer(cell)(params, xs, key=KEY), tolerance=0)
    assert_trees_close(training, rs.scan(rs.with_key(cell, KEY, params, xs[0]), params, carry, (xs, jnp.arange(6))))
    assert np.any(training[1] != rs.scan(cell, params, carry, xs)[1])
    middle, first = rs.scan(cell, params, carry, xs[:2], key=KEY)
    end, second = rs.scan(cell, params, middle, xs[2:], key=KEY, first_step=2)
    assert_trees_close((end, jnp.concatenate([first, second])), training)
    traces = COUNTED.copy()
    others = [rs.scan(cell, params, carry, xs, key=jax.random.fold_in(KEY, seed))[1] for seed in range(3)]
    assert traces == COUNTED
    assert np.any(others[0] != others[1])
