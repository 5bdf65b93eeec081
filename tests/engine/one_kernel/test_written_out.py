"""Products, factors, solves, sorts and reads that are written out equal those of JAX, with their derivatives."""

from math import prod

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import rnnscan as rs
from rnnscan.engine.one_kernel.written_out import written_out
from rnnscan.ir.bodies import with_bodies
from rnnscan.ir.program import evaluate, read
from rnnscan.ir.trace import trace
from tiers import variants


CALLS = frozenset(
    [
        "dot_general",
        "gather",
        "scatter",
        "scatter-add",
        "sort",
        "cholesky",
        "triangular_solve",
        "lu",
        "lu_pivots_to_permutation",
        "qr",
        "while",
        "cond",
    ]
)


def computed(a, beyond=0):
    """Indices of rows, some of them twice, and some beyond the last row."""
    return (jnp.arange(a.shape[0]) + jnp.where(a[0, 0] > 0, 1, 0)) // 2 * (1 + beyond)


# (square matrix, columns, positive definite matrix, tall matrix) -> results
FUNCTIONS = {
    "product": lambda a, b, s, t: t @ a @ b,
    "products of one and of two": lambda a, b, s, t: (a @ a, a @ s, s @ a, s @ s),
    "rows of one and of another": lambda a, b, s, t: (a[jnp.array([0])], a[jnp.array([-1])], s[jnp.array([-1])]),
    "einsum": lambda a, b, s, t: jnp.einsum("ij,kj,kl->li", a, t, t),
    "batched product": lambda a, b, s, t: jnp.einsum("bi,bij,bj->b", t, a[None] * t[:, :1, None], t),
    "matrix and vector": lambda a, b, s, t: a @ b[:, 0],
    "outer product": lambda a, b, s, t: jnp.tensordot(a[0], b[:, 0], 0),
    "cholesky": lambda a, b, s, t: jnp.linalg.cholesky(s),
    "cho_solve": lambda a, b, s, t: jax.scipy.linalg.cho_solve((jnp.linalg.cholesky(s), True), b),
    "cholesky of one triangle": lambda a, b, s, t: lax.linalg.cholesky(s + 0.02 * a, symmetrize_input=False),
    "triangular solves": lambda a, b, s, t: [
        lax.linalg.triangular_solve(a, b, left_side=True, lower=True, unit_diagonal=True),
        lax.linalg.triangular_solve(a, b, left_side=True, lower=True, transpose_a=True),
        lax.linalg.triangular_solve(a, t, lower=False),
        lax.linalg.triangular_solve(a, b.T, lower=True, transpose_a=True, unit_diagonal=True),
    ],
    "product of truth values": lambda a, b, s, t: 1.0 * ((t > 1) @ (a > 0)),
    "solve": lambda a, b, s, t: jnp.linalg.solve(a, b),
    "solve of a vector": lambda a, b, s, t: jnp.linalg.solve(a, b[:, 0]),
    "positive solve": lambda a, b, s, t: jax.scipy.linalg.solve(s, b, assume_a="pos"),
    "inv": lambda a, b, s, t: jnp.linalg.inv(a),
    "det": lambda a, b, s, t: jnp.linalg.det(a),
    "slogdet": lambda a, b, s, t: jnp.linalg.slogdet(a)[1],
    "lu": lambda a, b, s, t: jax.scipy.linalg.lu(a),
    "qr": lambda a, b, s, t: jnp.linalg.qr(t),
    "r of qr": lambda a, b, s, t: jnp.linalg.qr(t, mode="r"),
    "diag": lambda a, b, s, t: jnp.diag(a),
    "rows": lambda a, b, s, t: a[jnp.array([0, -1])],
    "set": lambda a, b, s, t: a.at[0, -1].set(b[0, 0]),
    "computed rows": lambda a, b, s, t: a[computed(a)],
    "computed rows, some beyond": lambda a, b, s, t: a.at[computed(a, 3)].get(mode="fill", fill_value=7.0),
    "computed rows, clipped": lambda a, b, s, t: a.at[computed(a, 3)].get(mode="clip"),
    "computed columns": lambda a, b, s, t: t[:2, computed(a)],
    "computed elements": lambda a, b, s, t: a[computed(a), computed(a)[::-1]],
    "computed elements of rows": lambda a, b, s, t: jax.vmap(lambda row, index: row[index])(a, computed(a)),
    "computed set": lambda a, b, s, t: a.at[computed(a)].set(2 * s),
    "computed set, some beyond": lambda a, b, s, t: a.at[computed(a, 3)].set(2 * s, mode="drop"),
    "computed set, clipped": lambda a, b, s, t: a.at[computed(a, 3)].set(2 * s, mode="clip"),
    "computed add": lambda a, b, s, t: a.at[:, computed(a)].add(jnp.sin(s)),
    "computed add to elements": lambda a, b, s, t: a.at[computed(a), computed(a, 3)].add(s[0]),
    "computed add to rows": lambda a, b, s, t: jax.vmap(lambda row, index: row.at[index].add(2.0))(a, computed(a)),
    "sort": lambda a, b, s, t: jnp.sort(a, 0),
    "argsort": lambda a, b, s, t: 1.0 * jnp.argsort(b, 0),
    "median": lambda a, b, s, t: jnp.median(a, 1),
}


