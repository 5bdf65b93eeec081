"""Which loops can be solved over all steps at once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from newton_cells import CELLS, arguments_of
from rnnscan import cells
from rnnscan.engine.analysis.elementwise import MixesError, check_elementwise
from rnnscan.engine.call.prepare import prepare
from rnnscan.engine.plan.execution_plan import ExecutionPlan
from rnnscan.ir.program import Value
from rnnscan.ir.trace import trace
from rnnscan.newton import Newton


WEIGHTS = np.arange(12.0).reshape(3, 4)
LEAF = jax.ShapeDtypeStruct((2, 4), jnp.float32)


def gates_by_axis(h):
    gates = jnp.tanh(h[:, None, :] * WEIGHTS)
    return gates[:, 0] * h + gates.sum(1) - gates[:, 2]


def gates_in_a_row(h):
    row = jnp.concatenate([h, jnp.ones_like(h), 2 * h], axis=1).reshape(2, 3, 4)
    return row[:, 0] + jnp.sin(row[:, 2])


ELEMENTWISE = {
    "functions": lambda h: jax.nn.silu(h) + jax.nn.relu(h) ** 3 + jnp.exp2(h) / jnp.hypot(h, 1.0),
    "padding": lambda h: jnp.where(WEIGHTS[:2] > 3, h, jnp.clip(h, -1, 1)),
    "a stop of the gradient": lambda h: jax.lax.stop_gradient(h) + jax.nn.softplus(h),
    "gates along an axis": gates_by_axis,
    "gates in a row": gates_in_a_row,
    "split": lambda h: sum(jnp.split(jnp.tile(h, 3), 3, axis=-1)),
    "stacked": lambda h: jnp.stack([h, 2 * h], axis=1).max(1),
    "two transposes": lambda h: (h.T * WEIGHTS.T[:, :1]).T,
    "flattened": lambda h: jnp.tanh(h[:, :, None]).reshape(2, 4, 1)[..., 0],
    "a weight for each unit and gate": lambda h: jnp.tanh(jnp.einsum("nh,hg->gnh", h, WEIGHTS.T)).sum(0),
    "heads of one unit": lambda h: jnp.einsum("nhd,hdg->ngh", h[..., None], WEIGHTS.T[:, None])[:, 1],
    "a product along gates": lambda h: jnp.tanh(h[..., None] * WEIGHTS.T) @ np.ones(3),
    "a constant": lambda h: jnp.ones_like(h),
}
MIXING = {
    "dot_general": lambda h: h @ np.ones((4, 4), np.float32),
    "dot_general mixes its elements": lambda h: jnp.einsum("nh,nh->nh", h, h @ np.ones((4, 4), np.float32)),
    "rev": lambda h: h[:, ::-1],
    "concatenate shifts": lambda h: jnp.concatenate([jnp.ones((2, 1)), h], axis=1)[:, :4],
    "slice cuts it": lambda h: jnp.concatenate([h[:, 1:], h[:, :1]], axis=1),
    "reduce_sum sums its elements": lambda h: h - h.mean(1, keepdims=True),
    "reshape mixes": lambda h: h.reshape(4, 2).reshape(2, 4),
    "several elements": lambda h: jnp.sum(h[:, None, :] * h[:, :, None], 1),
    "cumsum": lambda h: jnp.cumsum(h, 1),
    "change places": lambda h: jnp.tile(h.reshape(2, 2, 2).transpose(0, 2, 1).reshape(2, 4), 1),
    "sort": lambda h: jnp.sort(h, 1),
    "cond": lambda h: jax.lax.cond(True, jnp.tanh, lambda h: h[:, ::-1], h),
}


def check(function):
    program = trace(lambda h: [function(h)], LEAF)
    (leaf,) = program.known
    assert isinstance(leaf, Value)
    check_elementwise(program.equations, [leaf], program.stacked)


@pytest.mark.parametrize("function", ELEMENTWISE.values(), ids=ELEMENTWISE)
def test_elementwise_functions_are_found(function):
    check(function)
    # The Jacobian is diagonal.
    jacobian = jax.jit(jax.jacobian(function))(jnp.linspace(-1, 1, 8).reshape(2, 4)).reshape(8, 8)
    assert not np.any(jacobian * (1 - np.eye(8)))


@pytest.mark.parametrize(("reason", "function"), MIXING.items(), ids=MIXING)
def test_functions_that_mix_elements_say_what_does(reason, function):
    with pytest.raises(MixesError, match=None if reason == "change places" else reason):
        check(function)


def test_a_square_leaf_that_is_transposed_is_not_elementwise():
    program = trace(lambda h: [h.T], jax.ShapeDtypeStruct((3, 3), jnp.float32))
    with pytest.raises(MixesError, match="change places"):
        check_elementwise(program.equations, list(program.known), program.stacked)


def scan(cell, size=4, **options):
    xs = jnp.ones((5, 2, 3))
    params = cell.init(jax.random.key(0), input_size=3)
    return rs.scan(cell, params, cell.initial_carry(xs[0]), xs, **{"parallel": Newton(), **options})


def test_a_dense_loop_says_what_mixes_its_elements():
    with pytest.raises(ValueError, match=r"a loop of carry\[0\], where dot_general mixes its elements"):
        scan(cells.GRU(4))
    with pytest.raises(ValueError, match=r"a loop of carry\[0\]\[0\], where"):
        scan(rs.stack(cells.GRU(4), cells.IndRNN(4)))


def test_a_dense_loop_that_the_diagonal_does_not_help_says_why():
    def cell(params, carry, x):
        one, two = carry
        one = jnp.tanh(one + two.sum(-1, keepdims=True))
        return (one, jnp.tanh(two * one.sum(-1, keepdims=True))), two

    xs = jnp.ones((5, 2, 3))
    with pytest.raises(ValueError, match="of no use here, because its leaves have several shapes"):
        rs.scan(cell, None, (xs[0], xs[0, :, :1]), xs, parallel=Newton(jacobian="diagonal"))


def test_a_linear_loop_is_an_associative_scan():
    cell, xs = cells.MinGRU(4), jnp.linspace(-1, 1, 40 * 2 * 3).reshape(40, 2, 3)
    params = cell.init(jax.random.key(0), 3)
    given = cell, params, cell.initial_carry(xs[0]), xs
    np.testing.assert_allclose(rs.scan(*given, parallel=Newton())[1], rs.scan(*given)[1], rtol=1e-5)
    loop = [one.forward for one in rs.explain(*given, parallel=Newton()).equations if one.kind == "linear"]
    assert set(loop) == {"in loop 1, as an associative scan"}
    assert rs.newton_iterations(*given).most == 0


def test_without_a_loop_it_says_what_there_is():
    def cell(params, carry, x):
        return x, carry

    with pytest.raises(ValueError, match=r"there is none; got Newton\(\), and carry is a delay"):
        rs.scan(cell, None, jnp.ones((2, 3)), jnp.ones((5, 2, 3)), parallel=Newton())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "lax"}, 'engine="lax" was chosen'),
        ({"memory": None}, "plain autodiff"),
        ({"memory": rs.Memory(chunk=4), "parallel": Newton(chunk=4)}, "given twice"),
    ],
)
def test_what_the_call_cannot_honour_is_an_error(options, message):
    with pytest.raises(ValueError, match=message):
        scan(cells.IndRNN(4), **options)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"tolerance": 0}, ValueError, "above 0 and below 1"),
        ({"tolerance": -1e-3}, ValueError, "above 0 and below 1"),
        ({"tolerance": "small"}, TypeError, "must be a Python number"),
        ({"max_iterations": 0}, ValueError, "at least 1"),
        ({"chunk": 0}, ValueError, "at least 1, or None"),
        ({"jacobian": "dense"}, ValueError, "must be one of"),
        ({"damping": 1.0}, ValueError, "below 1"),
    ],
)
def test_wrong_options_are_errors(options, error, message):
    with pytest.raises(error, match=message):
        Newton(**options)


@pytest.mark.bad_input
def test_parallel_must_be_a_newton():
    with pytest.raises(TypeError, match=r"must be an rnnscan\.Newton"):
        scan(cells.IndRNN(4), parallel=True)


def test_all_kinds_are_told_apart():
    name = "three kinds"
    arguments = arguments_of(name, rows=2, steps=8)
    plan = ExecutionPlan.of(prepare(CELLS[name][0], *arguments, parallel=Newton()))
    loops = plan.scan(8).forward().loops
    kinds = {loop.carry: loop.recurrence and loop.recurrence.kind for loop in loops}
    # The counter, of integers, runs as every linear recurrence does.
    assert kinds == {(0,): "block", (1,): "elementwise", (2, 3): "block", (4,): "delay", (5,): "affine"}
