"""do_net(): a net under other names, and gradients summed over names that are bound several times."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from slow_reference import assert_close, loss


pytestmark = [pytest.mark.newest("loops that stop"), pytest.mark.usefixtures("x64"), pytest.mark.typed]


def net(params, left, right, scale=2.0):
    product = jnp.tanh(left @ params) * right
    return {"product": scale * product, "left": left + product}


BINDINGS = {"left": "a", "right": "b", "product": "c"}


def arguments():
    random = np.random.default_rng(0)
    normal = lambda *shape: jnp.asarray(random.normal(size=shape))  # noqa: E731
    return normal(3, 3), {"a": normal(2, 3), "b": normal(2, 3)}


def test_it_is_a_call_of_the_net():
    params, outer = arguments()
    given = {"left": outer["a"], "right": outer["b"]}
    expected = net(params, **given)
    outputs = rs.do_net(net, BINDINGS)(params, **outer)
    assert_close(outputs, {"c": expected["product"], "a": expected["left"]})
    bound_scale = rs.do_net(net, {**BINDINGS, "scale": "s"})
    assert_close(bound_scale(params, s=0.3, **outer)["c"], net(params, scale=0.3, **given)["product"])
    dropped = rs.do_net(lambda params, x: {"y": x, "z": x}, {"x": "a", "y": "b", "z": None})
    assert list(dropped(None, a=1.0)) == ["b"]


def test_a_dictionary_is_returned_updated():
    params, outer = arguments()
    step = rs.do_net(net, BINDINGS)
    updated = step(params, {**outer, "other": 7})
    assert list(updated) == ["a", "b", "other", "c"]
    assert updated["other"] == 7
    assert_close({name: updated[name] for name in "ac"}, step(params, **outer))


def test_the_gradient_sums_over_the_inputs_that_an_outer_value_is_bound_to():
    params, outer = arguments()
    twice = rs.do_net(net, {"left": "a", "right": "a", "scale": "s", "product": "c"})
    given = {"a": outer["a"], "s": jnp.array(0.7)}

    def by_hand(params, left, right, scale):
        return loss({"c": net(params, left, right, scale)["product"], "a": net(params, left, right, scale)["left"]})

    made = jax.jit(jax.grad(lambda params, given: loss(twice(params, **given)), (0, 1)))(params, given)
    of_params, left, right, scale = jax.grad(by_hand, (0, 1, 2, 3))(params, given["a"], given["a"], given["s"])
    assert_close(made, (of_params, {"a": left + right, "s": scale}))


def test_it_binds_again_and_is_a_net_for_others():
    params, outer = arguments()
    again = rs.do_net(rs.do_net(net, BINDINGS), {"a": "x", "b": "x", "c": None})
    assert_close(again(params, x=outer["a"]), {"x": net(params, outer["a"], outer["a"])["left"]})

    branch = rs.do_net(net, {"left": "x", "right": "y", "product": "y"})
    outputs = rs.cond_net(True, branch, None, params, {"x": outer["a"], "y": outer["b"]})
    expected = net(params, outer["a"], outer["b"])
    assert_close(outputs, {"x": expected["left"], "y": expected["product"]})

    steps = rs.recurrent_net(
        rs.do_net(net, {"left": "state", "right": "input_t", "product": "out", "scale": "step"}),
        params,
        inputs={"input_t": jnp.stack([outer["b"]] * 3)},
        initial_cell_inputs={"state": outer["a"]},
        links={"state": "state"},
        timestep="step",
    )
    state = outer["a"]
    for _ in range(3):
        state = net(params, state, outer["b"])["left"]
    assert_close(steps["state_last"], state)


def test_it_is_the_body_of_a_loop_and_calls_nets_of_nets():
    """A carry that is a dictionary goes through a net that sees a part of it, and chooses within."""
    params, outer = arguments()
    count = rs.do_net(lambda params, n: {"n": n + 1}, {"n": "count"})
    turn = rs.do_net(net, {"left": "a", "right": "b", "product": "b"})

    def body(params, carry):
        carry = count(params, carry)
        odd = carry["count"] % 2 == 1
        return {**carry, **rs.cond_net(odd, turn, None, params, {"a": carry["a"], "b": carry["b"]})}

    def looped(params, carry):
        return rs.while_net(lambda params, carry: carry["count"] < 4, body, carry, params=params, max_steps=9)[0]

    def by_hand(params, carry):
        for step in range(4):
            if step % 2 == 0:
                written = net(params, carry["a"], carry["b"])
                carry = {**carry, "a": written["left"], "b": written["product"]}
        return {**carry, "count": jnp.asarray(4)}

    carry = {**outer, "count": jnp.asarray(0)}
    assert_close(looped(params, carry), by_hand(params, carry))
    gradients = (jax.grad(lambda params, run=run: loss(run(params, carry)))(params) for run in (looped, by_hand))
    assert_close(*gradients)


A, AB = {"a": 1.0}, {"a": 1.0, "b": 2.0}
ERRORS = {
    # name: (a call, exception, message)
    "no net": (lambda: rs.do_net(3, {}), TypeError, r"`net` must be a function, .*; got int"),
    "any names": (
        lambda: rs.do_net(lambda params, **blobs: blobs, {"x": "y"}),
        TypeError,
        r"`net` must name its inputs; got <lambda> with \*\*blobs",
    ),
    "a list": (lambda: rs.do_net(net, ["left"]), TypeError, r"`bindings` must be a dictionary .*got list"),
    "a number": (lambda: rs.do_net(net, {"left": 1}), TypeError, r"`bindings` must be .*got \{'left': 1\}"),
    "unbound inputs": (
        lambda: rs.do_net(net, {"lefft": "a", "product": "b"}),
        ValueError,
        r"no outer name for 'left', 'right' in the bindings of 'lefft', 'product'\. Did you mean 'lefft'\?",
    ),
    "an input bound to None": (
        lambda: rs.do_net(net, {**BINDINGS, "left": None}),
        ValueError,
        r"every input of the function must be bound; got no outer name for 'left'",
    ),
    "an unbound output": (
        lambda: rs.do_net(lambda params, x: {"y": x, "z": x}, {"x": "a"})(None, **A),
        ValueError,
        r"every output of the function must be bound; got no outer name for 'y', 'z' .*\. Bind an output to None",
    ),
    "unused names": (
        lambda: rs.do_net(lambda params, x: {"y": x}, {"x": "a", "y": "b", "u": "c", "v": "d"})(None, **A),
        ValueError,
        r"got 'u', 'v'\. The function takes 'x' and returns 'y'",
    ),
    "an output bound twice": (
        lambda: rs.do_net(lambda params, x: {"y": x, "z": x}, {"x": "a", "y": "a", "z": "a"})(None, **A),
        ValueError,
        r"every output must have its own outer name; got 'y', 'z' to 'a'",
    ),
    "no value": (
        lambda: rs.do_net(net, BINDINGS)(None, {"a": 1.0, "bb": 2.0}),
        ValueError,
        r"must have a value; got no 'b' among 'a', 'bb'\. Did you mean 'bb'\?",
    ),
    "no value of a net bound twice": (
        lambda: rs.do_net(rs.do_net(net, BINDINGS), {"a": "x", "c": "y"}),
        ValueError,
        r"every input of the function must be bound; got no outer name for 'b'",
    ),
    "a value that is not bound": (
        lambda: rs.do_net(net, BINDINGS)(None, **AB, d=3.0),
        ValueError,
        r"every value must be bound to an input; got 'd', and the bound names are 'a', 'b'\.",
    ),
    "names and a dictionary": (
        lambda: rs.do_net(net, BINDINGS)(None, A, b=2.0),
        TypeError,
        r"by name, or in one dictionary; got names, 'b', and a dictionary",
    ),
    "no dictionary": (lambda: rs.do_net(net, BINDINGS)(None, 1.0), TypeError, r"in one dictionary; got float"),
}


@pytest.mark.bad_input
@pytest.mark.parametrize("name", ERRORS)
def test_bad_input(name):
    call, error, message = ERRORS[name]
    with pytest.raises(error, match="^do_net: .*" + message):
        call()


@pytest.mark.parametrize("outer", ["values", "params", "scope/a", "for", "a b"])
def test_outer_names_that_are_no_names_of_parameters(outer):
    add_one = rs.do_net(lambda params, a: {"a": a + params}, {"a": outer})
    assert add_one(1, {outer: 2, "other": 3}) == {outer: 3, "other": 3}
    assert add_one(1, **{outer: 2}) == {outer: 3}
    assert rs.cond_net(True, add_one, None, 1, {outer: 2})[outer] == 3
    assert rs.do_net(add_one, {outer: "x"})(1, x=2) == {"x": 3}
    with pytest.raises(ValueError, match="every outer name that is bound"):
        add_one(1, {"other": 3})
