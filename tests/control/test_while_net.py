"""while_net: values, gradients of every order, stops and errors."""

import gc
import weakref
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jax.test_util import check_grads

import rnnscan as rs
from drawn import normal
from fuzz.until import check_while
from jaxprs import running
from slow_reference import assert_close
from tiers import variants


pytestmark = pytest.mark.newest("loops that stop")

# All memory choices, and loops of 0 to 5 steps.
FEW = (1, 3, 4, 17, 6, 32)
MEMORIES = {
    "named": rs.Memory(),
    "none": rs.Memory(recompute="all", chunk=16),
    "segments": rs.Memory(segment=5),
    "nested": rs.Memory(segment=(6, 2)),
    "sqrt": rs.Memory(segment="sqrt"),
}
memories = pytest.mark.parametrize("memory", variants(MEMORIES, ["nested"]))


@pytest.mark.core("loops that stop")
@pytest.mark.parametrize("seed", variants(FEW, FEW[1:4]))
def test_random_bodies_and_stops_equal_the_unrolled_loop(seed):
    check_while(seed)


@pytest.mark.fuzz
@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 300, 10))
def test_more_random_bodies_and_stops_equal_the_unrolled_loop(first):
    for seed in range(first, first + 10):
        check_while(seed)
    jax.clear_caches()


def arguments():
    random = np.random.default_rng(0)
    params = {"kernel": jnp.asarray(random.normal(size=(4, 4))), "bias": jnp.asarray(random.normal(size=4))}
    return params, (jnp.asarray(0.1 * random.normal(size=(3, 4))), jnp.asarray(random.normal(size=(1, 4))))


def cond(params, carry):
    return (carry[0] ** 2).sum() < 30


def body(params, carry):
    hidden, other = carry
    inner = rs.name(hidden @ params["kernel"] + other + params["bias"], "inner")
    return 1.3 * hidden + 0.1 * jnp.tanh(inner), other + 0.1 * jnp.sin(inner).mean(0, keepdims=True)


def loss(carry):
    return (carry[0] * jnp.arange(12.0).reshape(3, 4)).sum() + (carry[1] ** 3).sum()


def by_while_net(params, carry, *, memory=rs.Memory(), max_steps=40, **options):
    return rs.while_net(cond, body, carry, params=params, max_steps=max_steps, memory=memory, **options)


def unrolled(params, carry, steps=None):
    """The loop in Python; it finds its stop by the concrete carry."""
    done = 0
    while done != steps and (steps is not None or bool(cond(params, jax.lax.stop_gradient(carry)))):
        carry, done = body(params, carry), done + 1
    return carry, done


ORDERS = {
    "forward": jax.jacfwd,
    "reverse over reverse": lambda f: jax.jacrev(jax.grad(f)),
    "forward over reverse": lambda f: jax.jacfwd(jax.grad(f)),
    "reverse over forward": lambda f: jax.jacrev(jax.jacfwd(f)),
    "forward over forward": lambda f: jax.jacfwd(jax.jacfwd(f)),
}
every = {f"{order}, {memory}": (ORDERS[order], MEMORIES[memory]) for order in ORDERS for memory in MEMORIES}
quick = ["forward, none", "reverse over reverse, none"]


@pytest.mark.parametrize(("order", "memory"), variants(every, quick))
def test_derivatives_of_both_orders_are_those_of_as_many_steps_of_lax_scan(x64, order, memory):
    params, carry = arguments()
    steps = unrolled(params, carry)[1]
    assert steps == by_while_net(params, carry)[1]
    assert steps > 6  # More than one segment of each length.

    def total(run, bias):
        return loss(run({**params, "bias": bias}, carry)[0])

    def by_scan(params, carry):
        return jax.lax.scan(lambda carry, _: (body(params, carry), None), carry, length=steps)

    found = jax.jit(order(partial(total, partial(by_while_net, memory=memory))))(params["bias"])
    wanted = jax.jit(order(partial(total, by_scan)))(params["bias"])
    assert_close(found, wanted, tolerance=1e-9)


@jax.custom_vjp
def sine(x):
    return jnp.sin(x)


