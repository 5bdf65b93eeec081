"""Schedules: the optimum against a search of all schedules, nested scans against what XLA runs and allocates."""

from functools import cache
from heapq import heappop, heappush
from itertools import pairwise
from math import inf

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from rnnscan import checkpointing
from rnnscan.checkpointing import NestedScan, SubScan
from rnnscan.insight import temporary_bytes
from tiers import variants


pytestmark = pytest.mark.typed  # `make test` runs these with the run-time type checks.


def cheapest(start, moves, is_end):
    """The cost of the cheapest path, by Dijkstra's algorithm."""
    queue, costs, count = [(0, 0, start)], {start: 0}, 0
    while queue:
        cost, _, state = heappop(queue)
        if is_end(state):
            return cost
        for price, new_state in moves(*state):
            if cost + price < costs.get(new_state, inf):
                costs[new_state], count = cost + price, count + 1
                heappush(queue, (cost + price, count, new_state))
    raise AssertionError("no path")


def searched_hidden_states(steps, slots):
    """Run a step, keep or drop a carry, go back to one, differentiate the last step: all that can be done."""

    def moves(due, here, kept):
        yield from ((0, (due, place, kept)) for place in kept)
        yield from ((0, (due, here, kept - {place})) for place in kept)
        if len(kept) < slots:
            yield 0, (due, here, kept | {here})
        if here < due - 1:
            yield 1, (due, here + 1, kept)
        if here == due - 1:
            yield from ((1, (due - 1, place, kept)) for place in kept)

    return cheapest((steps, 0, frozenset({0})), moves, lambda state: not state[0])


def searched_internal_states(steps, slots):
    """The same where a step can be kept when it runs, and is differentiated if it is."""

    def moves(due, here, kept):
        yield from ((0, (due, place + 1, kept)) for place in kept)
        yield from ((0, (due, here, kept - {place})) for place in kept)
        yield 0, (due, 0, kept)
        if here < due:
            yield 1, (due, here + 1, kept)
            if len(kept) < slots:
                yield 1, (due, here + 1, kept | {here})
        if due - 1 in kept:
            yield 0, (due - 1, 0, kept - {due - 1})

    return cheapest((steps, 0, frozenset()), moves, lambda state: not state[0])


@cache
def recursive_mixed_states(steps, slots, size):
    if slots <= 0:
        return inf if steps else 0
    if slots == 1 or steps <= 1:
        return steps * (steps + 1) // 2
    carry = [
        y + recursive_mixed_states(steps - y, slots - 1, size) + recursive_mixed_states(y, slots, size)
        for y in range(1, steps)
    ]
    step = [
        y + recursive_mixed_states(steps - y, slots - size, size) + recursive_mixed_states(y - 1, slots, size)
        for y in range(1, steps + 1)
        if slots >= size
    ]
    return min(carry + step)


@pytest.mark.parametrize("steps", range(7))
@pytest.mark.parametrize("slots", range(1, 5))
def test_no_schedule_is_cheaper(steps, slots):
    assert checkpointing.hidden_states(steps, slots) == searched_hidden_states(steps, slots)
    assert checkpointing.internal_states(steps, slots) == searched_internal_states(steps, slots)


def test_mixed_states_are_the_recurrence_and_at_its_ends_the_other_two():
    for steps in range(15):
        for slots in range(1, 18):
            for size in (1, 2, 3, 7):
                assert checkpointing.mixed_states(steps, slots, size) == recursive_mixed_states(steps, slots, size)
            assert checkpointing.mixed_states(steps, slots, 1) == checkpointing.internal_states(steps, slots)
            assert checkpointing.mixed_states(steps, slots, slots + 1) == checkpointing.hidden_states(steps, slots)


def test_the_closed_form_is_the_dynamic_programme():
    for slots in range(1, 20):
        for steps in (*range(30), 90):
            assert checkpointing.binomial(steps, slots) == checkpointing.hidden_states(steps, slots), (steps, slots)
    assert checkpointing.binomial(1000, 50) == checkpointing.hidden_states(1000, 50)


def test_with_all_or_with_one_slot():
    for steps in (1, 2, 9, 40):
        triangle = steps * (steps + 1) // 2
        assert checkpointing.hidden_states(steps, 1) == checkpointing.internal_states(steps, 1) == triangle
        for slots in (steps, steps + 1, 10**9):
            assert checkpointing.hidden_states(steps, slots) == checkpointing.binomial(steps, slots) == 2 * steps - 1
            assert checkpointing.internal_states(steps, slots) == steps
        assert checkpointing.mixed_states(steps, 3 * steps, 3) == steps