def program_of(function, *arguments):
    return written_out(trace(lambda *arguments: jax.tree.leaves(function(*arguments)), *arguments))


# Products with vectors, and others of columns and rows, are loops of XLA's own.
WITHOUT_CALLS = {"rows of one and of another", "batched product", "matrix and vector", "outer product"}


def written(function):
    def run(*arguments):
        program = program_of(function, *arguments)
        values = dict(zip(program.known, arguments, strict=True))
        evaluate(program.equations, values)
        return [read(atom, values) for atom in program.stacked]

    return run


def matrices(rows, dtype=jnp.float64, seed=0):
    random = np.random.default_rng(seed)
    a, b, t = (random.normal(size=size) for size in ((rows, rows), (rows, 3), (rows + 2, rows)))
    a += 2 * np.eye(rows)
    return [jnp.asarray(each, dtype) for each in (a, b, a @ a.T / rows + np.eye(rows), t)]


def assert_equal(got, expected, tolerance):
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


def sines(function):
    return lambda *arguments: sum(jnp.sum(jnp.sin(leaf + 1)) for leaf in jax.tree.leaves(function(*arguments)))


QUICK = [
    "products of one and of two",
    "rows of one and of another",
    "cholesky",
    "solve",
    "slogdet",
    "qr",
    "diag",
    "sort",
]
QUICK += [
    "cholesky of one triangle",
    "triangular solves",
    "product of truth values",
    "computed elements of rows",
    "computed set, some beyond",
    "computed add",
]


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("rows", variants([1, 2, 4], [2]))
@pytest.mark.parametrize("name", variants(list(FUNCTIONS), QUICK))
def test_values_and_derivatives_are_those_of_jax(name, rows):
    function, arguments = FUNCTIONS[name], matrices(rows)
    gradient = jax.grad(sines(function), (0, 1, 2, 3))
    tangents = tuple(jnp.cos(argument) for argument in arguments)
    stacked = [jnp.stack([argument, 1.5 * argument]) for argument in arguments]

    def tangent(*arguments):
        return jax.jvp(sines(function), arguments, tangents)

    def second(*arguments):
        return jax.jvp(gradient, arguments, tangents)[1]

    assert_equal(written(function)(*arguments), jax.tree.leaves(function(*arguments)), 1e-10)
    assert_equal(written(gradient)(*arguments), jax.tree.leaves(gradient(*arguments)), 1e-9)
    assert_equal(written(tangent)(*arguments), jax.tree.leaves(tangent(*arguments)), 1e-9)
    assert_equal(written(second)(*arguments), jax.tree.leaves(second(*arguments)), 1e-7)
    assert_equal(written(jax.vmap(function))(*stacked), jax.tree.leaves(jax.vmap(function)(*stacked)), 1e-10)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name not in WITHOUT_CALLS])