sine.defvjp(lambda x: (jnp.sin(x), jnp.cos(x)), lambda cosine, cotangent: (cotangent * cosine,))


@pytest.mark.parametrize("memory", variants(MEMORIES, ["segments"]))
def test_the_hessian_of_a_body_with_a_custom_vjp_is_that_of_the_unrolled_loop(x64, memory):
    params, (start, _) = arguments()

    def bending(params, carry):
        return (1.2 * carry[0] + 0.1 * sine(carry[0] @ params["kernel"] + params["bias"]),)

    def total(run, bias):
        return (run({**params, "bias": bias})[0][0] ** 3).sum()

    def by_net(params):
        return rs.while_net(cond, bending, (start,), params=params, max_steps=40, memory=memory)

    def by_steps(params):
        carry = (start,)
        for _ in range(steps):
            carry = bending(params, carry)
        return carry, steps

    steps = int(by_net(params)[1])
    found, expected = (jax.jit(jax.hessian(partial(total, run)))(params["bias"]) for run in (by_net, by_steps))
    assert_close(found, expected, tolerance=1e-9)


@pytest.mark.parametrize("leaf", [0, 1])
def test_the_jitted_gradient_of_a_leaf_of_the_carry(x64, leaf):
    """The gradient's program then returns numbers, and a loop within it has them in its state."""
    params, (start, _) = arguments()

    def adding(params, carry):
        hidden = jnp.tanh(carry[0] @ params["kernel"])
        return hidden, carry[1] + jnp.sum(hidden**2)

    def by_net(params, carry):
        return rs.while_net(lambda _, carry: carry[1] < 3.0, adding, carry, params=params, max_steps=40)

    def by_scan(params, carry):
        return jax.lax.scan(lambda carry, _: (adding(params, carry), None), carry, length=steps)

    carry = (start, jnp.zeros(()))
    steps = int(by_net(params, carry)[1])
    first, second = (
        jax.jit(jax.grad(lambda *operands, run=run: jnp.sum(run(*operands)[0][leaf] ** 2), (0, 1)))(params, carry)
        for run in (by_net, by_scan)
    )
    assert_close(first, second, tolerance=1e-9)


@pytest.mark.parametrize("memory", variants(MEMORIES, ["segments"]))
def test_each_example_of_a_vmap_stops_by_itself(x64, memory):
    params, (hidden, other) = arguments()
    starts = jnp.stack([hidden, 100 * hidden, 5 * hidden])  # The second one runs no step.

    def of_one(start):
        carry, steps = by_while_net(params, (start, other), memory=memory)
        return loss(carry), steps

    gradient, steps = jax.jit(jax.vmap(jax.grad(of_one, has_aux=True)))(starts)
    alone = jax.jit(jax.grad(of_one, has_aux=True))
    each = [alone(start) for start in starts]
    assert_close(gradient, jnp.stack([own for own, _ in each]), tolerance=1e-9)
    assert list(steps) == [own for _, own in each]
    assert sorted(steps)[0] == 0
    assert len(set(map(int, steps))) == 3


@pytest.mark.slow
def test_a_vmap_of_a_vmap(x64):
    params, (hidden, other) = arguments()
    starts = jnp.stack([hidden, 3 * hidden, 5 * hidden, 9 * hidden]).reshape(2, 2, *hidden.shape)

    def of_one(start):
        carry, steps = by_while_net(params, (start, other), memory=rs.Memory(segment=4))
        return loss(carry), steps

    gradient = jax.grad(of_one, has_aux=True)
    nested, steps = jax.jit(jax.vmap(jax.vmap(gradient)))(starts)
    flat, flat_steps = jax.jit(jax.vmap(gradient))(starts.reshape(4, *hidden.shape))
    assert_close(nested, flat.reshape(nested.shape))
    assert steps.ravel().tolist() == flat_steps.tolist()
    assert len(set(flat_steps.tolist())) > 2


def selected_sizes(jaxpr):
    """The sizes of all values that a jaxpr selects, within loops too."""
    sizes = [0]
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "select_n":
            sizes.append(max(var.aval.size for var in eqn.outvars))
        for inner in jax.tree.leaves(eqn.params, is_leaf=lambda leaf: hasattr(leaf, "eqns") or hasattr(leaf, "jaxpr")):
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                sizes += selected_sizes(inner)
    return sizes


