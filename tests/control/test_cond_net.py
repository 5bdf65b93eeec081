"""cond_net(): the values and gradients of a Python `if`, and one branch only."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback
from jax.sharding import PartitionSpec

import rnnscan as rs
from slow_reference import assert_close, loss


pytestmark = [pytest.mark.newest("loops that stop"), pytest.mark.usefixtures("x64"), pytest.mark.typed]


def turn(params, left, right):
    """Writes an operand, and a name of its own."""
    turned = jnp.tanh(left @ params["kernel"] + params["bias"] * right)
    return {"left": turned, "sum": turned + right}


def stretch(params, right, shift):
    """Writes another operand."""
    stretched = jnp.sin(params["bias"] * right) + shift
    return {"sum": stretched * right, "right": stretched}


NETS = {
    "both": (turn, stretch),
    "swapped": (stretch, turn),
    "no else": (lambda params, left, right, shift: {"left": turn(params, left, right)["left"] * shift}, None),
}


def arguments(seed=0):
    random = np.random.default_rng(seed)
    normal = lambda *shape: jnp.asarray(random.normal(size=shape))  # noqa: E731
    params = {"kernel": normal(3, 3), "bias": normal(3)}
    return params, {"left": normal(2, 3), "right": normal(2, 3), "shift": normal(3)}


def by_cond_net(nets):
    return lambda pred, params, operands: rs.cond_net(pred, *nets, params, operands)


def by_if(nets):
    """What cond_net means."""

    def run(pred, params, operands):
        net = nets[0] if pred else nets[1]
        names = {"turn": ("left", "right"), "stretch": ("right", "shift")}
        if net is None:
            return dict(operands)
        return {**operands, **net(params, **{name: operands[name] for name in names.get(net.__name__, operands)})}

    return run


def derivatives(run):
    def of(params, operands):
        given = (params, operands)
        total = lambda *given: loss(run(*given))  # noqa: E731
        return run(*given), jax.grad(total, (0, 1))(*given), jax.jvp(total, given, jax.tree.map(jnp.cos, given))

    return of


def second(run):
    norm = lambda given: sum((leaf**2).sum() for leaf in jax.tree.leaves(jax.grad(lambda g: loss(run(*g)))(given)))  # noqa: E731
    return jax.grad(norm)


@functools.cache
def compiled(derive, name):
    """Of cond_net, for both branches."""
    chosen = by_cond_net(NETS[name])
    return jax.jit(lambda pred, *given: derive(lambda *given: chosen(pred, *given))(*given))


@pytest.mark.parametrize("pred", [True, False])
@pytest.mark.parametrize("name", NETS)
def test_values_and_gradients_are_those_of_an_if(name, pred):
    made = compiled(derivatives, name)(pred, *arguments())
    expected = derivatives(lambda *given: by_if(NETS[name])(pred, *given))(*arguments())
    assert_close(made, expected)
    # The value that no net writes if this branch runs keeps the gradient of its outer value.
    assert all(leaf.any() for leaf in made[1][1].values())


@pytest.mark.parametrize("pred", [True, False])
def test_a_gradient_of_a_gradient(pred):
    made = compiled(second, "both")(pred, arguments())
    expected = jax.jit(second(lambda *g: by_if(NETS["both"])(pred, *g)))(arguments())
    assert_close(made, expected, tolerance=1e-9)


def test_under_vmap_each_example_has_its_own_branch():
    preds = jnp.array([True, False, True])
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(arguments(seed)[1] for seed in range(3)))
    params = arguments()[0]

    def total(params, stacked):
        return loss(jax.vmap(lambda pred, each: by_cond_net(NETS["both"])(pred, params, each))(preds, stacked))

    def expected(params, stacked):
        rows = [
            by_if(NETS["both"])(bool(pred), params, jax.tree.map(lambda leaf, row=row: leaf[row], stacked))
            for row, pred in enumerate(preds)
        ]
        return loss(jax.tree.map(lambda *leaves: jnp.stack(leaves), *rows))

    made = jax.jit(jax.value_and_grad(total, (0, 1)))(params, stacked)
    assert_close(made, jax.value_and_grad(expected, (0, 1))(params, stacked))


def test_what_a_net_closes_over_gets_gradients():
    def total(scale, pred, cond=rs.cond_net):
        operands = {"x": jnp.arange(3.0)}
        return loss(
            cond(pred, lambda _, x: {"x": jnp.sin(scale * x)}, lambda _, x: {"x": scale**3 + x}, None, operands)
        )

    gradient = jax.jit(jax.grad(total))
    for pred, result in (
        (True, lambda scale: jnp.sin(scale * jnp.arange(3.0))),
        (False, lambda scale: scale**3 + jnp.arange(3.0)),
    ):
        assert_close(gradient(1.3, pred), jax.grad(lambda scale: loss(result(scale)))(1.3))  # noqa: B023


def counted(label, calls):
    """The identity, which counts its calls forward and backward."""

    @jax.custom_vjp
    def count(x):
        return x

    def note(what, x):
        io_callback(lambda: calls.append(f"{label} {what}"), None)
        return x

    count.defvjp(lambda x: (note("forward", x), None), lambda _, cotangent: (note("backward", cotangent),))
    return count


@pytest.mark.parametrize("jit", [jax.jit, lambda function: function], ids=["jit", "eager"])
@pytest.mark.parametrize("pred", [True, False])
def test_only_one_branch_runs_forward_and_backward(pred, jit):
    calls = []
    nets = [lambda _, x, label=label: {"x": jnp.sin(counted(label, calls)(x))} for label in ("true", "false")]
    jit(jax.grad(lambda x, pred: rs.cond_net(pred, *nets, None, {"x": x})["x"]))(2.0, pred)
    jax.effects_barrier()
    chosen = str(pred).lower()
    assert calls == [f"{chosen} forward", f"{chosen} backward"]


def test_nested_nets_are_traced_once():
    calls = []

    def nested(depth):
        def net(params, x):
            calls.append(depth)
            return {"x": x + 1} if depth == 0 else rs.cond_net(x > depth, nested(depth - 1), None, params, {"x": x})

        return net

    result = jax.jit(lambda x: rs.cond_net(x > 4, nested(4), None, None, {"x": x}))(5.0)
    assert (float(result["x"]), calls) == (6.0, [4, 3, 2, 1, 0])


@pytest.mark.parametrize(
    "options", [{}, {"memory": rs.Memory(recompute="all")}, {"engine": "lax", "memory": rs.Memory(segment=2)}], ids=str
)
def test_in_a_cell_with_names(options):
    """Each step chooses; named values within a branch obey the rule of memory."""
    params, operands = arguments()
    xs = jnp.asarray(np.random.default_rng(1).normal(size=(5, 2, 3)))

    def true_net(params, hidden, x):
        return {"hidden": jnp.tanh(rs.name(hidden @ params["kernel"], "turned") + x)}

    def false_net(params, hidden):
        return {"hidden": hidden * params["bias"]}

    def by_net(params, hidden, x):
        outputs = rs.cond_net(x.sum() > 0, true_net, false_net, params, {"hidden": hidden, "x": x})
        return (outputs["hidden"],) * 2

    def by_where(params, hidden, x):
        true, false = true_net(params, hidden, x), false_net(params, hidden)
        return (jnp.where(x.sum() > 0, true["hidden"], false["hidden"]),) * 2

    def gradients(cell, **options):
        total = lambda *given: loss(rs.scan(cell, *given, **options))  # noqa: E731
        return jax.jit(jax.grad(total, (0, 1, 2)))(params, operands["left"], xs)

    assert_close(gradients(by_net, **options), gradients(by_where, memory=None, engine="lax"))


def test_on_a_mesh_each_device_has_its_own_branch():
    """A value that a device keeps varies over the mesh, because another device replaces it."""
    mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    rows = PartitionSpec("data")

    def net(weights, x, total):
        return {"total": total + jnp.sin(x @ weights).sum()}

    def on_mesh(weights, x, total):
        def run(weights, x, total):
            return rs.cond_net(x.sum() > 0, net, None, weights, {"x": x, "total": total})["total"][None]

        whole = PartitionSpec()
        return jax.shard_map(run, mesh=mesh, in_specs=(whole, rows, whole), out_specs=rows)(weights, x, total)

    def by_hand(weights, x, total):
        return jnp.stack([net(weights, x[:1], total)["total"], total])

    given = (jnp.arange(3.0), jnp.array([[1.0, 2.0, 3.0], [-1.0, -2.0, -3.0]]), jnp.array(5.0))
    made, expected = (
        jax.value_and_grad(lambda *given, run=run: loss(run(*given)), (0, 1, 2)) for run in (on_mesh, by_hand)
    )
    assert_close(jax.jit(made)(*given), expected(*given))


def test_values_may_be_pytrees_keys_and_numbers():
    operands = {"carry": (jnp.ones(2), jnp.zeros(2)), "key": jax.random.key(0), "count": 3}
    advance = lambda _, carry, key, count: {  # noqa: E731
        "carry": (carry[1], carry[0]),
        "key": jax.random.split(key)[0],
        "count": count + 1,
        "seen": 1.5,
    }
    skip = lambda _: {"seen": jnp.float32(0)}  # noqa: E731
    for pred in (True, False):
        outputs = rs.cond_net(pred, advance, skip, None, operands)
        assert list(outputs) == ["carry", "key", "count", "seen"]
        assert int(outputs["count"]) == 3 + pred
        assert outputs["seen"].dtype == jnp.float32
        expected = jax.random.split(operands["key"])[0] if pred else operands["key"]
        assert (jax.random.key_data(outputs["key"]) == jax.random.key_data(expected)).all()
        assert outputs["carry"][0].sum() == (0 if pred else 2)


X = {"x": np.ones((2, 3))}
same = lambda params, x: {"x": x}  # noqa: E731
ERRORS = {
    # name: (arguments after the parameters' place, exception, message)
    "an integer": ((1, same, None, X), TypeError, r"`pred` must be a boolean scalar; got int\. Write a comparison"),
    "an array": ((jnp.ones(3) > 0, same, None, X), TypeError, r"got bool\[3\]\. Reduce .*jnp\.any.* jax\.vmap"),
    "no net": ((True, None, same, X), TypeError, r"`true_net` must be a function, .*; got NoneType"),
    "no params": ((True, lambda: {}, None, X), TypeError, r"`true_net` must be .* does not take the parameters first"),
    "no dictionary": (
        (True, lambda params, x: x, None, X),
        TypeError,
        r"`true_net` must return a dictionary .*got float",
    ),
    "operands without names": ((True, same, None, {1: 2}), TypeError, "`operands` must be .* got the keys 1"),
    "operands by place": ((True, lambda params, x, /: {}, None, X), TypeError, r"takes 'x' by place alone"),
    "no names": ((True, lambda params, x: {1: x}, None, X), TypeError, r"must return a dictionary .*got the keys 1"),
    "no array": (
        (True, lambda params, x: {"x": "x"}, None, X),
        TypeError,
        r"must write arrays or numbers; got str for `x`",
    ),
    "operands": ((True, same, None, [1]), TypeError, r"`operands` must be a dictionary keyed by name; got list"),
    "an operand": ((True, same, None, {"x": "x"}), TypeError, r"array or a number; got str at `operands\['x'\]`"),
    "the parameters": (
        (True, same, None, {**X, "params": 1}),
        ValueError,
        r"first parameter .*; got 'params' for both in `true_net`",
    ),
    "unbound": (
        (True, same, lambda params, x, shfit, other: {}, {**X, "shift": 1.0}),
        ValueError,
        r"`false_net` takes must be an operand; got no 'shfit', 'other' among .*'x', 'shift'\. Did you mean 'shift'\?",
    ),
    "unused": (
        (True, same, None, {**X, "y": 1, "z": 2}),
        ValueError,
        r"got 'y', 'z', which neither function takes or writes",
    ),
    "of one net only": (
        (True, lambda params, x: {"new": x, "more": x}, lambda params, x: {"third": x}, X),
        ValueError,
        r"got 'more' from `true_net` only, 'new' from `true_net` only, 'third' from `false_net` only, and .*'x'\.",
    ),
    "no else": ((True, lambda params, x: {"new": x}, None, X), ValueError, r"got 'new' from `true_net` only"),
    "shapes": (
        (True, same, lambda params, x: {"x": x[0]}, X),
        ValueError,
        r"got float64\[2,3\] from `true_net` and float64\[3\] from `false_net` for 'x'\. Cast or reshape",
    ),
    "dtypes": (
        (True, lambda params, x: {"x": x > 0}, None, X),
        TypeError,
        r"got bool\[2,3\] from `true_net` and float64\[2,3\] from `operands`, which `false_net=None` keeps for 'x'",
    ),
    "a number of another kind": (
        (True, lambda params, x: {"n": 1.5}, lambda params, x: {"n": jnp.int32(1)}, X),
        TypeError,
        r"got float64\[\] from `true_net` and int32\[\] from `false_net` for 'n'",
    ),
    "structures": (
        (True, lambda params, x: {"x": (x, x)}, None, X),
        ValueError,
        r"same structure; got PyTreeDef\(\(\*, \*\)\) from `true_net` and PyTreeDef\(\*\) from `operands`",
    ),
}


@pytest.mark.bad_input
@pytest.mark.parametrize("name", ERRORS)
def test_bad_input(name):
    (pred, true_net, false_net, operands), error, message = ERRORS[name]
    with pytest.raises(error, match=r"^cond_net: .*" + message):
        rs.cond_net(pred, true_net, false_net, None, operands)


def test_an_error_in_a_net_says_how_it_was_called():
    with pytest.raises(TypeError) as raised:
        rs.cond_net(True, lambda params, x: {"x": x @ x}, None, None, {"x": jnp.ones((2, 3))})
    assert "cond_net: `true_net` was called with x = float64[2,3]." in raised.value.__notes__