def test_the_published_values():
    """Gruslys et al. 2016; 50 of 1000 slots take (1.95 + 2) / 3, a third more time, if a backward pass takes 2."""
    assert checkpointing.hidden_states(1000, 10) == 4636
    assert checkpointing.hidden_states(1000, 50) == 2948
    assert checkpointing.internal_states(1000, 50) == 1950
    assert [checkpointing.mixed_states(1000, slots, 3) for slots in (16, 32, 50)] == [3644, 2811, 2556]
    assert (checkpointing.internal_states(1000, 50) / 1000 + 2) / 3 < 1.32


# nested(...).evaluations / hidden_states(...), rounded up; 1.15 is what is asked for.
RATIOS = {
    100: {50: 1.017, 64: 1.013, 100: 1.006, 200: 1.006},
    1000: {50: 1.018, 64: 1.008, 100: 1.005, 200: 1.003},
    10000: {50: 1.111, 64: 1.034, 100: 1.046, 200: 1.003},
}


@pytest.mark.parametrize("steps", RATIOS)
def test_nested_scans_need_little_more_than_the_optimum(steps):
    for slots, ratio in RATIOS[steps].items():
        plan = checkpointing.nested(steps, slots)
        assert plan.steps == steps
        assert plan.slots <= slots
        assert plan.evaluations <= min(ratio, 1.15) * checkpointing.binomial(steps, slots)


def test_where_nested_scans_are_further_from_the_optimum():
    """One scan has segments of one length, whose starts are all held to the end; and the optimum jumps later."""
    one_part = {steps: checkpointing.nested(steps, 50, sub_scans=1).evaluations for steps in RATIOS}
    assert {steps: round(count / checkpointing.binomial(steps, 50), 3) for steps, count in one_part.items()} == {
        100: 1.21,
        1000: 1.345,
        10000: 1.264,
    }
    assert 1.18 < checkpointing.nested(23_348, 50).evaluations / checkpointing.binomial(23_348, 50) < 1.20


@pytest.mark.parametrize(("slots", "ratio"), [(32, 1.23), (50, 1.07)])
def test_nested_scans_that_keep_what_is_named(slots, ratio):
    plan = checkpointing.nested(1000, slots, internal_size=3)
    assert plan.slots <= slots
    least = checkpointing.mixed_states(1000, slots, 3)
    assert least <= plan.evaluations <= ratio * least


def levels_needed(steps, slots):
    """The fewest levels of segments that fit, of all lengths, up to two; each level is one run more."""

    def fits(*lengths):
        around = (steps, *lengths)
        return lengths[-1] + sum(-(-outer // inner) for outer, inner in pairwise(around)) <= slots

    if steps <= slots:
        return 0
    if any(fits(k) for k in range(1, steps)):
        return 1
    return 2 if any(fits(k, j) for k in range(2, steps) for j in range(1, k)) else None


@pytest.mark.parametrize("slots", [6, 9, 12])
def test_one_part_is_nested_as_little_as_can_be(slots):
    for steps in (5, 20, 27, 36, 48):
        levels = levels_needed(steps, slots)
        if levels is not None:
            (part,) = checkpointing.nested(steps, slots, sub_scans=1).sub_scans
            assert len(part.segment or ()) == levels


def test_plans_fit_and_more_parts_are_never_worse():
    for steps in (1, 2, 17, 200, 999):
        for slots in (24, 33, 50, 71):
            bounds = []
            for parts in (1, 2, 3, 4):
                for size in (None, 1, 2):
                    plan = checkpointing.nested(steps, slots, sub_scans=parts, internal_size=size)
                    assert plan.steps == steps
                    assert plan.slots <= slots
                    assert len(plan.sub_scans) <= parts
                    for part in plan.sub_scans:
                        rs.Memory(segment=part.segment)
                plan = checkpointing.nested(steps, slots, sub_scans=parts)
                bounds.append(sum(part.steps * (len(part.segment or ()) + 2) for part in plan.sub_scans))
                assert plan.evaluations <= bounds[-1]
            assert bounds == sorted(bounds, reverse=True)


def test_nothing_to_schedule():
    assert checkpointing.nested(0, 3) == NestedScan(())
    assert NestedScan(()).evaluations == NestedScan(()).slots == NestedScan(()).steps == 0
    assert checkpointing.binomial(0, 2) == checkpointing.hidden_states(0, 2) == checkpointing.mixed_states(0, 2, 5) == 0


def total(cell, params, carry, xs, plan, engine, recompute):
    memory = rs.Memory(recompute=recompute, segment=plan)
    return jnp.sum(rs.scan(cell, params, carry, xs, memory=memory, engine=engine)[1])


def counted_evaluations(plan, engine="lax"):
    """How many rows of how many steps really go through the product of a cell, on both passes."""
    evaluations = 0

    def count(product):
        nonlocal evaluations
        evaluations += 1 if product.ndim == 1 else product.shape[0]
        return np.asarray(product)

    @jax.custom_jvp
    def counted(product):
        like = jax.ShapeDtypeStruct(product.shape, product.dtype)
        return jax.pure_callback(count, like, product, vmap_method="broadcast_all")

    counted.defjvp(lambda primals, tangents: (counted(*primals), *tangents))

    def cell(weight, carry, x):
        # Not a tanh: its derivative follows from the new carry, and the fission engine would not count again.
        hidden = jnp.sin(rs.name(counted(weight * carry + x), "product"))
        return hidden, hidden

    recompute = "all" if plan.internal_size is None else ()
    loss = lambda *arguments: total(cell, *arguments, plan, engine, recompute)  # noqa: E731
    arguments = (0.3, jnp.full(2, 0.1), jnp.full((plan.steps, 2), 0.2))
    jax.block_until_ready(jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2)))(*arguments))
    return evaluations


