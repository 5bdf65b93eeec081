"""replace(): a user's function in place of some nodes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from rnnscan.graph import Name


pytestmark = pytest.mark.typed


def swish(x):
    middle = x / (1 + jnp.exp(-x))
    return jnp.tanh(middle) * middle + jnp.sin(x)


@pytest.fixture
def graph():
    return rs.graph.trace(swish, jnp.ones(3))


def test_a_part_is_replaced_and_its_readers_read_the_new_value(graph):
    ids = graph.path([], ["div.1"])
    weight = jnp.full(3, 2.0)
    replaced = rs.graph.replace(graph, ids, lambda x: x * jax.nn.sigmoid(x * weight / 2))
    assert "exp" not in [node.operation for node in replaced.nodes]
    assert Name("div", 1) in replaced.producers()
    assert [str(one.name) for one in replaced.captured()] == ["captured[0]"]
    x = jnp.array([0.3, -2.0, 1.0])
    for run in (lambda run: run(x), lambda run: jax.grad(lambda x: run(x).sum())(x)):
        np.testing.assert_allclose(run(replaced.to_cell()), run(swish), rtol=1e-5, atol=1e-6)
    again = rs.graph.replace(replaced, replaced.path(["div.1"], ["tanh.1"]), lambda x: jnp.tanh(x) * weight / 2)
    assert [str(one.name) for one in again.captured()] == ["captured[0]", "captured[1]"]
    np.testing.assert_allclose(again.to_cell()(x), swish(x), rtol=1e-5)


def test_values_in_between_are_computed_before_or_after():
    def function(x):
        first = jnp.sin(x)
        between = jnp.cos(first) + jnp.tanh(x)
        second = jnp.exp(x)
        return first * second + between

    graph = rs.graph.trace(function, 0.7)
    ids = [node.id for node in graph.nodes if node.operation in ("sin", "exp")]
    replaced = rs.graph.replace(graph, ids, lambda x: (jnp.sin(x), jnp.exp(x)))
    assert replaced.to_cell()(0.7) == function(jnp.float32(0.7))


def test_a_value_that_leaves_and_comes_back_is_an_error(graph):
    ids = [node.id for node in graph.nodes if node.operation in ("div", "mul")]
    with pytest.raises(ValueError, match=r"got node \d, which is not among them and leads back to node \d"):
        rs.graph.replace(graph, ids, lambda *values: values)


def test_a_result_of_another_type_or_number_is_an_error(graph):
    ids = graph.path([], ["div.1"])
    with pytest.raises(TypeError, match=r"the result for 'div.1' must be float32\[3\]; got float32\[1\] from .*lambda"):
        rs.graph.replace(graph, ids, lambda x: x[:1])
    with pytest.raises(TypeError, match=r"must return 1 results, for 'div.1'; got 2"):
        rs.graph.replace(graph, ids, lambda x: (x, x))
    with pytest.raises(ValueError, match="whose results nothing reads"):
        rs.graph.replace(graph, [], lambda: None)


def test_numbers_and_arguments_can_be_results():
    graph = rs.graph.trace(lambda x: jnp.sin(x) * jnp.cos(x), jnp.float32(1.0))
    number = rs.graph.replace(graph, [0], lambda x: np.float32(2.0))
    assert number.to_cell()(0.0) == 2.0
    passed = rs.graph.replace(graph, [0, 1], lambda x: (x, x))
    assert [node.operation for node in passed.nodes] == ["mul"]
    assert passed.to_cell()(3.0) == 9.0