def test_a_step_of_a_vmap_selects_no_stack_of_all_steps():
    """JAX selects the whole carry of a loop whose condition is batched: time would be quadratic in the limit."""
    params, (hidden, other) = arguments()

    def total(start):
        return loss(by_while_net(params, (start, other), max_steps=1000, on_limit="stop")[0])

    starts = jnp.stack([hidden, 5 * hidden])
    sizes = selected_sizes(running(jax.vmap(jax.grad(total)))(starts).jaxpr)
    assert max(sizes) >= starts.size
    assert max(sizes) < 16 * starts.size  # A chunk at most; a stack has 1000 steps.


@pytest.mark.core("loops that stop")
def test_finite_differences(x64):
    params, carry = arguments()
    check_grads(lambda params: by_while_net(params, carry)[0], (params,), order=1, modes=["rev", "fwd"])


@pytest.mark.core("loops that stop")
def test_no_step_runs_that_the_condition_does_not_ask_for():
    calls = {"forward": 0, "backward": 0}

    def count(kind, x):
        def add_one(x):
            calls[kind] += 1
            return np.asarray(x)

        return jax.pure_callback(add_one, jax.ShapeDtypeStruct((), x.dtype), x, vmap_method="sequential")

    @jax.custom_vjp
    def counted(x):
        return count("forward", x)

    counted.defvjp(lambda x: (count("forward", x), None), lambda _, ct: (count("backward", ct),))

    def total(x):
        def step(_, carry):
            return carry[0] + 1, counted(1.5 * carry[1])

        return rs.while_net(lambda _, carry: carry[0] < 7, step, (0, x), max_steps=10_000)[0][1]

    assert jax.jit(jax.value_and_grad(total))(2.0) == pytest.approx((2 * 1.5**7, 1.5**7))
    assert calls["backward"] == 7
    assert calls["forward"] == 7


def test_prints_of_a_step_are_seen_once(capsys):
    def step(params, carry):
        jax.debug.print("at {}", carry)
        return 2 * carry

    grad = jax.grad(lambda x: rs.while_net(lambda _, x: x < 10, step, x, max_steps=9)[0])(3.0)
    jax.effects_barrier()
    assert grad == 4
    assert capsys.readouterr().out.split("\n") == ["at 3.0", "at 6.0", ""]


@pytest.mark.core("loops that stop")
def test_keys_integers_and_arrays_that_the_body_closes_over(x64):
    scale = jnp.asarray(np.random.default_rng(1).normal(size=4))

    def run(scale, loop):
        def step(_, carry):
            key, index, x = carry
            key, own = jax.random.split(key)
            return key, index + 1, jnp.tanh(x * scale) + 0.1 * jax.random.normal(own, x.shape)

        carry = (jax.random.key(3), 0, jnp.ones(4))
        if loop:
            return rs.while_net(lambda _, carry: carry[1] < 5, step, carry, max_steps=8, memory=rs.Memory(segment=2))
        for _ in range(5):
            carry = step(None, carry)
        return carry, 5

    def loss_and_results(scale, loop):
        results = run(scale, loop)
        return results[0][2].sum(), results

    gradient = jax.jit(jax.grad(loss_and_results, has_aux=True), static_argnums=1)
    (of_found, (found, steps)), (of_wanted, (wanted, _)) = (gradient(scale, loop) for loop in (True, False))
    assert steps == 5
    assert jax.random.key_data(found[0]).tolist() == jax.random.key_data(wanted[0]).tolist()
    assert found[1] == 5
    assert_close(of_found, of_wanted)


