"""Rewrites go into the bodies of loops, branches and functions with rules of their own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import remat3
import rnnscan as rs


pytestmark = pytest.mark.typed

RANDOM = np.random.default_rng(2)
ARGUMENTS = tuple(jnp.asarray(RANDOM.normal(size=(2, 2)), jnp.float32) for _ in range(2))


def work(x, w):
    """Something for each rewrite."""
    jnp.cos(x)
    return jnp.tanh((x.T.T[None][0] @ w) * jnp.sin(x) + jnp.sin(x))


def in_scan(x, w):
    return jax.lax.scan(lambda x, _: (work(x, w), jnp.exp(x)), x, None, length=3)[0]


def in_while(x, w):
    state = jax.lax.while_loop(lambda s: s[1] < 2, lambda s: (work(s[0], w), s[1] + 1, s[2] * 2.0), (x, 0, w))
    return jax.lax.stop_gradient(state[0]) + x


def in_cond(x, w):
    return jax.lax.cond(x.sum() > 9, lambda x, w: (x, w), lambda x, w: (work(x, w), w + x), x, w)[0]


def in_checkpoint(x, w):
    return jax.lax.scan(lambda x, _: (jax.checkpoint(work)(x, w), None), x, None, length=2)[0]


@jax.custom_jvp
def ruled(x, w):
    return work(x, w)


ruled.defjvp(lambda primals, tangents: (work(*primals), tangents[0] * jnp.cos(primals[0])))


@jax.custom_vjp
def ruled_backward(x, w):
    return work(x, w)


ruled_backward.defvjp(lambda x, w: (work(x, w), (x, w)), lambda kept, given: (given * jnp.sin(kept[0]), kept[1]))

# JAX's new remat hides what jax.checkpoint runs.
FUNCTIONS = (in_scan, in_while, in_cond, *(() if remat3.IS_ON else (in_checkpoint,)), ruled, ruled_backward)


def everything(graph):
    """The names of the operations of a graph and of all bodies in it."""
    for node in graph.nodes:
        yield node.operation
        for body in rs.graph.bodies(graph, node.id).values():
            yield from everything(body)


def assert_same(graph, function):
    def results(run):
        return jax.jit(jax.value_and_grad(lambda *arguments: jnp.sum(jnp.sin(run(*arguments))), (0, 1)))(*ARGUMENTS)

    for one, other in zip(*map(jax.tree.leaves, (results(graph.to_cell()), results(function))), strict=True):
        np.testing.assert_allclose(one, other, 1e-5, 1e-6)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_every_rewrite_goes_into_bodies(function):
    graph = rs.graph.trace(function, *ARGUMENTS)
    before = list(everything(graph))
    assert {"cos", "sin", "transpose"} <= set(before)
    for rewrite in (rs.graph.fuse_round_trips, rs.graph.merge_common, rs.graph.remove_reshapes_for_dot):
        assert len(list(everything(rewrite(graph)))) < len(list(everything(graph)))
        graph = rewrite(graph)
    graph = rs.graph.remove_dead_ends(graph)
    left = list(everything(graph))
    assert left.count("sin") == before.count("sin") / 2 == 1
    assert not {"cos", "exp", "transpose", "reshape", "broadcast_in_dim", "squeeze"} & set(left)
    assert rs.graph.remove_dead_ends(graph) == graph
    assert_same(graph, function)


def test_a_pattern_is_replaced_in_bodies_save_those_with_rules():
    for function in FUNCTIONS:
        graph = rs.graph.trace(function, *ARGUMENTS)
        replaced = rs.graph.replace(graph, lambda x, y, z: x * y + z, lambda x, y, z: z + y * x)
        assert (replaced is graph) == (function in (ruled, ruled_backward))
        if function in (in_scan, in_cond):
            assert_same(replaced, function)
    graph = rs.graph.trace(in_scan, *ARGUMENTS)
    table = jnp.ones((2, 2))
    assert rs.graph.replace(graph, lambda x: jnp.sin(x), lambda x: table * jnp.sin(x)) == graph
    assert rs.graph.matches(graph, lambda x: jnp.sin(x)) == []
    assert len(rs.graph.matches(rs.graph.bodies(graph, 0)["jaxpr"], lambda x: jnp.sin(x))) == 2


def test_loops_and_branches_lose_results_that_nothing_reads():
    """Also carry leaves, with the initial values that only they need; and what a leaf that is read needs stays."""

    def scanned(x, w):
        def body(carry, row):
            first, second, third, dead = carry
            new = first @ w + row[0], second + first, third * 2.0, jnp.cos(dead) * row[1]
            return new, (new[0], new[1].sum(), jnp.exp(third))

        rows = (jnp.stack([x, w]), jnp.stack([w, w]))
        carry, ys = jax.lax.scan(body, (x, x, jnp.sin(x), jnp.cos(w)), rows, reverse=True)
        return carry[1], ys[0]

    def looped(x, w):
        def body(state):
            return state[0] + 1, state[1] + w, state[2] * state[1], jnp.sin(state[3])

        return jax.lax.while_loop(lambda state: state[0] < 4, body, (0, x, x, jnp.cos(x)))[2]

    def branched(x, w):
        return jax.lax.switch(2, [lambda x, w, v: (x, w, v), lambda x, w, v: (w, x, v * w)] * 2, x, w, jnp.exp(x))[0]

    def with_effect(x, w):
        def body(state, _):
            jax.debug.callback(lambda _: None, state[1])
            return (state[0] + w, state[1] * 2.0), None

        return jax.lax.scan(body, (x, x), None, length=2)[0][0]

    def sizes(function):
        graph = rs.graph.remove_dead_ends(rs.graph.trace(function, *ARGUMENTS))
        assert rs.graph.remove_dead_ends(graph) == graph
        for run in (lambda run: run(*ARGUMENTS), lambda run: jax.jvp(run, ARGUMENTS, ARGUMENTS)[1]):
            jax.tree.map(np.testing.assert_array_equal, run(graph.to_cell()), run(function))
        [loop] = [node for node in graph.nodes if node.operation in ("scan", "while", "cond")]
        bodies = rs.graph.bodies(graph, loop.id)
        return len(loop.inputs), len(loop.outputs), [len(body.nodes) for body in bodies.values()], graph

    *counts, graph = sizes(scanned)
    assert counts == [4, 3, [3]]  # w, two carry leaves and the first rows.
    assert not {"cos", "sin", "exp"} & set(everything(graph))
    *counts, graph = sizes(looped)
    assert counts == [4, 3, [1, 3]]
    assert "cos" not in everything(graph)
    *counts, graph = sizes(branched)
    assert counts == [3, 1, [0, 0, 0, 0]]
    assert "exp" not in everything(graph)
    assert sizes(with_effect)[1] == 2


@pytest.mark.skipif(remat3.IS_ON, reason="JAX's new remat hides what jax.checkpoint runs")
def test_what_checkpoint_saves_in_a_loop_stays_the_users_choice():
    graph = rs.graph.trace(in_checkpoint, *ARGUMENTS)
    rewritten = rs.graph.remove_dead_ends(rs.graph.merge_common(graph))
    assert [name for name in everything(rewritten) if name in ("checkpoint", "remat2")] == ["remat2"]


def test_bodies_are_graphs_by_parameter():
    graph = rs.graph.trace(in_cond, *ARGUMENTS)
    cond = next(node for node in graph.nodes if node.operation == "cond")
    bodies = rs.graph.bodies(graph, cond.id)
    assert list(bodies) == ["branches[0]", "branches[1]"]
    np.testing.assert_allclose(bodies["branches[1]"].to_cell()(*ARGUMENTS)[0], ARGUMENTS[0], rtol=1e-6)
    assert rs.graph.bodies(graph, 0) == {}
    with pytest.raises(ValueError, match=r"graph\.bodies: the ids of nodes go from 0"):
        rs.graph.bodies(graph, 99)