SHAPES = [
    (12, None),
    (1, None),
    (1, (3,)),
    (12, (4,)),
    (13, (4,)),
    (3, (4,)),
    (7, (1,)),
    (29, (9, 2)),
    (29, (12, 5, 2)),
]

# Without segments, longer than the sequence, and nested with remainders at every level.
TELLING = ["(12, None)", "(3, (4,))", "(29, (12, 5, 2))"]


@pytest.mark.parametrize("internal_size", variants([None, 1], [None]))
@pytest.mark.parametrize(("steps", "segment"), variants({str(shape): shape for shape in SHAPES}, TELLING))
def test_the_model_counts_what_xla_runs(steps, segment, internal_size):
    plan = NestedScan((SubScan(steps, segment),), internal_size)
    assert counted_evaluations(plan) == plan.evaluations
    levels = len(segment or ())
    assert plan.evaluations <= (levels + (2 if internal_size is None else 1)) * steps


@pytest.mark.parametrize("internal_size", [None, 1])
def test_the_fission_engine_runs_as_many(internal_size):
    plan = NestedScan((SubScan(29, (9, 2)), SubScan(13, (4,))), internal_size)
    assert counted_evaluations(plan, "fission") == plan.evaluations


@pytest.mark.parametrize("slots", variants([50, 64], [50]))
def test_planned_scans_counted_against_the_optimum(slots):
    plan = checkpointing.nested(1000, slots)
    count = counted_evaluations(plan)
    assert count == plan.evaluations
    assert checkpointing.hidden_states(1000, slots) <= count <= 1.15 * checkpointing.hidden_states(1000, slots)


@pytest.mark.parametrize(
    "plan",
    [NestedScan((SubScan(151, (30, 7)),)), checkpointing.nested(1000, 50), checkpointing.nested(100, 50)],
    ids=lambda plan: str(plan.slots),
)
def test_the_model_counts_the_carries_that_xla_allocates(plan):
    """Two more are the new carry and the cotangent."""
    size = 1 << 14

    def cell(weight, carry, x):
        hidden = jnp.tanh(jnp.sin(weight * carry) + x)
        return hidden, hidden[0]

    def loss(weight, carry, xs):
        return total(cell, weight, carry, xs, plan, "lax", "all")

    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((), (size,), (plan.steps,))]
    compiled = jax.jit(jax.value_and_grad(loss, argnums=(0, 1))).lower(*shapes).compile()
    carries = temporary_bytes(compiled) / (4 * size) - plan.slots
    # The XLA of jax 0.10.0 copies one more in the two longer ones, the newer ones do not.
    copied = jax.__version__ == "0.10.0" and plan.steps > 100
    assert carries == pytest.approx(3 if copied else 2, abs=0.5)


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (
            checkpointing.hidden_states,
            (-1, 2),
            "hidden_states: `steps` must be a number of steps of at least 0; got -1",
        ),
        (
            checkpointing.internal_states,
            (5, 0),
            "internal_states: `slots` must be a number of carries of at least 1; got 0",
        ),
        (checkpointing.mixed_states, (5, 2, 0), "mixed_states: `internal_size` must be .* at least 1; got 0"),
        (checkpointing.binomial, (5, -3), "binomial: `slots` must be .* got -3"),
        (checkpointing.nested, (-5, 3), "nested: `steps` must be .* got -5"),
        (checkpointing.nested, (1000, 4), "nested: 1000 steps must fit into nested segments; got slots=4, sub_scans=4"),
        pytest.param(checkpointing.binomial, (5.0, 3), "`steps` must be .* got 5.0", marks=pytest.mark.bad_input),
        pytest.param(checkpointing.nested, (5, True), "`slots` must be .* got True", marks=pytest.mark.bad_input),
    ],
)
def test_what_cannot_be_scheduled(function, arguments, message):
    with pytest.raises(ValueError, match=message):
        function(*arguments)


def test_a_plan_without_scans_cannot_be_searched():
    with pytest.raises(ValueError, match="`sub_scans` must be a number of scans of at least 1; got 0"):
        checkpointing.nested(10, 5, sub_scans=0)