@pytest.mark.parametrize("memory", variants(MEMORIES, ["segments"]))
def test_loops_within_loops(x64, memory):
    kernel = jnp.asarray(np.random.default_rng(2).normal(size=(4, 4)))

    def run(kernel, loop):
        def grown(x):
            if loop:
                more = lambda _, x: x + jax.nn.softplus(kernel @ x)  # noqa: E731
                return rs.while_net(lambda _, x: x.sum() < 5, more, x, max_steps=20, memory=memory)[0]
            while float(jax.lax.stop_gradient(x).sum()) < 5:
                x = x + jax.nn.softplus(kernel @ x)
            return x

        step = lambda _, carry: (carry[0] + 1, 0.5 * jnp.tanh(grown(carry[1])))  # noqa: E731
        carry = (0, jnp.full(4, 0.1))
        if loop:
            return rs.while_net(lambda _, carry: carry[0] < 4, step, carry, max_steps=9, memory=memory)[0][1].sum()
        for _ in range(4):
            carry = step(None, carry)
        return carry[1].sum()

    by_loop = jax.jit(jax.grad(lambda kernel: run(kernel, True)))
    assert_close(by_loop(kernel), jax.grad(run)(kernel, False))


def kept(memory, max_steps):
    """The bytes that are kept between the passes, besides parameters."""
    params, carry = arguments()
    run = lambda *given: by_while_net(*given, memory=memory, max_steps=max_steps, on_limit="stop")[0]  # noqa: E731
    pull = jax.eval_shape(lambda params, carry: jax.vjp(run, params, carry)[1], params, carry)
    given = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(pull)) - given


def test_kept_memory_is_what_the_docs_say(x64):
    carry, inner = 8 * (3 * 4 + 1 * 4), 8 * 3 * 4
    # A few scalars beside them: the number of steps. Before each segment too.
    few, number = 16, 4
    assert kept(rs.Memory(), 100) == pytest.approx(100 * (carry + inner), abs=few)
    assert kept(rs.Memory(recompute="all"), 100) == pytest.approx(100 * carry, abs=few)
    assert kept(rs.Memory(segment=10), 100) == pytest.approx(10 * (carry + number), abs=few)
    assert kept(rs.Memory(segment="sqrt"), 10_000) == pytest.approx(100 * (carry + number), abs=few)


def test_a_limit_is_an_error_or_the_documented_stop():
    def run(x, **options):
        return rs.while_net(lambda _, x: x < 100, lambda _, x: 2 * x, x, max_steps=3, **options)

    match = "the condition still holds after max_steps=3 steps"
    with pytest.raises(RuntimeError, match=match):
        run(1.0)
    for transform, x in ((run, 1.0), (jax.grad(lambda x: run(x)[0]), 1.0), (jax.vmap(run), jnp.array([1.0, 90.0]))):
        with pytest.raises(RuntimeError, match=match):
            jax.block_until_ready(jax.jit(transform)(x))
    assert run(1.0, on_limit="stop") == (8, 3)
    assert run(20.0) == (160, 3)
    assert jax.jit(run)(20.0) == (160, 3)


def test_programs_are_cached_outside_jit():
    traces = []

    def step(params, x):
        traces.append(1)
        return x * params

    goes_on = lambda params, x: x < 50  # noqa: E731
    for _ in range(3):
        assert rs.while_net(goes_on, step, 2.0, params=2.0, max_steps=9)[0] == 64
    first = len(traces)
    assert rs.while_net(goes_on, step, 2.0, params=2.0, max_steps=9)[1] == 5
    assert len(traces) == first
    assert rs.while_net(lambda params, x: x < 20, step, 2.0, params=2.0, max_steps=9)[0] == 32


