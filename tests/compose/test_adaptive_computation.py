"""Adaptive computation time: the equations of Graves 2016, row by row, and what its loop costs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import rnnscan as rs
from rnnscan import cells
from rnnscan.insight import kept_bytes
from tiers import variants
from zoo.case import Case, assert_trees_close


pytestmark = pytest.mark.usefixtures("x64")

CELL = rs.adaptive_computation(cells.LSTM(4), 4)


def mean(weights, values):
    return sum(weight * value for weight, value in zip(weights, values, strict=True))


def by_equations(cell, params, carry, xs):
    """Section 2 of the paper, for each row alone: a Python loop that stops."""

    @jax.jit
    def ponder(params, before, x, first):
        after, y = cell.cell(params["cell"], before, jnp.concatenate([x, first]))
        return after, y, jax.nn.sigmoid(y @ params["halting"]["kernel"][:, 0] + params["halting"]["bias"][0])

    rows = []
    for row in range(xs.shape[1]):
        state, ys, ponders = jax.tree.map(lambda leaf, row=row: leaf[row], carry), [], []
        for x in xs[:, row]:
            states, outputs, halting = [], [], []
            while True:
                first = jnp.array([1.0 if not states else 0.0])
                before = states[-1] if states else state
                after, y, h = ponder(params, before, x, first)
                states, outputs, halting = [*states, after], [*outputs, y], [*halting, h]
                if sum(halting) >= 1 - cell.epsilon or len(states) == cell.max_ponder:
                    break
            remainder = 1 - sum(halting[:-1])
            weights = [*halting[:-1], remainder]
            state = jax.tree.map(lambda *leaves, weights=weights: mean(weights, leaves), *states)
            ys.append(mean(weights, outputs))
            ponders.append(len(states) + remainder)
        rows.append((state, jnp.stack(ys), jnp.stack(ponders)))
    states, ys, ponders = zip(*rows, strict=True)
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *states), (jnp.stack(ys, 1), jnp.stack(ponders, 1))


@pytest.mark.parametrize(
    "cell",
    variants(
        {
            "LSTM": CELL,
            "stack": rs.adaptive_computation(rs.stack(cells.GRU(3), cells.RNN(2)), 6, epsilon=0.2),
            "MinGRU": rs.adaptive_computation(cells.MinGRU(3), 8),
        },
        ["LSTM"],
    ),
)
@pytest.mark.parametrize("options", variants([{}, {"engine": "lax"}, {"memory": rs.Memory(segment=2)}], [{}]), ids=str)
def test_values_and_gradients_are_those_of_the_equations(cell, options):
    case = Case(cell)
    params, carry, xs = case.arguments(length=2, batch=3)
    # Halting probabilities that differ from row to row and step to step.
    params["halting"] = {"kernel": 3 * params["halting"]["kernel"], "bias": params["halting"]["bias"] - 0.5}
    made = jax.jit(lambda *given: case.gradients(lambda *given: case.scan(*given, **options), *given))(
        params, carry, xs
    )
    expected = case.gradients(lambda *given: by_equations(cell, *given), params, carry, xs)
    assert_trees_close(made, expected, tolerance=1e-10)
    steps = np.ceil(made[0][1][1]) - 1
    assert len(np.unique(steps)) > 1
    assert steps.max() <= cell.max_ponder


def test_at_most_one_micro_step_is_the_cell_itself():
    cell = rs.adaptive_computation(cells.GRU(3), 1)
    params, carry, xs = Case(cell).arguments()
    flagged = jnp.concatenate([xs, jnp.ones((*xs.shape[:-1], 1))], axis=-1)
    last, ys = rs.scan(cell.cell, params["cell"], carry, flagged)
    assert_trees_close(rs.scan(cell, params, carry, xs), (last, (ys, jnp.full(xs.shape[:2], 2.0))))


def test_ponder_at_padding_is_zero_and_truncation_leaves_it_its_gradient():
    """The reasons to return it as an output."""
    case = Case(CELL)
    params, carry, xs = case.arguments(length=4)
    _, (_, ponder) = case.scan(params, carry, xs, seq_lengths=jnp.array([4, 2, 0]))
    assert_trees_close(
        ponder, jnp.where(jnp.arange(4)[:, None] < jnp.array([4, 2, 0]), case.scan(params, carry, xs)[1][1], 0)
    )
    of_first = jax.grad(lambda xs: case.scan(params, carry, xs, truncate=1)[1][1].sum())(xs)
    assert all(step.any() for step in of_first)


def test_a_halted_batch_does_no_more_work():
    calls = []

    class Counted(cells.GRU):
        def __call__(self, params, carry, x):
            jax.debug.callback(lambda: calls.append(1))
            return super().__call__(params, carry, x)

    cell = rs.adaptive_computation(Counted(3), 50)
    params, carry, xs = Case(cell).arguments(length=2)
    _, (_, ponder) = jax.block_until_ready(jax.jit(lambda *given: rs.scan(cell, *given))(params, carry, xs))
    jax.effects_barrier()
    assert len(calls) == (np.ceil(ponder) - 1).max(axis=1).sum()


@pytest.mark.slow
def test_on_a_mesh_each_device_halts_by_itself():
    """Without a scan around the cell, which would cast the parameters."""
    mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    cell = rs.adaptive_computation(cells.GRU(3), 20)
    params, carry, xs = Case(cell).arguments(batch=2)
    params["halting"] = {"kernel": 3 * params["halting"]["kernel"], "bias": jnp.array([-3.0])}
    rows, whole = PartitionSpec("data"), PartitionSpec()
    on_mesh = jax.shard_map(cell, mesh=mesh, in_specs=(whole, rows, rows), out_specs=rows)
    made, expected = (
        jax.jit(jax.value_and_grad(lambda *given, run=run: Case.loss(run(*given)), (0, 1, 2)))(params, carry, xs[0])
        for run in (on_mesh, cell)
    )
    assert_trees_close(made, expected)
    assert len(np.unique(np.ceil(cell(params, carry, xs[0])[1][1]))) == 2


def test_kept_memory_does_not_grow_with_the_limit():
    def kept(limit):
        cell = rs.adaptive_computation(cells.LSTM(4), limit)
        return kept_bytes(lambda *given: rs.scan(cell, *given), *Case(cell).arguments())

    assert kept(50) == kept(2)


def test_integers_take_their_last_value_and_extras_come_last():
    class Counting:
        names, output_size = (), 3

        def init(self, key, input_size):
            return jnp.ones(())

        def initial_carry(self, x):
            return (jnp.zeros(x.shape[:-1], jnp.int32),)

        def __call__(self, params, carry, x):
            return (carry[0] + 1,), (params * x[..., :3], carry[0])

    cell = rs.adaptive_computation(Counting(), 5)
    params, _, xs = Case(rs.adaptive_computation(cells.GRU(3), 5)).arguments(length=1)
    params = {"cell": jnp.ones(()), "halting": params["halting"]}
    (count,), (output, ponder, extra) = cell(params, cell.initial_carry(xs[0]), xs[0])
    assert_trees_close(output, xs[0])
    assert (count == jnp.ceil(ponder) - 1).all()
    assert (extra == count - 1).all()


@pytest.mark.slow
def test_recomputed_steps_and_windows_draw_the_same_masks():
    cell = rs.adaptive_computation(rs.dropout(cells.RNN(4), 0.4), 3)
    case = Case(cell)
    params, carry, xs = case.arguments(length=4)
    step = rs.with_key(cell, jax.random.key(7), params, xs[0])

    def keyed(params, carry, xs, first=0, **options):
        return rs.scan(step, params, carry, (xs, first + jnp.arange(len(xs))), **options)

    def gradients(**options):
        return jax.jit(lambda *given: case.gradients(lambda *given: keyed(*given, **options), *given))(
            params, carry, xs
        )

    plain = gradients(memory=None, engine="lax")
    assert_trees_close(gradients(), plain)
    middle, first_ys = keyed(params, carry, xs[:1])
    last, ys = keyed(params, middle, xs[1:], first=1)
    joined = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), first_ys, ys)
    assert_trees_close((last, joined), plain[0])


def test_each_micro_step_drops_other_units():
    inner = rs.dropout(cells.RNN(64, activation="identity"), 0.5)
    cell = rs.adaptive_computation(inner, 2)
    params, carry, xs = Case(cell).arguments(length=1)
    params["halting"] = {"kernel": jnp.zeros((64, 1)), "bias": jnp.zeros(1)}  # Two micro-steps of weight 1/2.
    step = rs.with_key(cell, jax.random.key(0), params, xs[0])
    _, (y, _) = step(params, carry, (xs[0], 3))
    dropped = np.mean(np.asarray(y == 0))
    assert 0.15 < dropped < 0.35  # 1/4; the same mask twice would drop 1/2.


def test_parameters_start_with_a_bias_that_halts():
    params = CELL.init(jax.random.key(0), 3)
    assert params["cell"]["kernel"].shape == (4, 16)
    assert params["halting"]["bias"] == 1
    assert jnp.any(params["halting"]["kernel"] != 0)


BAD = {
    "no micro-step": (lambda: rs.adaptive_computation(cells.GRU(3), 0), r"`max_ponder` must be .* at least 1; got 0"),
    "epsilon": (lambda: rs.adaptive_computation(cells.GRU(3), 2, epsilon=1.0), r"`epsilon` must be .* below 1; got 1"),
    "images": (lambda: rs.adaptive_computation(cells.ConvGRU(2), 2), r"must have no spatial axes; got ConvGRU"),
    "the inner parameters": (
        lambda: CELL(CELL.cell.init(jax.random.key(0), 4), None, jnp.ones((2, 3))),
        r"must be a dictionary of 'cell' and 'halting'.*; got 'kernel', 'recurrent_kernel', 'bias'\.",
    ),
    "another size": (
        lambda: CELL(
            {"cell": {}, "halting": {"kernel": jnp.ones((5, 1)), "bias": jnp.ones(1)}}, None, jnp.ones((2, 3))
        ),
        r"'kernel' \(4, 1\) and 'bias' \(1,\); got 'halting' with \{'kernel': \(5, 1\)",
    ),
    "a carry without rows": (
        lambda: rs.adaptive_computation(Rowless(), 2)(
            {"cell": None, "halting": {"kernel": jnp.ones((3, 1)), "bias": jnp.ones(1)}},
            jnp.zeros(()),
            jnp.ones((2, 3)),
        ),
        r"must have the rows of its input, float64\[2,3\], .*; got float64\[\] at `carry`",
    ),
}


class Rowless:
    """A cell whose carry the rows share."""

    names, output_size = (), 3

    def init(self, key, input_size):
        return None

    def initial_carry(self, x):
        return jnp.zeros(())

    def __call__(self, params, carry, x):
        return carry + 1, x[..., :3]


@pytest.mark.bad_input
@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    call, message = BAD[name]
    with pytest.raises(ValueError, match="^adaptive_computation: .*" + message):
        call()
