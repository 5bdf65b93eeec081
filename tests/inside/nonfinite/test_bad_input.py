"""What `first_nonfinite` refuses, before it computes anything."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest

import rnnscan as rs
from rnnscan import cells


pytestmark = pytest.mark.bad_input

GRU = cells.GRU(4)
XS = jnp.ones((6, 3, 5))
PARAMS = GRU.init(jax.random.key(0), 5)
CARRY = GRU.initial_carry(XS[0])
NET = rs.layer(GRU)


def computes(*arguments):
    """A function that only a trace may call."""
    assert any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(arguments)), "it computes"
    return "no array"


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: rs.first_nonfinite(3), TypeError, r"must be a function of arrays, a cell or a net; got int\. Write"),
        (
            lambda: rs.first_nonfinite(jnp.sin, "text"),
            TypeError,
            r"arguments must be pytrees of arrays; got str at x\. Bind other arguments with functools\.partial",
        ),
        (
            lambda: rs.first_nonfinite(lambda params: params, {"w": object()}),
            TypeError,
            r"got object at params\['w'\]",
        ),
        (
            lambda: rs.first_nonfinite(lambda x: x > 0, XS),
            TypeError,
            r"must return floating-point arrays; got bool\[6,3,5\]\. Return the values to look at",
        ),
        (lambda: rs.first_nonfinite(lambda x: None, XS), TypeError, r"must return floating-point arrays; got None"),
        (
            lambda: rs.first_nonfinite(GRU, PARAMS, CARRY, XS, seqlengths=jnp.ones(3)),
            TypeError,
            r"a cell takes .* the options of rnnscan\.scan; got 'seqlengths'\. Did you mean 'seq_lengths'\?",
        ),
        (
            lambda: rs.first_nonfinite(NET, PARAMS, XS, unroll=2),
            TypeError,
            r"a net takes .* the options of its call; got 'unroll'",
        ),
        (
            lambda: rs.first_nonfinite(GRU, PARAMS, CARRY),
            TypeError,
            r"a cell takes \(cell, params, carry, xs\), and options by name; got 2 arguments",
        ),
        (
            lambda: rs.first_nonfinite(NET, PARAMS, XS, CARRY),
            TypeError,
            r"a net takes \(net, params, xs, \*, carry=None\), and options by name; got 3 arguments",
        ),
        (lambda: rs.first_nonfinite(NET, PARAMS, XS, xs=XS), TypeError, r"got xs twice\. Pass each once"),
        (
            lambda: rs.first_nonfinite(GRU, PARAMS, CARRY, XS, loss=3),
            TypeError,
            r"`loss` must be a function of the results, loss\(\(carry, ys\)\); got 3",
        ),
        (
            lambda: rs.first_nonfinite(GRU, PARAMS, CARRY, XS, loss=lambda results: results[1]),
            TypeError,
            r"`loss` must return a floating-point scalar; got float32\[6,3,4\]\. Sum it or take its mean",
        ),
        (
            lambda: rs.first_nonfinite(GRU, PARAMS, CARRY, XS, memory=rs.Memory(recompute=("gate",))),
            ValueError,
            r"Did you mean 'gates'\?",
        ),
        (
            lambda: rs.first_nonfinite(
                rs.bidirectional(GRU, GRU),
                {"forward": PARAMS, "backward": PARAMS},
                XS,
                carry=(CARRY, CARRY),
                reset=jnp.zeros((6, 3)),
            ),
            (TypeError, ValueError),
            r"reset",
        ),
    ],
)
def test_bad_input_is_an_error_that_says_what_to_do(call, error, message):
    with pytest.raises(error, match=message):
        call()


def by_rs_scan(params, carry, xs):
    return rs.scan(lambda _, carry, x: (carry + x, carry), params, carry, xs)


def by_lax_scan(params, carry, xs):
    return jax.lax.scan(lambda carry, x: (carry + x, carry), carry, xs)


def update(params, state, batch):
    return state + batch.mean(), state


@pytest.mark.parametrize("function", [by_rs_scan, by_lax_scan, update])
def test_a_function_that_may_be_a_cell_and_may_take_all_steps_is_an_error(function):
    arguments = None, jnp.zeros((3, 2)), jnp.log(jnp.zeros((5, 3, 2)))
    with pytest.raises(ValueError, match=rf"`{function.__name__}` must be a cell or .*got a function that can be both"):
        rs.first_nonfinite(function, *arguments)
    # What the message says works.
    assert rs.first_nonfinite(lambda arguments: function(*arguments), arguments).origin == "arguments[2]"
    assert rs.first_nonfinite(partial(rs.scan, function), *arguments).origin == "xs"


def test_nothing_is_computed_before_the_results_are_known_to_be_arrays():
    with pytest.raises(TypeError):
        rs.first_nonfinite(computes, XS)


def test_the_results_are_asked_for_again_with_other_arguments():
    twice = jax.jit(lambda leaf: 2 * leaf)
    assert rs.first_nonfinite(twice, XS) is None
    with pytest.raises(TypeError, match=r"must return floating-point arrays; got int32\[3\]"):
        rs.first_nonfinite(twice, jnp.arange(3))


def test_a_function_that_is_known_is_called_once_for_each_run():
    calls = []

    def count(leaf):
        calls.append(leaf)
        return leaf

    for _ in range(3):
        assert rs.first_nonfinite(count, XS) is None
    assert len(calls) == 4  # The first run traces it.