def test_no_call_is_left(name):
    program = program_of(FUNCTIONS[name], *matrices(3))
    # A gather of places, which are integers, has no derivative and is no call, and no read or write by one index is.
    assert CALLS.isdisjoint(
        equation.name
        for equation in program.equations
        if equation.name not in ("gather", "scatter")
        or (jnp.issubdtype(equation.outputs[0].dtype, jnp.inexact) and prod(equation.inputs[1].shape[:-1]) > 1)
    )


@jax.custom_jvp
def own_rule(a, index, s):
    """The determinant, times an element; and an integer."""
    return jnp.prod(jnp.diag(jnp.linalg.cholesky(s))) * a[0, index], index + 1


@own_rule.defjvp
def own_rule_jvp(primals, tangents):
    (a, index, s), (a_dot, _, s_dot) = primals, tangents
    det, following = own_rule(a, index, s)
    trace_of = jnp.trace(jnp.linalg.solve(s, s_dot))
    return (det, following), (0.5 * det * trace_of + a_dot[0, index] * det / a[0, index], zeros_of(following))


def zeros_of(integer):
    return np.zeros(jnp.shape(integer), jax.dtypes.float0)


@jax.custom_vjp
def own_backward_rule(a, index, s):
    """The same, with a rule for reverse mode."""
    return jnp.prod(jnp.diag(jnp.linalg.cholesky(s))) * a[0, index], index + 1


def own_forward(a, index, s):
    factor = jnp.linalg.cholesky(s)
    det = jnp.prod(jnp.diag(factor))
    return (det * a[0, index], index + 1), (det, factor, a, index)


def own_backward(residuals, cotangents):
    det, factor, a, index = residuals
    ct, _ = cotangents
    of_s = 0.5 * det * a[0, index] * ct * jax.scipy.linalg.cho_solve((factor, True), jnp.eye(len(factor)))
    return jnp.zeros_like(a).at[0, index].set(det * ct), None, of_s


own_backward_rule.defvjp(own_forward, own_backward)


BACKWARD_RULES = {
    "backward rule": lambda a, b, s, t: own_backward_rule(a, jnp.int32(jnp.argmax(a[0])), s),
    "backward rule of one": lambda a, b, s, t: own_backward_rule(lax.stop_gradient(a), 1, s)[0],
    "cell of a backward rule": lambda a, b, s, t: lax.fori_loop(
        0, 2, lambda i, x: own_backward_rule(a, i, s)[0] + 0.1 * x, 0.0
    ),
}
OWN_RULES = {
    **BACKWARD_RULES,
    "own rule": lambda a, b, s, t: own_rule(a, jnp.int32(jnp.argmax(a[0])), s),
    "own rule of one": lambda a, b, s, t: own_rule(lax.stop_gradient(a), 1, s)[0],
    "cell of a rule": lambda a, b, s, t: lax.fori_loop(0, 2, lambda i, x: own_rule(a, i, s)[0] + 0.1 * x, 0.0),
}


def derivatives_of(function):
    first = jax.grad(sines(function), (0, 2))
    return first, lambda *arguments: jax.jvp(first, arguments, arguments)[1]


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", ["det", "slogdet", "qr", "positive solve", *OWN_RULES])
def test_no_call_is_left_in_the_derivatives(name):
    for derivative in derivatives_of(OWN_RULES.get(name) or FUNCTIONS[name]):
        names = {equation.name for equation in with_bodies(program_of(derivative, *matrices(3)).equations)}
        # Reads and writes by one index, and loops, are no calls.
        assert not names & (CALLS - {"gather", "scatter", "cond", "while"})


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", OWN_RULES)
def test_rules_of_users_are_written_out(name):
    function, arguments = OWN_RULES[name], matrices(3)
    assert_equal(written(function)(*arguments), function(*arguments), 1e-10)
    first, second = derivatives_of(function)
    assert_equal(written(first)(*arguments), jax.tree.leaves(first(*arguments)), 1e-9)
    assert_equal(written(second)(*arguments), jax.tree.leaves(second(*arguments)), 1e-7)
    stacked = [jnp.stack([argument, 1.5 * argument]) for argument in arguments]
    assert_equal(written(jax.vmap(first))(*stacked), jax.tree.leaves(jax.vmap(first)(*stacked)), 1e-9)


