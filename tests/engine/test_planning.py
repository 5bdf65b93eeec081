"""Planning takes time with the number of equations, and decides as the plain searches below do."""

import os
import sys
from dataclasses import replace
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import rnnscan as rs
from rnnscan.engine.analysis import expensive_values
from rnnscan.engine.analysis.cones import Cones
from rnnscan.engine.analysis.expensive_values import Derivative, ExpensiveValues
from rnnscan.engine.costs.frontier import Frontiers
from rnnscan.engine.costs.machine import CPU
from rnnscan.ir.components import Components
from rnnscan.ir.dataflow import needed
from rnnscan.ir.linear import is_linear, linearly_recomputable
from rnnscan.ir.program import Equation, Program, Value, outputs_of, total_bytes
from tiers import variants


SEEDS = variants(range(200), range(30))
OPERATIONS = (lax.add_p, lax.mul_p, lax.sub_p, lax.div_p, lax.tanh_p, lax.neg_p, lax.exp_p, lax.reduce_sum_p)


def random_program(seed, *, leaves=5, equations=40):
    """A program of random operations, most of them linear, which is analyzed and never run."""
    random = np.random.default_rng(seed)

    def value():
        size = int(random.choice([4, 4, 4, 64, 4096]))
        return Value(jax.ShapeDtypeStruct((size,), jnp.float32))

    carry, known, invariant = ([value() for _ in range(count)] for count in (leaves, 2, 2))
    values, made = [*carry, *known, *invariant], []
    for _ in range(equations):
        primitive = OPERATIONS[random.integers(len(OPERATIONS))]
        reads = 2 if primitive in OPERATIONS[:4] else 1
        # Values that were made lately, so that ways are long.
        operands = [values[-1 - int(random.integers(min(12, len(values))))] for _ in range(reads)]
        made.append(Equation(primitive, {}, tuple(operands), (value(),)))
        values += made[-1].outputs
    new_carry = [values[random.integers(len(values))] for _ in carry]
    # Some leaves are running sums.
    for index in np.flatnonzero(random.random(leaves) < 0.6):
        made.append(
            Equation(lax.add_p, {}, (carry[index], values[-1 - int(random.integers(20))]), (Value(carry[index].aval),))
        )
        new_carry[index] = made[-1].outputs[0]
    return Program(
        tuple(made), tuple(invariant), tuple(known), tuple(carry), tuple(new_carry), stacked=tuple(values[-3:])
    )


def test_the_programs_have_what_the_searches_look_for():
    """Several leaves in one loop, leaves that can be recomputed, and leaves that cannot."""
    groups, recomputable = [], []
    for seed in range(30):
        program = random_program(seed)
        components = Components(program.equations, program.carry, program.new_carry)
        groups += map(len, components.members)
        recomputable.append(len(_linearly_recomputable(program, range(5))))
    assert {1, 2, 3} <= {*groups}
    assert {1, 2, 3} <= {*recomputable}


@pytest.mark.parametrize("seed", SEEDS)
def test_components_are_those_of_a_search_from_each_leaf(seed):
    program = random_program(seed)
    components = Components(program.equations, program.carry, program.new_carry)
    feeds = [_after(program, leaf) for leaf in program.carry]
    reaches = [{j for j, new in enumerate(program.new_carry) if new in values} for values in feeds]
    for _ in program.carry:
        reaches = [own.union(*(reaches[other] for other in own)) for own in reaches]
    size = range(len(program.carry))
    expected = {tuple(j for j in size if j == i or (j in reaches[i] and i in reaches[j])) for i in size}
    assert components.members == sorted(expected)
    for members, equations in zip(components.members, components.by_group(), strict=True):
        assert equations == [
            equation
            for equation in program.equations
            if any(equation.outputs[0] in feeds[i] for i in members)
            and any(equation in needed(program.equations, [program.new_carry[i]]) for i in members)
        ]


def _after(program, value):
    after = {value}
    for equation in program.equations:
        if not after.isdisjoint(equation.reads):
            after.update(equation.outputs)
    return after


@pytest.mark.parametrize("seed", SEEDS)
def test_leaves_are_recomputed_as_if_each_was_tried(seed):
    program = random_program(seed)
    candidates = np.random.default_rng(seed).permutation(5)[:4].tolist()
    expected = _linearly_recomputable(program, candidates)
    assert linearly_recomputable(
        program.equations, program.carry, program.new_carry, candidates=sorted(candidates)
    ) == _linearly_recomputable(program, sorted(candidates))
    assert {*expected} <= {*candidates}


