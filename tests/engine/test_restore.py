"""New carries that the backward pass reads where they are kept, and does not compute again."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import rnnscan as rs
from rnnscan.engine.plan import bound
from rnnscan.engine.plan.scan_plan import ScanPlan
from rnnscan.ir.traits import TRAITS


FUNCTIONS = {
    "exp": lambda z: jnp.exp(-z),
    "logistic": jax.nn.sigmoid,
    "sqrt": lambda z: jnp.sqrt(2 + z),
    "tanh": jnp.tanh,
    "exp2": jnp.exp2,
    "expm1": jnp.expm1,
    "cbrt": lambda z: jnp.cbrt(2 + z),
    "tan": lambda z: jnp.tan(z / 4),
    "erf_inv": lambda z: lax.erf_inv(jnp.tanh(z) / 2),
    "qr": lambda z: jnp.linalg.qr(z.T)[0].T + jnp.linalg.qr(z.T)[1][0, 0] * z,
}
FROM_RESULTS = sorted(name for name, traits in TRAITS.items() if traits.derivative_reads == "results")


def reads_out(params, carry, x, function=jnp.tanh):
    """The new hidden state is kept as a carry, and read."""
    hidden = function(x @ params["kernel"] + carry @ params["recurrent"])
    return hidden, hidden @ params["out"]


def repeats(params, carry, x):
    """The new hidden state is kept as an output, and read."""
    hidden = jnp.tanh(x @ params["kernel"] + carry @ params["recurrent"])
    return hidden, (hidden, jnp.sin(hidden @ params["out"]))


def leapfrog(params, carry, x):
    """Two carries, one of which is linear in the other; the new velocity is read twice."""
    position, velocity = carry
    velocity = 0.9 * velocity - jnp.sin(position @ params["recurrent"]) + x @ params["kernel"]
    position = position + 0.1 * velocity
    return (position, velocity), velocity**2 @ params["out"]


def one_carry(draw):
    return draw(2, 4)


def two_carries(draw):
    return draw(2, 4), draw(2, 4)


def given(make_carry, length=7):
    random = np.random.default_rng(0)

    def draw(*shape):
        return jnp.asarray(random.normal(size=shape) / 2)

    params = {"kernel": draw(3, 4), "recurrent": draw(4, 4), "out": draw(4, 3)}
    return params, make_carry(draw), draw(length, 2, 3)


def loss_of(scan, cell, **options):
    def loss(*arguments):
        leaves = jax.tree.leaves(scan(cell, *arguments, **options))
        return sum(jnp.sum(jnp.sin(leaf)) for leaf in leaves)

    return loss


def plain(cell, params, carry, xs, *, reverse=False):
    return lax.scan(lambda carry, x: cell(params, carry, x), carry, xs, reverse=reverse)


def assert_equal(found, wanted):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12), found, wanted)


CELLS = {"a carry": (reads_out, one_carry), "an output": (repeats, one_carry), "one of two": (leapfrog, two_carries)}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("cell", "length", "options"),
    [
        ("a carry", 7, {"memory": rs.Memory("all", chunk=3)}),
        ("a carry", 7, {"memory": rs.Memory(chunk=3), "reverse": True}),
        ("a carry", 6, {"memory": rs.Memory(segment=4, chunk=2)}),
        ("a carry", 1, {"reverse": True}),
        ("a carry", 0, {}),
        ("an output", 7, {"memory": rs.Memory(chunk=3), "reverse": True}),
        ("one of two", 7, {"memory": rs.Memory("all", chunk=3)}),
    ],
    ids=["a remainder", "reversed", "segments", "one step", "no step", "an output", "two carries"],
)
def test_gradients_are_those_of_the_plain_scan(cell, length, options):
    step, make_carry = CELLS[cell]
    arguments = given(make_carry, length)
    found, wanted = (
        jax.jit(jax.value_and_grad(loss_of(scan, step, reverse=options.get("reverse", False), **own), (0, 1, 2)))
        for scan, own in ((rs.scan, {key: options[key] for key in options if key != "reverse"}), (plain, {}))
    )
    assert_equal(found(*arguments), wanted(*arguments))


@pytest.mark.usefixtures("x64")
def test_gradients_of_gradients_are_those_of_the_plain_scan():
    params, carry, xs = given(one_carry, 3)

    def curvature(scan):
        gradient = jax.grad(loss_of(scan, reads_out))
        return jax.jit(jax.grad(lambda params: sum(jnp.sum(g**2) for g in gradient(params, carry, xs).values())))

    assert_equal(curvature(rs.scan)(params), curvature(plain)(params))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", FROM_RESULTS)
def test_the_derivative_of_each_function_follows_from_its_result(name):
    def cell(params, carry, x):
        return reads_out(params, carry, x, FUNCTIONS[name])

    arguments = given(one_carry)
    assert name in str(jax.make_jaxpr(cell)(arguments[0], arguments[1], arguments[2][0]))
    found, wanted = (jax.jit(jax.grad(loss_of(scan, cell), (0, 1, 2))) for scan in (rs.scan, plain))
    assert_equal(found(*arguments), wanted(*arguments))


def test_the_derivative_of_a_saturated_function_is_as_exact_as_that_of_jax():
    def cell(params, carry, x):
        hidden = jnp.tanh(params * x + 0 * carry)
        return hidden, hidden * 1.0

    xs = jnp.asarray([6.0, 7.0, 7.5, 8.0], jnp.float32)
    found, wanted = (
        jax.grad(lambda xs, scan=scan: jnp.sum(scan(cell, jnp.float32(1), jnp.zeros(()), xs)[1]))(xs)
        for scan in (rs.scan, plain)
    )
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


@pytest.mark.parametrize(("cell", "products"), [("a carry", 1), pytest.param("one of two", 0, marks=pytest.mark.slow)])
def test_products_that_only_the_new_carry_needs_do_not_run_again(cell, products, monkeypatch):
    step, make_carry = CELLS[cell]  # Both products of the first are one program's product over all steps.
    arguments = given(make_carry, 24)

    def count():
        gradient = jax.jit(jax.grad(loss_of(rs.scan, step, memory=rs.Memory("all")), (0, 1, 2)))
        return gradient.lower(*arguments).compile().as_text().count(" dot(")

    spared = count()
    monkeypatch.setattr(ScanPlan, "_restored", lambda *_: [])
    monkeypatch.setattr(bound, "_known", {})  # Else an equal step has the plan from before.
    assert count() - spared == products


def rotates(params, carry, x):
    """The named maximum reads carries that the backward pass computes again, in another way than the forward pass."""
    a, b = carry
    top = rs.name(jnp.maximum(a, params["floor"] + 0.6157 * b), "top")
    sine, cosine = 0.9 * jnp.sin(params["angle"]), 0.9 * jnp.cos(params["angle"])
    return (a * cosine - b * sine + jnp.tanh(top), a * sine + b * cosine), jnp.cos(x)


def widest(params, carry, x):
    """The same for a maximum of a row."""
    a, b = carry
    top = rs.name(jnp.max(params["floor"] + 0.6157 * b - a, keepdims=True), "top")
    sine, cosine = 0.9 * jnp.sin(params["angle"]), 0.9 * jnp.cos(params["angle"])
    return (a * cosine - b * sine + jnp.tanh(top), a * sine + b * cosine), jnp.cos(x)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("platform", ["cpu", "gpu", "tpu"])
@pytest.mark.parametrize("cell", [rotates, widest])
def test_a_kept_maximum_has_its_gradient_where_an_operand_is_rounded_otherwise(cell, platform):
    random = np.random.default_rng(0)
    params = {name: jnp.asarray(random.normal(size=4)) for name in ("floor", "angle")}
    carry, xs = (jnp.asarray(random.normal(size=4)),) * 2, jnp.asarray(random.normal(size=(12, 4)))

    def gradient(memory):
        def loss(params):
            final, ys = rs.scan(cell, params, carry, xs, memory=memory)
            return sum(map(jnp.sum, final)) + jnp.sum(ys)

        with rs.tuned_for(platform):
            return jax.grad(loss)(params)

    jax.tree.map(
        lambda got, expected: np.testing.assert_allclose(got, expected, rtol=1e-9),
        gradient(rs.Memory(chunk=8)),
        gradient(None),
    )


def test_the_rule_of_a_maximum_compares_the_kept_maximum_that_it_reads():
    def online(params, highest, x):
        highest = jnp.maximum(highest, rs.name(jnp.max(x @ params, axis=-1), "top"))
        return highest, jnp.exp(x.sum(-1) - highest)

    def loss(params):
        return jnp.sum(rs.scan(online, params, jnp.zeros(2), jnp.ones((24, 2, 3)), memory=rs.Memory(chunk=8))[1])

    jaxpr = jax.make_jaxpr(jax.grad(loss))(jnp.ones((3, 4)))
    (step,) = (eqn.params["step"].jaxpr for eqn in jaxpr.eqns if eqn.primitive.name == "rnnscan_cotangent_scan")
    computed = [var for eqn in step.eqns if eqn.primitive.name == "reduce_max" for var in eqn.outvars]
    compared = [eqn.invars for eqn in step.eqns if eqn.primitive.name in ("eq", "gt")]
    assert computed
    # It may be rounded otherwise than the kept one. Its own rule compares a view of it.
    assert not any(var in operands for var in computed for operands in compared)


def viterbi(move, scores, potential, scale=None):
    """The score of the best path. With a scale, its operands are rounded twice."""
    paths = scores[:, :, None] + (move if scale is None else move * scale)
    scores = jnp.max(paths, 1) + potential
    return scores, scores


@pytest.mark.core("derivatives")
@pytest.mark.large_loops
@pytest.mark.parametrize("scale", [None, 0.3])
def test_the_rule_of_a_maximum_reads_a_kept_one_whose_operands_round_as_before(scale):
    random = np.random.default_rng(0)
    move, scores, xs = (jnp.asarray(random.normal(size=size), "float32") for size in ((32, 32), (16, 32), (50, 16, 32)))

    def loss(scan):
        return lambda *arguments: jnp.sum(jnp.sin(scan(functools.partial(viterbi, scale=scale), *arguments)[1]))

    own = jax.grad(loss(rs.scan), (0, 1, 2))
    jaxpr = jax.make_jaxpr(own)(move, scores, xs)
    (step,) = (eqn.params["step"].jaxpr for eqn in jaxpr.eqns if eqn.primitive.name == "rnnscan_cotangent_scan")
    assert any(eqn.primitive.name == "reduce_max" for eqn in step.eqns) == (scale is not None)
    expected = jax.grad(loss(plain), (0, 1, 2))(move, scores, xs)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), own(move, scores, xs), expected)


# (matrix, positive definite one) -> a matrix of the same size
FACTORS = {
    "cholesky": lambda a, s: jnp.linalg.cholesky(s),
    "cho_solve": lambda a, s: jax.scipy.linalg.cho_solve((jnp.linalg.cholesky(s), True), a),
    "solve_triangular": lambda a, s: jax.scipy.linalg.solve_triangular(jnp.linalg.cholesky(s), a, lower=True),
    "lu": lambda a, s: jax.scipy.linalg.lu(s)[2],
    "solve": lambda a, s: jnp.linalg.solve(s, a),
    "slogdet": lambda a, s: a * jnp.linalg.slogdet(s)[1],
    "qr": lambda a, s: jnp.linalg.qr(s)[0] + jnp.linalg.qr(a + s)[1],
    "eigh": lambda a, s: a * jnp.linalg.eigh(s + jnp.diag(jnp.arange(12.0)))[0],
    "singular values": lambda a, s: a * jnp.linalg.svd(s, compute_uv=False),
    "svd": lambda a, s: a * jnp.linalg.svd(s, full_matrices=False)[1],
}


@pytest.mark.core
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("memory", [rs.Memory(), rs.Memory(segment=3)], ids=["", "segments"])
@pytest.mark.parametrize("name", FACTORS)
def test_factors_in_a_loop_that_is_too_large_for_one_kernel(name, memory):
    """The result of the primitive may not be what its rule reads: LAPACK leaves the other triangle as it was."""

    def cell(params, carry, x):
        matrix = jnp.tanh(params @ carry + x)
        positive = matrix @ matrix.T / 12 + jnp.eye(12)
        return jnp.tanh(FACTORS[name](matrix, positive) + matrix), positive[0]

    random = np.random.default_rng(0)
    params, carry, xs = (jnp.asarray(random.normal(size=size)) / 3 for size in ((12, 12), (12, 12), (6, 12, 12)))
    found = jax.grad(loss_of(rs.scan, cell, memory=memory), (0, 1, 2))(params, carry, xs)
    wanted = jax.grad(loss_of(plain, cell), (0, 1, 2))(params, carry, xs)
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-7, atol=1e-7), found, wanted)
