"""replace() and matches() with patterns: what matches, what does not, and why not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from rewriting import floats, operations
from rnnscan.graph import Name


pytestmark = pytest.mark.typed


def dense(x, w):
    return jnp.tanh(x @ w)


def test_every_match_is_replaced_whatever_its_shape_and_dtype():
    """Also where the values have another rank: the pattern is traced for each place, on the types there."""

    def function(x, w, v, table):
        x = dense(x, w)
        with jax.named_scope("low"):
            low = dense(x.astype(jnp.bfloat16), v)
        return dense(dense(x, w), w), low, dense(table, w)

    def by_exp(x, w):
        return 1 - 2 / (1 + jnp.exp(2 * (x @ w)))

    arguments = floats(2, 3), floats(3, 3), floats(3, 5, dtype=jnp.bfloat16), floats(4, 2, 3)
    graph = rs.graph.trace(function, *arguments)
    found = rs.graph.matches(graph, dense)
    assert [str(match.inputs[1]) for match in found] == ["w", "v", "w", "w", "w"]
    assert [match.ids for match in found] == [(0, 1), (3, 4), (5, 6), (7, 8), (9, 10)]
    replaced = rs.graph.replace(graph, dense, by_exp)
    assert "tanh" not in operations(replaced)
    assert {equation.scope for equation in replaced.program.equations} >= {"low"}
    assert replaced.outputs["result[0]"] == graph.outputs["result[0]"]

    def results(run):
        loss = lambda *arguments: sum(jnp.sum(leaf.astype(jnp.float32) ** 2) for leaf in run(*arguments))  # noqa: E731
        return jax.jit(lambda *arguments: (run(*arguments), jax.grad(loss, (0, 1, 3))(*arguments)))(*arguments)

    for one, other in zip(*map(jax.tree.leaves, (results(replaced.to_cell()), results(function))), strict=True):
        np.testing.assert_allclose(np.float32(one), np.float32(other), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(
    ("function", "pattern", "count"),
    [
        (lambda x, y: x * 2.0 + y, lambda a, b: a + b * 2.0, 1),  # Sums have either order,
        (lambda x, y: x - 2.0 * y, lambda a, b: b * 2.0 - a, 0),  # differences have one,
        (lambda x, y: (y + jnp.sin(x)) + y * x, lambda a, b, c: c * a + (jnp.sin(a) + b), 1),  # and sums of sums more.
        (lambda x, y: jnp.sin(x) * jnp.sin(y), lambda a: jnp.sin(a) * jnp.sin(a), 0),  # One argument is one value.
        (lambda x, y: jnp.sin(x) * jnp.sin(x), lambda a, b: jnp.sin(a) * jnp.sin(b), 1),
        (lambda x, y: x * 2.0 + y * 3.0, lambda a: a * 3.0, 1),  # Numbers are compared by value,
        (lambda x, y: x * 2.0 + y * 3.0, lambda a, b: a * b, 2),  # and an argument may be one.
        (lambda x, y: x.sum(0) + y.sum(1), lambda a: jnp.sum(a, axis=1), 1),  # Parameters are compared,
        (lambda x, y: jax.nn.relu(x) + jax.nn.relu6(y), jax.nn.relu, 1),  # and the functions that have rules.
        (lambda x, y: jnp.sin(jnp.sin(jnp.sin(x))), lambda a: jnp.sin(jnp.sin(a)), 1),  # Matches do not overlap.
        (lambda x, y: jnp.split(x, 3)[1] + y, lambda a: jnp.split(a, 3)[1], 1),  # So are the positions of results.
        (lambda x, y: jnp.split(x, 3)[1] + y, lambda a: jnp.split(a, 3)[0], 0),
    ],
)
def test_what_matches(function, pattern, count):
    x = floats(3, 3)
    graph = rs.graph.trace(function, x, floats(3, 3))
    assert len(rs.graph.matches(graph, pattern)) == count
    replaced = rs.graph.replace(graph, pattern, pattern)
    assert (replaced is graph) == (count == 0)
    np.testing.assert_allclose(replaced.to_cell()(x, 2 * x), function(x, 2 * x), rtol=1e-6)


def test_a_value_in_between_that_has_another_reader_is_no_match():
    def returned(x, w):
        product = x @ w
        return jnp.tanh(product), product

    def read_again(x, w):
        product = x @ w
        return jnp.tanh(product), jnp.sin(product)

    def labeled(x, w):
        return jnp.tanh(rs.name(x @ w, "gates"))

    arguments = floats(2, 3), floats(3, 3)
    for function in (returned, read_again):
        graph = rs.graph.trace(function, *arguments)
        assert rs.graph.replace(graph, dense, lambda x, w: x) is graph
        # What the pattern returns may be read.
        [match] = rs.graph.matches(graph, returned)
        assert match.outputs == (graph.outputs["result[0]"], Name("dot_general", 1)) or function is returned
        doubled = rs.graph.replace(graph, returned, lambda x, w: (jnp.tanh(x @ w), 0.5 * (x @ (2 * w))))
        assert operations(doubled).count("dot_general") == 2
        for one, other in zip(doubled.to_cell()(*arguments), function(*arguments), strict=True):
            np.testing.assert_allclose(one, other, 1e-5, 1e-6)
    graph = rs.graph.trace(labeled, *arguments)
    assert rs.graph.matches(graph, dense) == rs.graph.matches(rs.graph.fuse_names(graph), dense) == []
    assert len(rs.graph.matches(graph, labeled)) == 1


def test_a_value_that_leads_back_into_the_match_is_no_match():
    """The replacement would need its own result."""

    def function(x):
        inner = jnp.sin(x)
        return inner * jnp.exp(inner)

    def pattern(a, b):
        inner = jnp.sin(a)
        return inner * b, inner

    graph = rs.graph.trace(function, floats(3))
    assert rs.graph.matches(graph, pattern) == []
    assert len(rs.graph.matches(rs.graph.trace(lambda x, y: (pattern(x, y)[0], x), 1.0, 2.0), pattern)) == 1


def test_matches_feed_each_other_and_a_replacement_may_be_an_argument():
    def function(x):
        for _ in range(4):
            x = jnp.sin(jnp.negative(jnp.negative(x)))
        return x

    graph = rs.graph.trace(function, floats(3))
    replaced = rs.graph.replace(graph, lambda x: jnp.negative(jnp.negative(x)), lambda x: x)
    assert operations(replaced) == ["sin"] * 4
    number = rs.graph.replace(graph, lambda x: jnp.negative(jnp.negative(x)), lambda x: np.ones(3, np.float32))
    assert operations(rs.graph.remove_dead_ends(number)) == ["sin"]


def test_arrays_of_the_pattern_match_equal_ones_and_those_of_the_replacement_are_captured():
    table, other = np.arange(3.0, dtype=np.float32), np.ones(3, np.float32)
    graph = rs.graph.trace(lambda x: (x * table) + x * other, floats(3))
    [match] = rs.graph.matches(graph, lambda x: x * np.arange(3.0, dtype=np.float32))
    weight = floats(3)
    replaced = rs.graph.replace(graph, lambda x: x * table, lambda x: x * weight)
    assert [*map(str, replaced.inputs)] == ["x", "captured[0]", "captured[1]", "captured[2]"]
    x = floats(3)
    np.testing.assert_allclose(replaced.to_cell()(x), x * weight + x, rtol=1e-6)
    assert match.ids == (0,)


def test_an_example_of_the_types_is_for_patterns_that_need_certain_sizes():
    def gated(z, c):
        i, f = jnp.split(z, [2], axis=-1)
        return jax.nn.sigmoid(i) * c + f

    graph = rs.graph.trace(gated, floats(5, 4), floats(5, 2))
    assert len(rs.graph.matches(graph, gated)) == 1  # On the types of the graph's own values, which are few.
    other = rs.graph.trace(gated, floats(7, 4), floats(7, 2))
    assert len(rs.graph.matches(other, gated, types=(np.ones((1, 4)), jax.ShapeDtypeStruct((1, 2), "float32")))) == 1
    with pytest.raises(ValueError, match="must have ndim at least 1"):
        rs.graph.matches(graph, dense, types=(1.0, 2.0))
    with pytest.raises(TypeError, match="`types` must have a type for each of the 2 arguments of gated; got 1"):
        rs.graph.matches(graph, gated, types=[1.0])
    several = rs.graph.trace(lambda *xs: sum(jnp.sum(x) for x in xs), *(floats(*[1] * rank) for rank in range(5)))
    with pytest.raises(ValueError, match=r"at most 500; got 5 in the graph for each of 5 arguments. Pass `types`"):
        rs.graph.matches(several, lambda a, b, c, d, e: a + b + c + d + e)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        (lambda x: x, "Every result of a pattern must be the result of an operation"),
        (lambda x: (jnp.sin(x), jnp.cos(x)), "Every operation of a pattern must lead to its first result"),
        (lambda x, y: jnp.sin(x), "A pattern must read all its arguments; it does not read"),
        (lambda x: 1 / 0, "The last error: division by zero"),
    ],
)
def test_what_is_no_pattern_is_an_error(pattern, message):
    graph = rs.graph.trace(lambda x: jnp.sin(x) * jnp.cos(x), 1.0)
    with pytest.raises(ValueError, match=message):
        rs.graph.replace(graph, pattern, pattern)


def test_a_replacement_of_another_type_is_an_error():
    graph = rs.graph.trace(lambda x, w: (dense(x, w), x), floats(2, 3), floats(3, 4))
    with pytest.raises(
        TypeError, match=r"the result for 'result\[0\].1' must be float32\[2,4\]; got bfloat16\[2,4\] from"
    ):
        rs.graph.replace(graph, dense, lambda x, w: dense(x, w).astype(jnp.bfloat16))
    with pytest.raises(TypeError, match=r"must return 1 results, for 'result\[0\].1'; got 2 from"):
        rs.graph.replace(graph, dense, lambda x, w: (x, w))


@pytest.mark.bad_input
def test_other_arguments_are_errors():
    graph = rs.graph.trace(jnp.sin, 1.0)
    with pytest.raises(TypeError, match=r"must have positional arguments alone, .*; got <lambda> of \(\*values\)"):
        rs.graph.replace(graph, lambda *values: values[0], jnp.sin)
    with pytest.raises(TypeError, match="the pattern must be a function; got list"):
        rs.graph.matches(graph, [0])
    with pytest.raises(TypeError, match="must be a function, or the ids of nodes; got int"):
        rs.graph.replace(graph, 0, jnp.sin)
    with pytest.raises(TypeError, match="`types` is for patterns; got ids of nodes as well"):
        rs.graph.replace(graph, [0], jnp.sin, types=[1.0])
