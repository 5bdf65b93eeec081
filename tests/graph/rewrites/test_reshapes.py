"""remove_reshapes_for_dot() against the function itself, over many ways to reshape."""

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from rewriting import floats, operations


RANDOM = np.random.default_rng(3)


def check(function, *arguments):
    """The rewritten graph, after comparing its values and gradients."""
    graph = rs.graph.trace(function, *arguments)
    rewritten = rs.graph.remove_reshapes_for_dot(graph)

    def results(run):
        loss = lambda arguments: sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(run(*arguments)))  # noqa: E731
        return jax.jit(lambda arguments: (run(*arguments), jax.grad(loss)(arguments)))(arguments)

    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, 1e-5, 1e-5), results(rewritten.to_cell()), results(function)
    )
    return rewritten


def test_a_product_over_merged_rows_reads_the_rows_as_they_are():
    def dense(x, w):
        return jnp.tanh(jnp.reshape(x.reshape(6, 4) @ w, (2, 3, 5)))

    assert operations(check(dense, floats(2, 3, 4), floats(4, 5))) == ["dot_general", "tanh"]


def test_both_sides_merged_alike_need_no_reshape():
    def merged(x, w):
        return x.reshape(2, 12) @ w.reshape(12, 5)

    assert operations(check(merged, floats(2, 3, 4), floats(3, 4, 5))) == ["dot_general"]
    assert operations(check(merged, floats(2, 3, 4), floats(4, 3, 5))) == ["reshape", "reshape", "dot_general"]


def test_batches_keep_their_axes():
    def batched(x, w):
        return jnp.einsum("bij,bjk->bik", x.reshape(6, 2, 4), w.reshape(6, 4, 5)).reshape(2, 3, 2, 5)

    assert operations(check(batched, floats(2, 3, 2, 4), floats(2, 3, 4, 5))) == ["dot_general"]


def test_axes_of_size_one_come_and_go():
    def squeezed(x, w):
        return jnp.sin(jnp.expand_dims(jnp.squeeze(x, 1) @ w, 1))

    def expanded(x, w):
        return jnp.sin((x[None, :] @ w)[0])

    assert operations(check(squeezed, floats(2, 1, 4), floats(4, 5))) == ["dot_general", "sin"]
    assert operations(check(expanded, floats(4), floats(4, 5))) == ["dot_general", "sin"]


def test_a_result_that_something_else_reads_keeps_its_shape():
    def function(x, w):
        product = x.reshape(6, 4) @ w
        return product.reshape(2, 3, 5), jnp.sin(product)

    assert operations(check(function, floats(2, 3, 4), floats(4, 5))).count("reshape") == 2
    returned = check(lambda x, w: x.reshape(6, 4) @ w, floats(2, 3, 4), floats(4, 5))
    assert operations(returned) == ["reshape", "dot_general"]


def test_a_reshape_that_something_else_reads_stays():
    def function(x, w):
        rows = x.reshape(6, 4)
        return (rows @ w).reshape(2, 3, 5), jnp.sin(rows)

    assert sorted(operations(check(function, floats(2, 3, 4), floats(4, 5)))) == ["dot_general", "reshape", "sin"]


def test_labeled_values_and_broadcasts_that_copy_stay():
    def labeled(x, w):
        return (rs.name(x.reshape(6, 4), "rows") @ w).reshape(2, 3, 5)

    def copied(x, w):
        return (jnp.broadcast_to(x, (3, 4)) @ w).reshape(3, 1, 5)

    assert "reshape" in operations(check(labeled, floats(2, 3, 4), floats(4, 5)))
    fused = rs.graph.fuse_names(rs.graph.trace(labeled, floats(2, 3, 4), floats(4, 5)))
    assert [*rs.graph.remove_reshapes_for_dot(fused).labels.values()] == [("rows",)]
    assert "broadcast_in_dim" in operations(check(copied, floats(1, 4), floats(4, 5)))


@pytest.mark.parametrize("length", [31, 1_000])
def test_a_chain_of_any_length_is_found(length):
    """detectron2 looks 15 operations back from the first reader, so in longer nets it finds nothing."""

    def function(x, w):
        rows = x
        for _ in range(length):
            rows = jnp.reshape(rows, (6, 4) if rows.ndim == 3 else (2, 3, 4))
            x = x * 1.5
        product = rows.reshape(6, 4) @ w
        for _ in range(length):
            product = jnp.reshape(product, (2, 15) if product.shape != (2, 15) else (6, 5))
        return product.reshape(2, 3, 5), x

    graph = rs.graph.remove_reshapes_for_dot(rs.graph.trace(function, floats(2, 3, 4), floats(4, 5)))
    assert operations(graph) == ["mul"] * length + ["dot_general"]


def refined(shape):
    """A random shape with the same elements: axes merged, split and of size one."""
    sizes = [prime for size in shape for prime in ([2, 2] if size == 4 else [2, 3] if size == 6 else [size])]
    cuts = [0, *(index for index in range(1, len(sizes)) if RANDOM.random() < 0.6), len(sizes)]
    merged = [int(np.prod(sizes[begin:end], dtype=int)) for begin, end in pairwise(cuts)]
    return [size for each in merged for size in ([1, each] if RANDOM.random() < 0.2 else [each])]


def test_random_reshapes_leave_the_function_the_same():
    removed, cases = 0, []
    for _ in range(40):
        left, right = [4, 6, 3], [3, 4, 2]
        after = refined([4, 6, 4, 2])

        def function(x, w, after=after, left=left, right=right):
            return jnp.tensordot(x.reshape(left), w.reshape(right), 1).reshape(after) * 2

        arguments = floats(*refined(left)), floats(*refined(right))
        graph = rs.graph.trace(function, *arguments)
        rewritten = rs.graph.remove_reshapes_for_dot(graph)
        assert len(rewritten.nodes) <= len(graph.nodes)
        removed += len(graph.nodes) - len(rewritten.nodes)
        cases.append((function, rewritten.to_cell(), arguments))
    assert removed > 20
    results = jax.jit(lambda: [(run(*given), other(*given)) for run, other, given in cases])()
    for expected, actual in results:
        np.testing.assert_allclose(actual, expected, 1e-5, 1e-5)
