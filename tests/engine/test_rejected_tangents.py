"""Derivative rules that reject some tangents, when the engine asks which values have one."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.sparse.linalg import cg, gmres

import rnnscan as rs
from rnnscan import Memory
from rnnscan.engine.costs.heuristics import BACKENDS
from tiers import variants


NUMBERS, XS = jnp.arange(5), jax.random.normal(jax.random.key(0), (5, 3))
CARRY = jnp.full(3, 0.1)


def plain(cell, p, carry, xs):
    return jax.lax.scan(lambda carry, x: cell(p, carry, x), carry, xs)


def solving(solve):
    """A step that solves with a matrix of an integer input: the tolerance has a tangent, and the matrix has none."""

    def step(p, h, x):
        number, row = x
        matrix = jnp.eye(3) * (2.0 + number)
        y, _ = solve(lambda vector: matrix @ vector, row * p + h)
        return jnp.tanh(y), y

    return step


def with_auxiliary(p, h, x):
    """A linear solve that returns, beside its solution, the sum of a matrix that has a tangent."""
    _, row = x
    matrix = 2.0 * jnp.eye(3) + p * jnp.outer(row, row)
    solve = lambda matvec, b: (jnp.linalg.solve(matrix, b), jnp.sum(matrix))  # noqa: E731
    y, total = jax.lax.custom_linear_solve(lambda v: matrix @ v, h, solve, solve, symmetric=True, has_aux=True)
    return jnp.tanh(y + row), y * total


@jax.custom_jvp
def both(a, b):
    return a * b


def _both_jvp(primals, tangents):
    if any(isinstance(tangent, jax.custom_derivatives.SymbolicZero) for tangent in tangents):
        raise TypeError("a tangent for both")
    (a, b), (a_dot, b_dot) = primals, tangents
    return a * b, a * b_dot + b * a_dot


both.defjvp(_both_jvp, symbolic_zeros=True)


def by_a_rule(p, h, x):
    """Two carries, of which the second has a tangent from the second step on, and a rule that wants both."""
    _, row = x
    return jnp.tanh(both(h * p, row * p) + row), h


STEPS = {"cg": solving(cg), "gmres": solving(gmres), "auxiliary": with_auxiliary, "rule": by_a_rule}


@pytest.mark.parametrize(
    ("name", "memory"),
    variants(
        {
            f"{name}-{label}": (name, memory)
            for name in STEPS
            for label, memory in {
                "default": Memory(),
                "all": Memory(recompute="all"),
                "segment": Memory(segment=2),
            }.items()
        },
        ["cg-default", "gmres-default", "auxiliary-all", "rule-segment"],
    ),
)
def test_values_and_gradients_are_those_of_plain(name, memory):
    def loss(scan, *arguments):
        final, ys = scan(STEPS[name], *arguments)
        return jnp.sum(final**2) + jnp.sum(ys**2)

    def value_and_gradient(scan):
        of_floats = lambda p, carry, rows: loss(scan, p, carry, (NUMBERS, rows))  # noqa: E731
        return jax.jit(jax.value_and_grad(of_floats, (0, 1, 2)))(0.5, CARRY, XS)

    actual = value_and_gradient(lambda *arguments: rs.scan(*arguments, memory=memory))
    for one, other in zip(jax.tree.leaves(actual), jax.tree.leaves(value_and_gradient(plain)), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=1e-6)


def test_a_tangent_that_the_rule_does_not_read_has_no_cotangent():
    """The derivative of the tolerance, a leaf of the carry, is not finite."""

    def step(p, carry, x):
        h, tolerance = carry
        solve = lambda matvec, b: jax.lax.while_loop(  # noqa: E731
            lambda y: jnp.sum((b - matvec(y)) ** 2) > tolerance + 1e-12, lambda y: y + (b - matvec(y)) / 3, b
        )
        h = jax.lax.custom_linear_solve(lambda y: 2.0 * y, h * p + x, solve, symmetric=True)
        return (h, jnp.sqrt(tolerance**2 + jnp.sum(x - x))), h

    gradients = [
        jax.grad(lambda p, carry, xs, scan=scan: jnp.sum(scan(step, p, carry, xs)[1]), (0, 1, 2))(0.5, (CARRY, 0.0), XS)
        for scan in (rs.scan, plain)
    ]
    for one, other in zip(*map(jax.tree.leaves, gradients), strict=True):
        assert np.isfinite(other).all()
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@jax.custom_vjp
def reverse_only(x):
    return jnp.tanh(x)


reverse_only.defvjp(lambda x: (jnp.tanh(x), x), lambda x, ct: (2.0 * ct,))


def with_unread(place):
    """A step with a rule for reverse mode only, of which the first leaf of the carry reads nothing."""

    def step(p, carry, x):
        h, other = carry
        h = jnp.sin(h * p + x)
        if place == "name":
            rs.name(reverse_only(h), "unread")
        return (h, reverse_only(other + h) if place == "carry" else other), reverse_only(h) if place == "y" else h

    return step


@pytest.mark.parametrize("in_one_kernel", [False, True], ids=["in parts", "in one kernel"])
@pytest.mark.parametrize("place", ["name", "carry", "y"])
def test_a_tangent_that_nothing_reads_needs_no_forward_mode(place, in_one_kernel, monkeypatch):
    monkeypatch.setitem(BACKENDS, "cpu", replace(BACKENDS["cpu"], one_kernel=in_one_kernel))

    def tangent(scan, p, h):
        loss = lambda p, h: jnp.sum(scan(with_unread(place), p, (h, CARRY), XS)[0][0] ** 2)  # noqa: E731
        return jax.linearize(loss, p, h)[1](p, h)

    rows = jnp.stack([CARRY, 2 * CARRY])
    actual, expected = (jax.vmap(partial(tangent, scan), (None, 0))(0.5, rows) for scan in (rs.scan, plain))
    np.testing.assert_allclose(actual, expected, rtol=1e-5)

    def tangent_and_results(scan, p, h):
        def loss(p, h):
            results = scan(with_unread(place), p, (h, CARRY), XS)
            return jnp.sum(results[0][0] ** 2), results

        return jax.jvp(jax.jit(loss), (p, h), (p, h), has_aux=True)[1:]

    actual, expected = (jax.jit(partial(tangent_and_results, scan))(0.5, CARRY) for scan in (rs.scan, plain))
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5), actual, expected)


@pytest.mark.parametrize("name", STEPS)
def test_explain_says_what_it_knows_of_rules(name):
    text = str(rs.explain(STEPS[name], 0.5, CARRY, (NUMBERS, XS)))
    assert "engine: fission" in text


def sine(x):
    return jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


@pytest.mark.parametrize("of_carry", [False, True], ids=["of the input", "of the carry"])
def test_explain_of_a_callback_leaves_out_the_backward_pass(of_carry):
    def step(p, h, x):
        y = sine(h if of_carry else x)
        return jnp.tanh(h @ p + y), y

    explanation = rs.explain(step, jnp.eye(3), CARRY, XS)
    assert [one.operation for one in explanation.equations].count("pure_callback") == 1
    assert {cost.direction for cost in explanation.costs} == {"forward"}
    # Its gradient fails as that of plain, where the callback has a tangent.
    gradients = [jax.grad(lambda p, scan=scan: jnp.sum(scan(step, p, CARRY, XS)[0])) for scan in (rs.scan, plain)]
    if of_carry:
        for gradient in gradients:
            with pytest.raises(ValueError, match="Pure callbacks do not support JVP"):
                gradient(jnp.eye(3))
    else:
        np.testing.assert_allclose(*(gradient(jnp.eye(3)) for gradient in gradients), rtol=1e-5)