def test_a_cached_program_keeps_no_function_alive():
    step, goes_on = (lambda params, x: x * params), (lambda params, x: x < 50)
    rs.while_net(goes_on, step, 2.0, params=2.0, max_steps=9)
    functions = [weakref.ref(goes_on), weakref.ref(step)]
    del step, goes_on
    gc.collect()
    assert [function() for function in functions] == [None, None]


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"cond": lambda p, c: c > jnp.zeros(2)}, TypeError, r"`cond` must return a boolean scalar; got bool\[2\]"),
        ({"cond": lambda p, c: c}, TypeError, r"`cond` must return a boolean scalar; got float32\[\]"),
        ({"cond": lambda p, c: (c > 0, c > 1)}, TypeError, "got the pytree"),
        ({"body": lambda p, c: (c, c)}, TypeError, "while_net: `body` must return a carry of the structure"),
        ({"body": lambda p, c: jnp.ones(3) * c}, TypeError, "while_net: `body` must return a carry of the types"),
        ({"body": lambda p, c: jnp.int32(c)}, TypeError, r"came out as int32\[\]\. Cast .* in it, or .* that it"),
        ({"max_steps": 0}, ValueError, "`max_steps` must be an integer of at least 1"),
        ({"max_steps": 2.5}, ValueError, "got 2.5"),
        ({"on_limit": "warn"}, ValueError, "`on_limit` must be"),
        ({"memory": None}, TypeError, "must be an rnnscan.Memory"),
        ({"memory": rs.Memory.fit("1MiB")}, TypeError, "no plan for a budget"),
        ({"memory": rs.Memory(offload=("a",))}, ValueError, "cannot be kept in host memory"),
        ({"memory": rs.Memory(recompute=("gate",))}, ValueError, "while_net: every name in `recompute`"),
        ({"memory": rs.Memory(segment=rs.checkpointing.nested(100, slots=50))}, ValueError, "cannot be a schedule"),
        ({"carry": "one"}, TypeError, "every leaf must be an array"),
        ({"cond": 3}, TypeError, "`cond` must be callable"),
        ({"body": None}, TypeError, "`body` must be callable"),
    ],
)
@pytest.mark.bad_input
def test_wrong_arguments(change, error, match):
    given = {"cond": lambda p, c: c < 3, "body": lambda p, c: c + 1, "carry": jnp.float32(0), "max_steps": 5, **change}
    cond, body, carry = given.pop("cond"), given.pop("body"), given.pop("carry")
    with pytest.raises(error, match=match):
        rs.while_net(cond, body, carry, **given)


def unpack(_, carry):
    first, second = carry
    return first + second


BODY, COND = (f"`{name}` was called as {name}(params, carry), with carry = " for name in ("body", "cond"))
MISTAKES_OF_A_CALL = {
    "body that unpacks": ({"body": unpack}, ValueError, BODY),
    "body of a carry": ({"body": lambda c: c}, TypeError, BODY),
    "body of three": ({"body": lambda p, c, x: c}, TypeError, BODY),
    "body of a pair": ({"body": lambda p, c: (c, None)}, TypeError, "It returns the new carry alone, like the old"),
    "cond of a carry": ({"cond": lambda c: True}, TypeError, COND),
    "cond that unpacks": ({"cond": unpack}, ValueError, COND),
}


@pytest.mark.parametrize(("change", "error", "told"), MISTAKES_OF_A_CALL.values(), ids=MISTAKES_OF_A_CALL)
@pytest.mark.parametrize("jit", [True, False], ids=["jit", "eager"])
def test_an_error_in_a_function_says_how_it_was_called(change, error, told, jit):
    given = {"cond": lambda p, c: c.sum() < 9, "body": lambda p, c: c + 1, **change}

    def run(carry):
        return rs.while_net(given["cond"], given["body"], carry, max_steps=5)

    with pytest.raises(error) as caught:
        (jax.jit(run) if jit else run)(jnp.ones(3))
    notes = [note for note in caught.value.__notes__ if "JAX_TRACEBACK_FILTERING" not in note]
    assert len(notes) == 1
    assert told in notes[0]
    assert "float32[3]" in notes[0]
    assert "scan" not in notes[0]


def test_an_error_in_a_loop_within_a_body_says_how_the_inner_one_was_called():
    def body(_, carry):
        return rs.scan(lambda params, carry, x: unpack(params, carry), None, carry, jnp.ones(4))[0]

    with pytest.raises(ValueError, match="unpack") as caught:
        rs.while_net(lambda _, carry: carry.sum() < 9, body, jnp.ones(3), max_steps=5)
    told = [note for note in caught.value.__notes__ if "was called as" in note]
    assert len(told) == 1
    assert told[0].startswith("scan: the cell was called as cell(params, carry, x), with carry = float32[3]")


@pytest.mark.parametrize("result", ["text", lambda c: c], ids=["string", "function"])
def test_a_result_that_is_no_array(result):
    with pytest.raises(
        TypeError, match=r"^while_net: `body` must return arrays or numbers; got \w+ at `carry`\.(\n|$)"
    ):
        rs.while_net(lambda _, c: c < 3, lambda _, c: result, 0.0, max_steps=5)