def _linearly_recomputable(program, candidates):
    left_out = []
    for candidate in candidates:
        trial = [*left_out, candidate]
        leaves, new_leaves = ([leaves[i] for i in trial] for leaves in (program.carry, program.new_carry))
        components = Components(program.equations, leaves, new_leaves)
        cycles = components.by_group()
        if all(
            len(members) == 1 and is_linear(cycle, leaves[members[0]], new_leaves[members[0]], updates=True)
            for members, cycle in zip(components.members, cycles, strict=True)
        ):
            left_out = trial
    return left_out


@pytest.mark.parametrize("seed", SEEDS)
def test_a_cone_is_what_is_not_needed_without_its_equation(seed):
    program = random_program(seed)
    wanted = [*program.stacked, *program.new_carry[:2]]
    equations = needed(program.equations, wanted)
    cones = Cones(equations, wanted)
    for equation in equations:
        rest = needed([other for other in equations if other is not equation], {*wanted} - {*equation.outputs})
        assert {*cones.of(equation).equations} == {*equations} - {*rest}


@pytest.mark.parametrize("seed", variants(range(200), range(0, 30, 3)))
def test_expensive_values_are_those_of_a_search_among_all(seed):
    program, stacked = random_program(seed, equations=60), frozenset({0, 2, 3})
    values = ExpensiveValues(Derivative(program, frozenset(), stacked), set(), KEEPING)
    kept, rejected, left, count = frozenset(), {None}, 1 << 13, 0
    while (expensive := values.next(left)) is not None:
        gains = _gains(program, kept, stacked, left, rejected)
        (value,) = expensive.values
        gain, nbytes = gains.pop(value)
        assert nbytes == expensive.nbytes
        assert all(gain >= other * (1 - 1e-9) for other, _ in gains.values())
        if count % 4 == 3:
            values.reject(expensive)
            rejected.add(value)
        else:
            values.keep(expensive)
            kept, left = kept | {value}, left - expensive.nbytes
        count += 1
    assert not _gains(program, kept, stacked, left, rejected)


# Without a price for each value many are expensive.
KEEPING = replace(CPU, ns_per_kept_value=CPU.ns_per_kept_value / 1000, ns_per_kept_byte=CPU.ns_per_kept_byte / 1000)


