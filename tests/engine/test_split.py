"""The split of a step: its loops, what lies between them, and what follows linearly."""

import re

import jax
import jax.numpy as jnp
import pytest

import rnnscan as rs
from jaxprs import running
from rnnscan.engine.analysis.split import split
from rnnscan.engine.costs.heuristics import BACKENDS
from rnnscan.ir.components import Components
from rnnscan.ir.linear import is_linear, linearly_recomputable
from rnnscan.ir.traits import Kind
from steps import SIZE, program_of


def split_of(step, carry, backend="cpu"):
    return split(program_of(step, carry), BACKENDS[backend])


def products(equations):
    return sum(equation.kind is Kind.PRODUCT for equation in equations)


def two_layers(matrix, carry, x):
    lower = jnp.tanh(x @ matrix + carry[0] @ matrix)
    upper = jnp.tanh(lower @ matrix + carry[1] @ matrix)
    return lower, upper, upper


def lstm_like(matrix, carry, x):
    gate = jax.nn.sigmoid(x @ matrix + carry[0] @ matrix)
    state = gate * carry[1] + (1 - gate) * x
    return jnp.tanh(state), state


def test_gates_are_cut_out_of_their_stack_at_once():
    def elementwise(matrix, carry, x):
        update, new = jnp.split(x @ jnp.concatenate([matrix, matrix], axis=-1), 2, axis=-1)
        return (jax.nn.sigmoid(update + carry[0]) * jnp.tanh(new - carry[0]),)

    parts = split_of(elementwise, 1)
    cuts = {"slice", "split"}
    assert cuts & {equation.primitive.name for equation in parts.batched}
    assert not cuts & {equation.primitive.name for equation in parts.loops[0].body}
    assert {value.shape[-1] for value in parts.loops[0].to_body} == {SIZE}


def test_layers_are_loops_one_after_the_other_with_their_products_between_them():
    parts = split_of(two_layers, 2)
    assert [loop.carry for loop in parts.loops] == [(0,), (1,)]
    assert [products(loop.body) for loop in parts.loops] == [1, 1]
    assert products(parts.outside_loops) == 2


def test_loops_with_nothing_costly_between_them_are_one():
    parts = split_of(lambda matrix, carry, x: (jnp.tanh(carry[0] @ matrix), carry[1] + carry[0]), 2)
    assert [loop.carry for loop in parts.loops] == [(0, 1)]


def test_leaves_that_feed_each_other_are_one_loop():
    program = program_of(lstm_like, 2)
    assert Components(program.equations, program.carry, program.new_carry).members == [(0, 1)]


def test_only_the_loop_is_left_in_it_where_everything_is_batched():
    parts = split_of(lstm_like, 2, backend="gpu")
    (loop,) = parts.loops
    assert products(loop.body) == 1
    program = parts.program
    components = Components(program.equations, program.carry, program.new_carry)
    assert {*loop.body} == components.loops()


def test_what_control_flow_makes_stays_in_a_loop_although_nothing_is_carried():
    def branching(matrix, carry, x):
        return (jax.lax.cond(x.sum() > 0, lambda: x @ matrix, lambda: x),)

    parts = split_of(branching, 0, backend="gpu")
    assert [equation.primitive.name for equation in parts.loops[0].body] == ["cond"]
    assert parts.loops[0].carry == ()


@pytest.mark.parametrize(
    ("step", "linear"),
    [
        (lambda c, x: 0.5 * c + x, True),
        (lambda c, x: x - c / (1 + x * x), True),
        (lambda c, x: jnp.where(x > 0, c, -c), True),
        (lambda c, x: c * c, False),
        (lambda c, x: jnp.where(c > 0, c, x), False),
        (lambda c, x: x / c, False),
        (lambda c, x: jnp.cumsum(c, axis=1), False),
        (lambda c, x: jnp.tanh(c), False),
    ],
)
def test_linear_recurrences_are_told_from_others(step, linear):
    program = program_of(lambda _, carry, x: [step(carry[0], x)], 1)
    assert is_linear(program.equations, *program.carry, *program.new_carry) == linear


def test_the_state_of_an_lstm_follows_from_its_output_and_not_the_other_way_round():
    program = program_of(lstm_like, 2)
    leaves, new_carry = program.carry, program.new_carry
    assert linearly_recomputable(program.equations, leaves, new_carry, candidates=[1]) == [1]
    assert linearly_recomputable(program.equations, leaves, new_carry, candidates=[0]) == []
    assert linearly_recomputable(program.equations, leaves, new_carry, candidates=[0, 1]) == [1]


@pytest.mark.parametrize(("rows", "at_once"), [(16, 3), (2, 0)])
def test_functions_of_kept_gates_run_at_once_from_4_kib(rows, at_once):
    cell, xs = rs.cells.LSTM(256), jnp.ones((32, rows, 3))
    params = jax.eval_shape(lambda: cell.init(jax.random.key(0), 3))
    gradient = jax.grad(lambda *arguments: (rs.scan(cell, *arguments)[1] ** 2).sum(), argnums=(0, 2))
    jaxpr = str(running(gradient)(params, cell.initial_carry(xs[0]), xs))
    assert len(re.findall(rf"f32\[\d+,{rows},\d+\] = logistic", jaxpr)) == at_once