@pytest.mark.parametrize("name", variants(list(FUNCTIONS), ["cholesky", "qr"]))
def test_rounding_is_that_of_lapack(name):
    """In float32 the error against float64 is that of JAX, or a few units in the last place."""
    errors = []
    with jax.enable_x64(True):
        for seed in range(5):
            wide = matrices(4, seed=seed)
            narrow = [argument.astype(jnp.float32) for argument in wide]
            exact = jax.tree.leaves(FUNCTIONS[name](*(argument.astype(jnp.float64) for argument in narrow)))
            errors.append(
                [
                    max(
                        float(jnp.max(jnp.abs(got - want)))
                        for got, want in zip(jax.tree.leaves(each), exact, strict=True)
                    )
                    for each in (written(FUNCTIONS[name])(*narrow), FUNCTIONS[name](*narrow))
                ]
            )
    mine, jaxs = np.mean(errors, 0)
    assert mine <= 1.5 * jaxs + 3e-7


def test_a_matrix_that_is_not_positive_definite_has_nan_where_lapack_has_it():
    for matrix in ([[1.0, 2.0], [2.0, 1.0]], [[0.0, 0.0], [0.0, 1.0]], [[np.nan, 0.0], [0.0, 1.0]]):
        s = jnp.asarray(matrix, jnp.float32)
        # Its tangent has it too.
        tangent = lambda s: jax.jvp(jnp.linalg.cholesky, (s,), (jnp.eye(2) + s,))  # noqa: E731
        jax.tree.map(np.testing.assert_array_equal, written(tangent)(s), [*tangent(s)])


@pytest.mark.parametrize("plant", [np.nan, np.inf])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_the_factor_of_a_positive_definite_matrix_is_not_finite_where_that_of_lapack_is_not(place, plant):
    s = jnp.asarray(5 * np.eye(3) + 1, jnp.float32).at[place, place].set(plant)
    assert_equal(written(jnp.linalg.cholesky)(s)[0], jnp.linalg.cholesky(s), 1e-6)


@pytest.mark.parametrize("place", [(0, 2), (1, 2), (2, 2)])
def test_an_infinity_goes_no_further_in_the_factors_of_lu_than_in_those_of_lapack(place):
    a = jnp.asarray([[4.0, 1.0, 2.0], [1.0, 3.0, 1.0], [2.0, 1.0, 5.0]]).at[place].set(-np.inf)
    assert_equal(written(jax.scipy.linalg.lu)(a), jax.scipy.linalg.lu(a), 1e-6)


# Squares of these overflow, or are zero beside those of others.
@pytest.mark.parametrize("scale", [1e-30, 1e30])
@pytest.mark.parametrize("rows", [slice(None), slice(0, 1), slice(1, None)])
@pytest.mark.parametrize("column", [0, 1])
def test_reflections_are_those_of_lapack_beside_numbers_of_another_size(column, rows, scale):
    t = jnp.asarray([[2.0, 1.0], [0.5, 3.0], [-1.0, 1.0]], jnp.float32).at[rows, column].multiply(scale)
    for got, expected in zip(written(jnp.linalg.qr)(t), jnp.linalg.qr(t), strict=True):
        size = jnp.max(jnp.abs(expected), 0)
        assert_equal(got / size, expected / size, 1e-5)