def _gains(program, kept, stacked, most_bytes, rejected):
    """The gain of each expensive value by its definition, and its bytes."""
    derivative = Derivative(program, kept, stacked)
    read = {*derivative.read}

    def bytes_read(equations):
        inside = read.union(*(equation.reads for equation in equations))
        return total_bytes(
            program.carry[i] for i in stacked if program.carry[i] in inside or program.new_carry[i] in inside
        )

    def time(equations):
        return KEEPING.estimate(equations, program.fixed).nanoseconds

    gains = {}
    for equation in ExpensiveValues(derivative, rejected, KEEPING)._candidates(derivative.wanted):
        (value,) = equation.outputs
        rest = needed([one for one in derivative.again if one is not equation], {*derivative.wanted} - {value})
        nbytes = value.nbytes - bytes_read(derivative.again) + bytes_read(rest)
        price = KEEPING.nanoseconds_to_keep(max(0, nbytes))
        gain = (time(derivative.again) - time(rest) - price) / max(nbytes, value.nbytes // 8, 1)
        if value not in rejected and nbytes <= most_bytes and gain > 1e-9:
            gains[value] = gain, nbytes
    return gains


@pytest.mark.parametrize("seed", SEEDS)
def test_a_frontier_is_that_of_a_walk_over_its_work(seed):
    random, program = np.random.default_rng(seed), random_program(seed)
    # Of an equation only its kind is looked at.
    equations = [replace(one, primitive=lax.dot_general_p) if one.name == "exp" else one for one in program.equations]
    looped = [*program.carry, *outputs_of(equations[:3])]
    frontiers = Frontiers(looped, {*program.invariant})
    for equation in equations[3:]:
        frontier = frontiers.find(equation.inputs)
        stacked, copied, materialized, work = _walk(frontiers, equation.inputs)
        assert {*frontier.stacked} == stacked
        assert {*frontier.copied} == copied
        assert {*frontier.materialized} == materialized
        assert {*frontiers.work(frontier)} == work
        assert frontier.moved == total_bytes(stacked | copied)
        assert frontier.largest == max((output.nbytes for output in outputs_of(work)), default=0)
        assert frontier.has_product == (lax.dot_general_p in {equation.primitive for equation in work})
        if random.random() < 0.2:
            frontiers.take(frontier, [*work, equation] if random.random() < 0.5 else work)
        frontiers.add(equation)


def _walk(frontiers, atoms):
    """What is stacked, copied and materialized for values, and the work in between."""
    stacked, copied, materialized, work = set(), set(), set(), set()
    waiting, seen = [*atoms], {*frontiers._fixed}
    while waiting:
        value = waiting.pop()
        if value in seen:
            continue
        seen.add(value)
        if value in frontiers._materialized:
            materialized.add(value)
        elif value in frontiers._stacks.get(value, ()):
            stacked.add(value)
        elif value not in frontiers._maker:
            copied.add(value)
        else:
            work.add(frontiers._maker[value])
            waiting.extend(frontiers._maker[value].reads)
    return stacked, copied, materialized, work


def residual_net(params, carry, x):
    """Layers of batch norm, product, relu: the body of `hk.scan` over a deep net."""
    for w, gain, bias in params:
        h = (x - x.mean(0)) * lax.rsqrt(x.var(0) + 1e-5) * gain + bias
        x = x + jax.nn.relu(h @ w)
    return carry, x


def net_with_states(params, carry, x):
    """The same with the running averages of each layer in the carry."""
    new = []
    for (w, gain, bias), (mean, variance) in zip(params, carry, strict=True):
        m, v = x.mean(0), x.var(0)
        new.append((0.9 * mean + 0.1 * m, 0.9 * variance + 0.1 * v))
        x = x + jax.nn.relu((x - m) * lax.rsqrt(v + 1e-5) * gain + bias) @ w
    return new, x


def net_of_loops(params, carry, x):
    """A recurrent layer in each leaf of the carry."""
    new = []
    for (w, gain, bias), (hidden, average) in zip(params, carry, strict=True):
        hidden = jnp.tanh(x @ w + hidden @ w.T + bias)
        average = gain * average + hidden
        new.append((hidden, average))
        x = x + jnp.sin(average)
    return new, x


STEPS = {"net": residual_net, "states": net_with_states, "loops": net_of_loops}


def lines_run(step, layers, *, gradient, rows=64):
    """How many lines of the engine run for a trace, iterations of comprehensions among them."""
    width = 8
    params = [(jnp.ones((width, width)), jnp.ones(width), jnp.zeros(width))] * layers
    state = jnp.zeros((rows, width) if step is net_of_loops else width)
    carry = jnp.zeros(()) if step is residual_net else [(state, state)] * layers
    engine = os.path.dirname(rs.engine.__file__)
    count = 0

    def on_line(frame, event, _):
        nonlocal count
        count += event == "line"
        return on_line

    def on_call(frame, event, _):
        return on_line if frame.f_code.co_filename.startswith(engine) else None

    def loss(params, xs):
        return jnp.sum(rs.scan(step, params, carry, xs)[1])

    before = sys.gettrace()
    sys.settrace(on_call)
    try:
        jax.make_jaxpr(jax.grad(loss) if gradient else loss)(params, jnp.ones((8, rows, width)))
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize(
    ("step", "gradient"),
    variants(
        {f"{name}, {kind}": (STEPS[name], kind == "gradient") for name in STEPS for kind in ("forward", "gradient")},
        ["net, gradient", "states, forward"],
    ),
)
def test_a_trace_takes_lines_with_the_number_of_layers(step, gradient):
    counts = [lines_run(step, layers, gradient=gradient) for layers in (6, 12, 24)]
    for fewer, more in pairwise(counts):
        # Each linear leaf of a net of loops is split once by itself (`RecomputeCosts`): its lines grow by squares.
        assert more < (4 if step is net_of_loops else 2.4) * fewer, counts


def test_nothing_of_a_derivative_is_planned_without_one(monkeypatch):
    planned = []
    monkeypatch.setattr(expensive_values.ExpensiveValues, "__init__", lambda *_: planned.append(None))
    carry = jnp.zeros((2, 4))
    xs = jnp.ones((20, 2, 4))
    jax.make_jaxpr(lambda xs: rs.scan(lambda w, h, x: (jnp.tanh(h @ w + x), h), jnp.eye(4), carry, xs))(xs)
    assert not planned