def test_a_condition_with_side_effects_is_refused():
    def cond(_, x):
        return jax.experimental.io_callback(lambda x: np.bool_(x < 3), jax.ShapeDtypeStruct((), bool), x)

    with pytest.raises(ValueError, match="while_net: a condition must have no side effects"):
        rs.while_net(cond, lambda _, x: x + 1, 0.0, max_steps=5)


def test_a_step_with_side_effects_is_refused():
    def step(_, x):
        jax.experimental.io_callback(lambda: None, None)
        return x + 1

    with pytest.raises(ValueError, match="must have no side effects"):
        rs.while_net(lambda _, x: x < 3, step, 0.0, max_steps=5)


def on_two_devices(kind):
    return jax.make_mesh((2,), ("rows",), axis_types=(kind,), devices=jax.devices()[:2])


@pytest.mark.parametrize("kind", variants({"auto": AxisType.Auto, "explicit": AxisType.Explicit}, ["explicit"]))
def test_rows_on_two_devices_are_those_on_one(x64, kind):
    params, (hidden, other) = arguments()
    rows = jnp.concatenate([hidden[:2], 0.5 * hidden[:2]])

    def total(params, rows):
        return (by_while_net(params, (rows, other), memory=rs.Memory(segment=3))[0][0] ** 3).sum()

    gradient = jax.jit(jax.grad(total, argnums=(0, 1)))
    expected = gradient(params, rows)
    mesh = on_two_devices(kind)
    with jax.set_mesh(mesh):
        found = gradient(params, jax.device_put(rows, NamedSharding(mesh, PartitionSpec("rows"))))
    assert_close(jax.device_get(found), jax.device_get(expected))


@pytest.mark.parametrize("derivative", ["values", "gradients"])
def test_examples_whose_rows_lie_over_an_explicit_axis(x64, derivative):
    params, (hidden, other) = arguments()
    rows = jnp.concatenate([hidden[:2], 0.5 * hidden[:2]])
    examples = jnp.stack([rows, 3 * rows, 0.1 * rows])

    def total(params, rows):
        carry, steps = by_while_net(params, (rows, other), on_limit="stop")
        return (carry[0] ** 3).sum(), steps

    of_one = total if derivative == "values" else jax.grad(total, argnums=(0, 1), has_aux=True)
    of_all = jax.jit(jax.vmap(of_one, (None, 0)))
    expected, mesh = of_all(params, examples), on_two_devices(AxisType.Explicit)
    assert len({*expected[1].tolist()}) > 1
    with jax.set_mesh(mesh):
        found = of_all(params, jax.device_put(examples, NamedSharding(mesh, PartitionSpec(None, "rows"))))
    assert_close(jax.device_get(found), jax.device_get(expected))


def test_under_shard_map_each_device_stops_by_its_rows(x64):
    params, (hidden, other) = arguments()
    rows = jnp.concatenate([hidden[:2], 9 * hidden[:2]])

    def of_rows(params, rows):
        carry, steps = by_while_net(params, (rows, other), on_limit="stop")
        return (carry[0] ** 3).sum(), steps

    def local(params, rows):
        total, steps = of_rows(params, rows)
        return jax.lax.psum(total, "rows"), steps[None]

    spec = PartitionSpec("rows")
    spread = jax.shard_map(
        local,
        mesh=on_two_devices(AxisType.Auto),
        in_specs=(PartitionSpec(), spec),
        out_specs=(PartitionSpec(), spec),
    )
    gradient, steps = jax.jit(jax.grad(spread, argnums=(0, 1), has_aux=True))(params, rows)
    of_part = jax.jit(jax.grad(of_rows, argnums=(0, 1), has_aux=True))
    alone = [of_part(params, part) for part in (rows[:2], rows[2:])]
    assert steps.tolist() == [own for _, own in alone]
    assert len(set(steps.tolist())) == 2
    (first, of_first), (second, of_second) = (own for own, _ in alone)
    expected = (jax.tree.map(jnp.add, first, second), jnp.concatenate([of_first, of_second]))
    assert_close(jax.device_get(gradient), jax.device_get(expected))


