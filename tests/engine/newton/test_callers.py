"""Nets, recurrent_net and the Flax modules hand `parallel` on, and the iterations can be counted."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import rnnscan as rs
from drawn import normal
from jaxprs import equations_of, is_loop, running, trips_of
from newton_cells import arguments_of, one_leaf
from rnnscan import cells
from rnnscan.engine.costs.heuristics import heuristics, using
from rnnscan.nets.calls import run
from rnnscan.newton import Newton
from rnnscan.planning.arguments import Arguments
from rnnscan.planning.choose import choices_of
from slow_reference import assert_close


XS = normal(np.random.default_rng(0), (12, 2, 3), jnp.float32)
CELL = cells.ParaGRU(4)
PARAMS = CELL.init(jax.random.key(0), input_size=3)
NEWTON = Newton(chunk=4)


def by_net(parallel):
    net = rs.chain(rs.bidirectional(CELL, cells.ParaLSTM(4)), rs.layer(CELL))
    return net(net.init(jax.random.key(0), 3), XS, seq_lengths=jnp.array([12, 5]), parallel=parallel)


def by_recurrent_net(parallel):
    def cell_net(params, x, hidden):
        return {"new": CELL(params, (hidden,), x)[1]}

    return rs.recurrent_net(
        cell_net,
        PARAMS,
        inputs={"x": XS},
        initial_cell_inputs={"hidden": jnp.zeros(4)},
        links={"hidden": "new"},
        parallel=parallel,
    )


def by_window(parallel):
    carry = CELL.initial_carry(XS[0])
    return rs.truncated.by_window(CELL, PARAMS, carry, XS, every=3, back=5, parallel=parallel)


def by_linen(parallel):
    model = rs.linen.RNN(CELL, time_major=True, parallel=parallel)
    return model.init_with_output(jax.random.key(0), XS)[0]


def by_nnx(parallel):
    class Cell(nnx.RNNCellBase):
        def __init__(self):
            self.weight = nnx.Param(jnp.linspace(-1, 1, 3))

        def __call__(self, carry, x):
            hidden = jnp.tanh(self.weight.get_value() * carry + x)
            return hidden, hidden

        def initialize_carry(self, input_shape, rngs=None, carry_init=None):
            return jnp.zeros(input_shape)

        @property
        def num_feature_axes(self):
            return 1

    return rs.nnx.RNN(Cell(), time_major=True, parallel=parallel)(XS)


@pytest.mark.parametrize("caller", [by_net, by_recurrent_net, by_window, by_linen, by_nnx])
def test_every_caller_hands_it_on(caller):
    def iterates(parallel):
        loops = filter(is_loop, equations_of(running(partial(caller, parallel))().jaxpr))
        return any(trips_of(loop) is None for loop in loops)

    assert iterates(NEWTON)
    assert not iterates(None)


def test_a_net_gives_the_same_results():
    found, expected = (jax.jit(by_net, static_argnums=0)(own) for own in (NEWTON, None))
    assert_close(found, expected, tolerance=1e-5)


def test_iterations_are_counted_by_chunk():
    counts = rs.newton_iterations(CELL, PARAMS, CELL.initial_carry(XS[0]), XS, parallel=NEWTON, reverse=True)
    assert list(counts.iterations) == ["carry[0]"]
    assert counts.chunks == 3
    assert 1 <= counts.most <= 5
    assert counts.chunks_step_by_step == 0
    assert "in 3 chunks; 0 of them ran step by step" in str(counts)


def test_counting_again_traces_nothing_and_reads_what_is_new():
    traces, held = [], [jnp.zeros(())]
    params, carry, xs = arguments_of("one leaf", steps=12)
    flat = jax.tree.map(jnp.zeros_like, params)

    def cell(params, carry, x):
        traces.append(x)
        return one_leaf(params, carry, x)

    def closing_over(params, carry, x):
        return one_leaf(jax.tree.map(lambda leaf: held[0] * leaf, params), carry, x)

    def iterations(cell, params, lengths=None):
        counts = rs.newton_iterations(cell, params, carry, xs, seq_lengths=lengths, parallel=NEWTON)
        return counts.iterations["carry[0]"].tolist()

    expected, before = iterations(cell, params), len(traces)
    assert iterations(cell, flat) != expected
    assert iterations(cell, params) == expected
    assert len(traces) == before
    assert iterations(cell, params, jnp.full(xs.shape[1], 12)) == expected
    assert iterations(closing_over, params) == iterations(cell, flat)
    held[0] = jnp.ones(())
    assert iterations(closing_over, params) == expected


def test_chunks_that_fall_back_are_counted():
    # 20 steps in segments of 8 and chunks of 4. One iteration is not enough, but for the first steps of a chunk.
    memory = rs.Memory(segment=8)
    arguments = arguments_of("one leaf", steps=20)
    counts = rs.newton_iterations(one_leaf, *arguments, memory=memory, parallel=Newton(chunk=4, max_iterations=1))
    assert counts.chunks == counts.chunks_step_by_step == 5


def test_the_counts_of_a_net_are_those_of_its_scans():
    net = rs.chain(rs.layer(CELL), rs.layer(CELL))
    params = net.init(jax.random.key(0), 3)
    counts = rs.newton_iterations(net, params, XS, parallel=NEWTON)
    assert list(counts.scans) == ["net_0", "net_1"]
    assert counts.chunks == 6
    assert counts.most == max(scan.most for scan in counts.scans.values())


def test_counting_needs_something_to_count():
    carry = CELL.initial_carry(XS[0])
    with pytest.raises(ValueError, match=r"`parallel` must be an rnnscan\.Newton; got None"):
        rs.newton_iterations(CELL, PARAMS, carry, XS, parallel=None)


def test_explain_shows_what_newtons_method_solves():
    explanation = rs.explain(CELL, PARAMS, CELL.initial_carry(XS[0]), XS, parallel=NEWTON)
    assert explanation.carry["[0]"].kind == "elementwise"
    solved = {one.operation for one in explanation.equations if one.forward.endswith("by Newton")}
    assert {"tanh", "logistic"} <= solved
    assert "dot_general" not in solved
    assert explanation.solved["carry[0]"].startswith("4 steps at once, at most 16 iterations, each about ")
    assert "Newton's method for carry[0]" in str(explanation)


def test_it_keeps_what_the_loop_keeps_and_plans_have_no_second_chunk():
    arguments = (CELL, PARAMS, CELL.initial_carry(XS[0]), XS)
    plain, solved = (rs.memory_report(*arguments, parallel=own, compile=False).training for own in (None, NEWTON))
    assert solved.kept_bytes == solved.counted_bytes == plain.kept_bytes
    jax.eval_shape(lambda: rs.scan(*arguments, memory=rs.Memory.fit("1MiB"), parallel=NEWTON))


def test_the_stabilizer_of_matrix_states_is_counted():
    cell = cells.MLSTM(8, heads=2)
    xs = jax.random.normal(jax.random.key(1), (21, 2, 3))
    params = cell.init(jax.random.key(0), input_size=3)
    carry = cell.initial_carry(xs[0])
    with using(replace(heuristics(), least_state=2, state_chunk=4, longest_window=8)):
        counts = rs.newton_iterations(cell, params, carry, xs, parallel=Newton())
    # Windows of 7 steps, each of them a chunk.
    (place,) = counts.iterations
    assert place == f"carry[{cell.carry_names.index('stabilizer')}]"
    assert (counts.chunks, counts.chunks_step_by_step) == (3, 0)


def test_plan_counts_the_work_of_iterations():
    carry = CELL.initial_carry(XS[0])

    def costs(newton):
        given = Arguments(run, CELL, PARAMS, carry, XS, {"parallel": newton})
        return {repr(one.memory): one.time for one in choices_of(given)}

    plain, one, four = (costs(own) for own in (None, Newton(max_iterations=1), Newton(max_iterations=4)))
    (kept, *_), segment = plain, repr(rs.Memory(recompute="all", segment=4))
    assert plain[kept] < one[kept] < four[kept]
    # A segment runs again, with its iterations.
    assert four[segment] - plain[segment] > 1.9 * (four[kept] - plain[kept])
    memory = rs.plan(CELL, PARAMS, carry, XS, budget="1MiB", parallel=Newton())
    assert 0 < memory.temporary_bytes < 2**20


def test_iterations_are_counted_within_a_budget():
    cell, xs = rs.cells.ParaGRU(4), jnp.ones((64, 2, 3))
    given = cell.init(jax.random.key(0), 3), cell.initial_carry(xs[0]), xs
    budget = rs.Memory.fit("1MiB")
    assert str(rs.newton_iterations(cell, *given, memory=budget)) == str(rs.newton_iterations(cell, *given))