@pytest.mark.parametrize("mode", ["reduced", "complete", "r"])
def test_a_nan_goes_no_further_in_the_factors_of_qr_than_in_those_of_lapack(mode):
    t = jnp.asarray([[2.0, 1.0], [0.5, 3.0], [-1.0, 1.0]]).at[1, 1].set(np.nan)
    assert_equal(written(lambda t: jnp.linalg.qr(t, mode=mode))(t), jax.tree.leaves(jnp.linalg.qr(t, mode=mode)), 1e-6)


def test_a_singular_matrix_has_the_factors_of_lapack():
    a = jnp.asarray([[0.0, 1.0, 2.0], [0.0, 0.0, 0.0], [0.0, 3.0, 1.0]])
    assert_equal(written(jax.scipy.linalg.lu)(a), jax.scipy.linalg.lu(a), 1e-6)


@pytest.mark.usefixtures("x64")
def test_a_column_that_is_zero_below_its_first_element_keeps_its_sign_and_has_its_gradient():
    t = jnp.asarray([[2.0, 1.0], [0.0, 3.0], [0.0, 1.0]])
    by = jnp.asarray([[0.1, 0.2], [0.3, -0.4], [0.5, 0.6]])
    tangent = lambda t: jax.jvp(lambda t: jnp.linalg.qr(t, mode="r"), [t], [by])  # noqa: E731
    assert_equal(written(tangent)(t), tangent(t), 1e-12)


@pytest.mark.parametrize("function", [jnp.linalg.cholesky, jnp.linalg.inv, jax.scipy.linalg.lu, jnp.linalg.det])
def test_a_matrix_without_rows(function):
    empty = jnp.zeros((0, 0))
    assert_equal(written(function)(empty), jax.tree.leaves(function(empty)), 0)


def test_a_weak_type_stays():
    function = lambda x: jnp.sort(jnp.broadcast_to(jnp.asarray(1.0), (3,))) + 0 * x  # noqa: E731
    program = written_out(trace(lambda x: [function(x)], jnp.ones(3, jnp.bfloat16)))
    assert program.stacked[0].dtype == function(jnp.ones(3, jnp.bfloat16)).dtype == jnp.bfloat16


def test_the_gradient_of_a_factor_and_a_solve_follows_their_rules():
    """It takes at most three times as many operations as they do. Derivatives of each row take 3.5 times as many."""
    _, b, s, _ = matrices(8, jnp.float32)
    function = lambda s, b: jax.scipy.linalg.cho_solve((jnp.linalg.cholesky(s), True), b)  # noqa: E731

    def operations(function):
        return sum(1 for _ in with_bodies(program_of(function, s, b).equations))

    assert operations(jax.grad(sines(function), (0, 1))) <= 3 * operations(function)


def test_nan_and_equal_elements_are_sorted_as_jax_sorts_them():
    keys = jnp.asarray([2.0, np.nan, -0.0, 0.0, -np.inf, 2.0])
    others = jnp.arange(6)
    for got, expected in zip(
        written(lambda *operands: lax.sort(operands, num_keys=1))(keys, others),
        lax.sort((keys, others), num_keys=1),
        strict=True,
    ):
        np.testing.assert_array_equal(got, expected)


def test_a_function_that_is_applied_by_index_stays():
    """It is a scatter that overwrites nothing."""
    a, *_ = matrices(3, jnp.float32)
    function = lambda a: (a @ a).at[computed(a)].apply(jnp.sin)  # noqa: E731
    assert_equal(written(function)(a)[0], function(a), 1e-6)


def test_a_step_for_other_platforms_is_written_out_but_for_its_branches():
    def cell(params, carry, x):
        new = jax.lax.platform_dependent(params @ carry, cuda=lambda a: a * 2, tpu=lambda a: a * 3)
        return jnp.tanh(new), new[0]

    run = lambda params: rs.scan(cell, params, params, jnp.ones((4, 3)))  # noqa: E731
    assert jax.export.export(jax.jit(run), platforms=["cuda", "tpu"])(jnp.eye(3)).mlir_module()