def test_an_exported_loop_with_a_symbolic_batch_is_the_live_one():
    def total(params, rows):
        body = lambda params, rows: jnp.tanh(rows @ params) + 1.1 * rows  # noqa: E731
        goes_on = lambda params, rows: (rows**2).sum() < 30  # noqa: E731
        rows, steps = rs.while_net(goes_on, body, rows, params=params, max_steps=30, on_limit="stop")
        return (rows**2).sum(), steps

    gradient = jax.jit(jax.value_and_grad(total, has_aux=True))
    params = arguments()[0]["kernel"].astype(jnp.float32)
    shape = jax.export.symbolic_shape("batch, 4")
    exported = jax.export.export(gradient)(params, jax.ShapeDtypeStruct(shape, jnp.float32))
    for size in (1, 3):
        rows = normal(np.random.default_rng(size), (size, 4), jnp.float32)
        assert_close(exported.call(params, rows), gradient(params, rows), tolerance=1e-5)


@pytest.mark.parametrize("segment", [None, 3])
def test_callbacks_of_a_body_run_once_a_step(segment):
    calls = []

    def body(factor, carry):
        jax.debug.callback(lambda: calls.append(1))
        return carry[0] + 1, jnp.tanh(carry[1] * factor)

    def last(factor):
        memory = rs.Memory(segment=segment)
        start = 0, jnp.ones(3)
        carry, _ = rs.while_net(lambda _, carry: carry[0] < 5, body, start, params=factor, max_steps=9, memory=memory)
        return carry[1].sum()

    for function, times in ((last, 5), (jax.grad(last), 5 if segment is None else 10)):
        calls.clear()
        jax.block_until_ready(jax.jit(function)(0.5))
        jax.effects_barrier()
        assert len(calls) == times, "a segment runs again on the backward pass"


def masked(params, start):
    """As many steps as `of_rows` may run, of which those after the last one change nothing."""

    def step(carry, _):
        new = carry[0] - 1.0, jnp.tanh(carry[1] + params**2 * carry[0])
        return jax.tree.map(partial(jnp.where, carry[0] > 0), new, carry), None

    return jax.lax.scan(step, (start, 0.0 * start), None, 7)[0][1]


def of_rows(params, start, memory):
    def counted(params, carry):
        return carry[0] - 1.0, jnp.tanh(carry[1] + params**2 * carry[0])

    options = {"params": params, "max_steps": 7, "memory": memory}
    return rs.while_net(lambda _, carry: carry[0] > 0, counted, (start, 0.0 * start), **options)[0][1]


MAPPED = {
    "jacfwd": lambda f: jax.jacfwd(f, (0, 1)),
    "hessian": lambda f: jax.hessian(lambda *given: f(*given).sum()),
    "jacrev of jacfwd": lambda f: jax.jacrev(jax.jacfwd(f)),
    "jacfwd of vmap": lambda f: lambda p, xs: jax.jacfwd(jax.vmap(f, (0, None)))(jnp.array([p, 2 * p]), xs),
    "vmap of hessian": lambda f: lambda p, xs: jax.vmap(jax.hessian(f), (0, None))(jnp.array([p, 2 * p]), xs),
    "vmap of grad": lambda f: (
        lambda p, xs: jax.vmap(jax.grad(lambda p, xs: f(p, xs).sum()), (0, None))(jnp.array([p, 2 * p]), xs)
    ),
}


@pytest.mark.core("loops that stop")
@pytest.mark.parametrize("memory", variants(MEMORIES, ["none", "segments"]))
@pytest.mark.parametrize("order", MAPPED)
def test_rows_that_stop_by_themselves_under_more_axes(x64, order, memory):
    """`jax.jacfwd` maps tangents alone, and an outer `vmap` parameters that the condition does not read."""
    starts = jnp.array([0.5, 1.5, 3.2])

    def derivatives(run):
        return jax.jit(MAPPED[order](jax.vmap(run, (None, 0))))(0.7, starts)

    found = derivatives(partial(of_rows, memory=memory))
    assert_close(found, derivatives(masked), tolerance=1e-9)
