"""plan(): what it chooses fits, by XLA's analysis of a step of its own, and says so where nothing does."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from rnnscan import cells
from rnnscan.insight import temporary_bytes
from rnnscan.insight.plan import budget_bytes


def arguments(cell, length=48, batch=4, size=8):
    x = jax.ShapeDtypeStruct((batch, size), jnp.float32)
    params = jax.eval_shape(lambda: cell.init(jax.random.key(0), size))
    return params, jax.eval_shape(cell.initial_carry, x), jax.ShapeDtypeStruct((length, *x.shape), x.dtype)


def needed(cell, memory, *given):
    """What a loss of one's own needs, which weighs the outputs by themselves."""

    def loss(params, carry, xs):
        carry, ys = rs.scan(cell, params, carry, xs, memory=memory)
        return jnp.sum(jnp.tanh(ys)) + sum(jnp.sum(jnp.tanh(leaf)) for leaf in jax.tree.leaves(carry))

    return temporary_bytes(jax.jit(jax.grad(loss, argnums=(0, 1, 2))).lower(*given).compile())


@pytest.mark.parametrize(
    "cell",
    [cells.LSTM(16), *(pytest.param(cell, marks=pytest.mark.slow) for cell in (cells.GRU(16), cells.MinGRU(16)))],
    ids=repr,
)
def test_a_plan_fits_and_a_larger_budget_is_never_slower(cell):
    given = arguments(cell)
    largest = rs.plan(cell, *given, budget="1GiB")
    assert largest == rs.plan(cell, *given, budget=largest.temporary_bytes)
    costs = []
    for share in (0.25, 0.5, 1):
        budget = int(share * largest.temporary_bytes)
        try:
            memory = rs.plan(cell, *given, budget=budget)
        except ValueError as error:
            assert share < 0.5, error  # noqa: PT017
            continue
        assert memory.temporary_bytes <= budget
        # Within what another loss needs by itself: some copies of the outputs.
        outputs = 4 * 48 * 4 * 16
        assert needed(cell, memory, *given) <= budget + 2 * outputs
        costs.append(memory.relative_cost)
    assert len(costs) >= 2
    assert costs == sorted(costs, reverse=True)


def test_a_plan_is_a_memory_choice_with_the_gradients_of_all():
    cell = cells.LSTM(16)
    shapes = arguments(cell)
    random = np.random.default_rng(0)
    params, carry, xs = jax.tree.map(lambda leaf: jnp.asarray(random.normal(size=leaf.shape), leaf.dtype), shapes)
    largest = rs.plan(cell, params, carry, xs, budget="1GiB")
    small = rs.plan(cell, params, carry, xs, budget=largest.temporary_bytes // 2)
    assert isinstance(small, rs.Memory)
    assert small != largest

    def gradient(memory):
        return jax.jit(jax.grad(lambda params: jnp.sin(rs.scan(cell, params, carry, xs, memory=memory)[1]).sum()))(
            params
        )

    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-4), gradient(small), gradient(rs.Memory()))


def test_a_loss_on_the_last_carry_needs_less():
    cell = cells.GRU(16)
    given = arguments(cell, length=256)
    with pytest.raises(ValueError, match="nothing fits 20000"):
        rs.plan(cell, *given, budget=20000)
    assert rs.plan(cell, *given, budget=120_000, last_only=True).temporary_bytes <= 120_000


def test_nothing_fits_and_the_error_says_what_would():
    cell = cells.LSTM(16)
    given = arguments(cell)
    with pytest.raises(
        ValueError, match=r"^plan: nothing fits '1KiB', 1 KiB; the least that a choice needs is"
    ) as error:
        rs.plan(cell, *given, budget="1KiB")
    least = int(str(error.value).split(" bytes, by ")[0].split()[-1])
    assert rs.plan(cell, *given, budget=least).temporary_bytes <= least


def test_measured_it_takes_one_that_fits():
    cell = cells.GRU(16)
    given = jax.tree.map(lambda leaf: jnp.ones(leaf.shape, leaf.dtype), arguments(cell, length=16))
    largest = rs.plan(cell, *given, budget="1GiB")
    assert (
        rs.plan(cell, *given, budget=largest.temporary_bytes, measure=True).temporary_bytes <= largest.temporary_bytes
    )


@pytest.mark.parametrize("length", [0, 1])
def test_no_steps_and_one_step(length):
    cell = cells.LSTM(4)
    memory = rs.plan(cell, *arguments(cell, length=length), budget="1MiB")
    assert isinstance(memory, rs.Memory)


def test_a_cell_without_names():
    def cell(params, carry, x):
        hidden = jnp.tanh(x @ params + carry)
        return hidden, hidden

    given = (jnp.ones((8, 16)), jnp.ones((4, 16)), jnp.ones((32, 4, 8)))
    assert rs.plan(cell, *given, budget="1MiB").recompute in ((), "all")


def test_budgets_in_units():
    assert budget_bytes("512MiB") == 512 * 2**20
    assert budget_bytes("0.5 gb") == 500_000_000
    assert budget_bytes(7) == 7


@pytest.mark.bad_input
@pytest.mark.parametrize("budget", [0, -1, "", "MiB", "-1MiB", "0B", "12 parsecs", "1.2.3MB", None, 1.5, True])
def test_budgets_that_are_none(budget):
    with pytest.raises(ValueError, match=r"^plan: `budget` must be a number of bytes above 0, .* got "):
        budget_bytes(budget)


@pytest.mark.bad_input
def test_an_objective_that_is_not_there():
    cell = cells.LSTM(4)
    with pytest.raises(ValueError, match=r"^plan: `objective` must be \"time\"; got 'memory'\."):
        rs.plan(cell, *arguments(cell), budget=1, objective="memory")
