"""The claims of linearity in the table of primitives, for every dtype that a primitive takes."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import rnnscan as rs
from primitives import CALLS, equation_of
from rnnscan.ir.program import Equation, Value
from rnnscan.ir.traits import TRAITS, Kind
from tiers import combinations


pytestmark = pytest.mark.usefixtures("x64")

DTYPES = ("int4", "int8", "int32", "uint32", "bfloat16", "float32", "complex64", "bool")
CLAIMING = [name for name, traits in TRAITS.items() if (traits.linear or traits.is_bilinear) and name in CALLS]
# Whatever integers do modulo 2^n, these do. A quotient is rounded.
RING = {"add", "add_any", "sub", "neg", "mul", "dot_general", "reduce_sum", "cumsum", "select_n", "scatter-add"}


def random_like(array: Any, dtype: Any, random: np.random.Generator) -> Any:
    if jnp.issubdtype(dtype, jnp.inexact):
        values = random.uniform(-1, 1, array.shape)
        imaginary = 1j * random.uniform(-1, 1, array.shape) if jnp.issubdtype(dtype, jnp.complexfloating) else 0
        return jnp.asarray(values + imaginary, dtype)
    low, high = (0, 2) if dtype == "bool" else (int(jnp.iinfo(dtype).min), int(jnp.iinfo(dtype).max))
    return jnp.asarray(random.integers(low, high, array.shape, endpoint=dtype != "bool").astype(dtype))


def of_dtypes(name: str) -> Iterator[tuple[Equation, list[Any], list[int]]]:
    """The equations of a primitive for operands of each dtype that it takes, operands, and the places of those."""
    equation, operands = equation_of(name)
    traits = TRAITS[name]
    candidates = range(len(operands)) if traits.is_bilinear else traits.linear_positions(len(operands))
    places = [place for place in candidates if jnp.issubdtype(operands[place].dtype, jnp.inexact)]
    random = np.random.default_rng(0)
    results = ("new_dtype", "preferred_element_type")
    wanted = next((result for result in results if result in equation.params), None)
    for dtype in DTYPES:
        # A cast, and a product that accumulates in a wider dtype.
        for result in DTYPES if wanted else (dtype,):
            params = {**equation.params, wanted: jnp.dtype(result)} if wanted else equation.params
            cast = [random_like(x, dtype, random) if jnp.issubdtype(x.dtype, jnp.inexact) else x for x in operands]
            changed = replace(equation, params={**params})
            try:
                if params.get("update_jaxpr") is not None:
                    number = jax.ShapeDtypeStruct((), dtype)
                    changed.params["update_jaxpr"] = jax.make_jaxpr(lax.add)(number, number).jaxpr
                outputs = [jnp.asarray(leaf) for leaf in changed.evaluate(*cast)]
            except (TypeError, ValueError, NotImplementedError, jax.errors.JaxRuntimeError):
                continue
            inputs = tuple(Value(jax.typeof(leaf)) for leaf in cast)
            avals = tuple(Value(jax.typeof(leaf)) for leaf in outputs)
            yield replace(changed, inputs=inputs, outputs=avals), cast, places


def assert_equal(actual: Any, expected: Any, epsilon: float) -> None:
    for one, other in zip(actual, expected, strict=True):
        assert one.dtype == other.dtype
        if epsilon:
            np.testing.assert_allclose(*(np.asarray(leaf, complex) for leaf in (one, other)), atol=64 * epsilon)
        else:
            np.testing.assert_array_equal(*(np.asarray(leaf, "int64") for leaf in (one, other)))


def epsilon_of(values: Any) -> float:
    return max((float(jnp.finfo(v.dtype).eps) for v in values if jnp.issubdtype(v.dtype, jnp.inexact)), default=0)


@pytest.mark.parametrize("name", CLAIMING)
def test_every_claim_holds_for_every_dtype(name: str):
    """f(a + b) = f(a) + f(b), and f(k a) = k f(a): exactly for integers, up to rounding for others."""
    claimed: set[str] = set()
    for equation, operands, places in of_dtypes(name):
        traits, random = equation.traits, np.random.default_rng(1)
        if not (traits.linear or traits.is_bilinear):
            continue
        epsilon = epsilon_of([*equation.outputs, *(equation.inputs[place] for place in places)])
        claimed.add(str(equation.outputs[0].dtype))
        for together in [[place] for place in places] if traits.is_bilinear else [places]:
            factor = random_like(jnp.zeros(()), equation.inputs[together[0]].dtype, random)
            others = [random_like(x, x.dtype, random) if place in together else x for place, x in enumerate(operands)]
            both, scaled = (
                [change(place, x) if place in together else x for place, x in enumerate(operands)]
                for change in (lambda place, x: x + others[place], lambda _, x: (factor * x).astype(x.dtype))  # noqa: B023
            )
            first, second = equation.evaluate(*operands), equation.evaluate(*others)
            assert_equal(equation.evaluate(*both), [a + b for a, b in zip(first, second, strict=True)], epsilon)
            assert_equal(equation.evaluate(*scaled), [(factor * a).astype(a.dtype) for a in first], epsilon)
    assert claimed >= {"float32", "complex64"}
    assert name not in RING or claimed >= {"int32", "uint32"}
    assert "bool" not in claimed


def test_a_quotient_of_integers_and_a_cast_to_integers_are_not_linear():
    for name, params, dtypes in (
        ("div", {}, ("int32", "int32", "int32")),
        ("convert_element_type", {}, ("float32", "int32")),
        ("convert_element_type", {}, ("int32", "float32")),
        ("convert_element_type", {}, ("int8", "int32")),
        ("convert_element_type", {}, ("complex64", "float32")),
        ("dot_general", {}, ("int8", "int8", "int32")),
    ):
        *inputs, output = (Value(jax.ShapeDtypeStruct((2, 2), dtype)) for dtype in dtypes)
        traits = Equation(equation_of(name)[0].primitive, params, tuple(inputs), (output,)).traits
        assert traits.linear is None
        assert not traits.is_bilinear
        assert traits.kind is TRAITS[name].kind


STEPS = {
    "quotient": lambda c, x: lax.div(c, jnp.full_like(c, 2)) + x,
    "floor division": lambda c, x: c // 2,
    "sum and product that wrap around": lambda c, x: (3 * c - x) * (x + 1),
    "selected": lambda c, x: jnp.where(x % 3 == 0, x, -c),
    "cast": lambda c, x: (c.astype("float32") * 1.5).astype(c.dtype),
    "narrower": lambda c, x: (c.astype("int8") + x.astype("int8")).astype(c.dtype),
}


@pytest.mark.parametrize(
    ("step", "dtype", "options"),
    combinations(
        {name: name for name in STEPS},
        {name: name for name in ("int32", "uint8")},
        {"alone": {}, "Newton": {"parallel": rs.Newton()}},
    ),
)
def test_recurrences_of_integers_are_those_of_the_loop(step: str, dtype: str, options: dict[str, Any]):
    carry, xs = jnp.asarray([64, 200], dtype), jnp.arange(40).astype(dtype)[:, None] * jnp.asarray([1, 7], dtype)
    # A loop of floats beside it, because Newton's method refuses a step without.
    start = (carry, jnp.ones(2, "float32"))

    def cell(_: None, carry: Any, x: Any) -> Any:
        new = STEPS[step](carry[0], x), jnp.tanh(carry[1]) + 0.1
        return new, new

    expected = rs.scan(cell, None, start, xs, engine="lax")[1][0]
    with rs.tuned_for("gpu"):
        np.testing.assert_array_equal(rs.scan(cell, None, start, xs, **options)[1][0], expected)


@pytest.mark.parametrize(("step", "is_linear"), [("quotient", False), ("sum and product that wrap around", True)])
def test_integers_that_wrap_around_stay_an_associative_scan(step: str, is_linear: bool):
    xs = jnp.zeros((40, 4), "int32")
    with rs.tuned_for("gpu"):
        report = str(rs.explain(lambda _, c, x: (STEPS[step](c, x), c), None, xs[0], xs))
    assert ("as an associative scan" in report) == is_linear


def test_moves_of_keys_and_booleans_are_not_linear():
    assert {TRAITS[name].kind for name in ("reshape", "slice", "concatenate")} == {Kind.VIEW, Kind.PART, Kind.JOIN}
    key = Value(jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 4)))
    flags = Value(jax.ShapeDtypeStruct((4,), bool))
    for value in (key, flags):
        assert Equation(equation_of("rev")[0].primitive, {"dimensions": (0,)}, (value,), (value,)).traits.linear is None
