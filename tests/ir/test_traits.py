"""The table of primitives: what it claims of each holds for the primitive itself."""

from collections.abc import Callable
from itertools import compress
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from primitives import CALLS, FACTORS, WITHOUT_CALL, X, equation_of
from rnnscan.engine.costs.costs import unbatchable
from rnnscan.ir.program import Constant
from rnnscan.ir.trace import Inliner
from rnnscan.ir.traits import TRAITS, Kind, _rows, names_of, traits_of


pytestmark = [pytest.mark.usefixtures("x64"), pytest.mark.core("the table of primitives")]

ELEMENT_BY_ELEMENT = (Kind.ELEMENTWISE, Kind.SAME)


def changed(operands: list[Any], positions: Any, change: Callable[[Any], Any]) -> list[Any]:
    return [change(operand) if place in positions else operand for place, operand in enumerate(operands)]


def floats(arrays: Any) -> list[Any]:
    return [array for array in arrays if jnp.issubdtype(jnp.result_type(array), jnp.inexact)]


def assert_close(actual: Any, expected: Any, tolerance: float = 1e-12) -> None:
    for one, other in zip(floats(actual), floats(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


def test_every_primitive_has_a_call():
    assert set(TRAITS) == set(CALLS) | WITHOUT_CALL
    assert set(CALLS).isdisjoint(WITHOUT_CALL)


def test_no_primitive_has_two_rows():
    names = [name for _, row in _rows() for name in row.split()]
    assert len(names) == len(set(names)) == len(TRAITS)


# What cells call beside arithmetic. `jax.lax.linalg` and random numbers have primitives of their own.
COMMON: dict[str, Callable[[], Any]] = {
    "random numbers": lambda: jax.random.normal(jax.random.fold_in(jax.random.key(0), 1), (3,)),
    "gamma": lambda: jax.random.gamma(jax.random.split(jax.random.key(0))[0], 2.0),
    "linear solve": lambda: jnp.linalg.solve(jnp.eye(3), jnp.ones(3)),
    "decompositions": lambda: (jnp.linalg.cholesky(X @ X.T), jnp.linalg.qr(X), jnp.linalg.svd(X)),
    "fft": lambda: jnp.fft.rfft(X),
    "pooling": lambda: jax.grad(lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (2, 2), (1, 1), "SAME").sum())(X),
    "reduction": lambda: lax.reduce(X, 0.0, lambda a, b: a * b + b, (0,)),
    "rules": lambda: (jax.nn.relu(X), jax.nn.gelu(X), jax.nn.softmax(X), jax.nn.one_hot(jnp.arange(3), 4)),
    "bits": lambda: jnp.float32(1).view("int32"),
}


@pytest.mark.parametrize("name", COMMON)
def test_what_cells_call_is_batchable(name: str):
    inliner = Inliner()
    closed = jax.make_jaxpr(COMMON[name])()
    inliner.inline(closed.jaxpr, [Constant(const) for const in closed.consts], [])
    assert not [equation.name for equation in inliner.equations if unbatchable(equation)]


@pytest.mark.parametrize("name", [name for name, traits in TRAITS.items() if traits.linear and name in CALLS])
def test_linear_together(name: str):
    equation, operands = equation_of(name)
    positions = [
        place
        for place in traits_of(name).linear_positions(len(operands))
        if jnp.issubdtype(operands[place].dtype, jnp.inexact)
    ]
    assert positions
    shifted = changed(operands, positions, jnp.cos)
    both = [a + b if place in positions else a for place, (a, b) in enumerate(zip(operands, shifted, strict=True))]
    results = [floats(equation.evaluate(*each)) for each in (operands, shifted)]
    expected = [a + b for a, b in zip(*results, strict=True)]
    assert_close(equation.evaluate(*both), expected, 1e-2 if name == "convert_element_type" else 1e-12)


@pytest.mark.parametrize("name", [name for name, traits in TRAITS.items() if traits.is_bilinear and name in CALLS])
@pytest.mark.parametrize("side", [0, 1])
def test_linear_in_each_of_two_operands(name: str, side: int):
    equation, operands = equation_of(name)
    tripled = equation.evaluate(*changed(operands, [side], lambda operand: 3 * operand))
    assert_close(tripled, [3 * result for result in equation.evaluate(*operands)])
    both = equation.evaluate(*changed(operands, [0, 1], lambda operand: 3 * operand))
    assert not np.allclose(both[0], 3 * equation.evaluate(*operands)[0])


@pytest.mark.parametrize("name", [name for name in names_of(*ELEMENT_BY_ELEMENT) if name in CALLS])
def test_each_element_from_those_at_its_place(name: str):
    equation, operands = equation_of(name)
    shape = equation.outputs[0].shape
    order = np.random.default_rng(0).permutation(int(np.prod(shape)))

    def permuted(array: Any) -> Any:
        return array.reshape(-1)[order].reshape(shape) if array.shape == shape else array

    for one, other in zip(equation.evaluate(*map(permuted, operands)), equation.evaluate(*operands), strict=True):
        np.testing.assert_allclose(one, permuted(other), rtol=1e-14)


@pytest.mark.parametrize("name", [name for name, traits in TRAITS.items() if traits.has_one_dtype and name in CALLS])
def test_one_dtype(name: str):
    equation, operands = equation_of(name)
    assert len({operand.dtype for operand in operands} | {value.dtype for value in equation.outputs}) == 1


# JAX has no derivative of these in all of their operands.
WITHOUT_DERIVATIVE = {"clamp", "nextafter", "polygamma", "zeta", "regularized_incomplete_beta", "scatter-mul"}
WITH_DERIVATIVE = [
    name
    for name in CALLS
    if traits_of(name).linear is None and traits_of(name).kind in (*ELEMENT_BY_ELEMENT, Kind.REDUCE, Kind.SCATTER)
    if name not in WITHOUT_DERIVATIVE
] + sorted(FACTORS)


@pytest.mark.parametrize("name", WITH_DERIVATIVE)
def test_what_a_derivative_reads(name: str) -> None:
    """What the equations of the tangents read, but the one that computes the results."""
    equation, operands = equation_of(name)
    is_float = [jnp.issubdtype(value.dtype, jnp.inexact) for value in equation.outputs]
    places = [place for place, operand in enumerate(operands) if jnp.issubdtype(operand.dtype, jnp.inexact)]

    def derivative(primals: list[Any], tangents: list[Any]) -> Any:
        def function(*some: Any) -> Any:
            given = dict(zip(places, some, strict=True))
            return equation.evaluate(*(given.get(place, operand) for place, operand in enumerate(primals)))

        results, dots = jax.jvp(function, tuple(primals[place] for place in places), tuple(tangents))
        return *results, *compress(dots, is_float)

    jaxpr = jax.make_jaxpr(derivative)(operands, [operands[place] for place in places]).jaxpr
    results, tangents = jaxpr.outvars[: len(is_float)], jaxpr.outvars[len(is_float) :]
    read = {*tangents}
    for one in reversed([one for one in jaxpr.eqns if {*results}.isdisjoint(one.outvars)]):
        if not read.isdisjoint(one.outvars):
            read.update(atom for atom in one.invars if isinstance(atom, type(tangents[0])))
    of_operands, of_result = not read.isdisjoint(jaxpr.invars[: len(operands)]), not read.isdisjoint(results)
    expected = {(True, False): "operands", (False, True): "results", (True, True): "both"}
    # A derivative of zero reads nothing.
    assert equation.traits.derivative_reads == expected.get((of_operands, of_result), "operands")


def test_an_unknown_primitive_is_opaque():
    assert traits_of("a primitive of a user's").kind is Kind.OPAQUE
    assert traits_of("a primitive of a user's").linear_in([True]) is None
    assert not traits_of("a primitive of a user's").is_batchable
