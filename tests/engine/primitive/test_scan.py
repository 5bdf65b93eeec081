"""A scan is an operation of a jaxpr: its parameters are data, and its rules make jaxprs."""

import dataclasses
import enum
import gc
import re
import weakref
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend import core
from jax.interpreters import partial_eval

import rnnscan as rs
from drawn import normal
from jaxprs import equations_of, running
from rnnscan.engine.primitive.scan import Scan, Tangents, bind
from rnnscan.engine.run import cotangent_scan, scan_rules
from tiers import variants


CELL = rs.cells.LSTM(4)
XS = jax.random.normal(jax.random.key(0), (12, 3, 2))
PARAMS = jax.tree.map(
    lambda leaf: jax.random.normal(jax.random.key(1), leaf.shape), CELL.init(jax.random.key(1), input_size=2)
)


def plain(cell, params, carry, xs):
    return lax.scan(lambda carry, x: cell(params, carry, x), carry, xs)


def loss(scan, params, xs):
    carry, ys = scan(CELL, params, CELL.initial_carry(xs[0]), xs)
    return jnp.sum(jnp.sin(ys)) + sum(jnp.sum(leaf**2) for leaf in carry)


def in_rows(function):
    return lambda params, xs: jax.vmap(function, (None, 0))(params, jnp.stack([xs, 2 * xs]))


def pushed(function):
    return lambda *given: jax.jvp(function, given, given)


ORDERS = {
    "value": lambda loss: loss,
    "grad": jax.grad,
    "jvp": pushed,
    "jvp of grad": lambda loss: pushed(jax.grad(loss)),
    "grad of grad": lambda loss: jax.grad(lambda *given: jnp.sum(jax.grad(loss, 1)(*given) ** 2)),
    "grad of jvp": lambda loss: jax.grad(lambda *given: pushed(loss)(*given)[1]),
    "checkpoint": lambda loss: jax.grad(jax.checkpoint(loss)),
    "vmap of grad": lambda loss: in_rows(jax.grad(loss, (0, 1))),
    "grad of vmap": lambda loss: jax.grad(lambda *given: jnp.sum(in_rows(loss)(*given))),
    "jacfwd": lambda loss: jax.jacfwd(loss, 1),
    "hessian": lambda loss: jax.hessian(loss, 1),
    "linearize": lambda loss: lambda *given: jax.linearize(loss, *given)[1](*given),
    "rows of linearize": lambda loss: lambda *given: in_rows(jax.linearize(loss, *given)[1])(*given),
    "transposed rows of linearize": lambda loss: (
        lambda *given: jax.linear_transpose(in_rows(jax.linearize(loss, *given)[1]), *given)(jnp.arange(2.0))
    ),
    "grad of linearize": lambda loss: jax.grad(lambda *given: jax.linearize(loss, *given)[1](*given)),
    "grad of a scan": lambda loss: jax.grad(
        lambda params, xs: lax.scan(lambda total, k: (total + loss(params, xs * k), None), 0.0, jnp.arange(3.0))[0]
    ),
}


@pytest.mark.core("derivatives")
@pytest.mark.parametrize("order", ORDERS)
def test_every_order_is_that_of_lax_scan(order, x64):
    given = jax.tree.map(lambda leaf: leaf.astype(float), (PARAMS, XS))
    ours, theirs = (jax.jit(ORDERS[order](partial(loss, scan)))(*given) for scan in (rs.scan, plain))
    for leaf, expected in zip(*map(jax.tree.leaves, (ours, theirs)), strict=True):
        np.testing.assert_allclose(leaf, expected, rtol=1e-9, atol=1e-10)


def loss_of_a_loop_that_stops(loop, params, xs):
    """Rows of `xs` stop by themselves where they are mapped, after as many steps as their first input says."""
    start = jnp.tanh(xs[0] @ params["kernel"][:, :4])

    def step(params, carry):
        count, hidden = carry
        return count + 1, jnp.tanh(hidden @ params["recurrent_kernel"][:, :4] + params["bias"][:4])

    most = 1 + 4 * (jnp.sum(xs[0]) > 0)
    count, hidden = loop(lambda _, carry: carry[0] < most, step, (0, start), params)
    return jnp.sum(jnp.sin(hidden)) * (1 + count)


def stopping(condition, step, carry, params):
    return rs.while_net(condition, step, carry, params=params, max_steps=7, on_limit="stop")[0]


def selecting(condition, step, carry, params):
    """The same by selecting, with a step that has finite derivatives everywhere."""
    for _ in range(7):
        runs, new = condition(params, carry), step(params, carry)
        carry = jax.tree.map(lambda after, before, runs=runs: jnp.where(runs, after, before), new, carry)
    return carry


@pytest.mark.core("loops that stop")
@pytest.mark.parametrize("order", ORDERS)
def test_every_order_of_a_loop_that_stops_is_that_of_its_steps(order, x64):
    given = jax.tree.map(lambda leaf: leaf.astype(float), (PARAMS, XS))
    ours, theirs = (
        jax.jit(ORDERS[order](partial(loss_of_a_loop_that_stops, loop)))(*given) for loop in (stopping, selecting)
    )
    for leaf, expected in zip(*map(jax.tree.leaves, (ours, theirs)), strict=True):
        np.testing.assert_allclose(leaf, expected, rtol=1e-9, atol=1e-10)


@pytest.mark.core("loops that stop")
@pytest.mark.parametrize("of", variants(["value", "grad", "jvp", "hessian"], ["grad", "hessian"]))
def test_rows_of_rows_stop_by_themselves(of, x64):
    """One axis of rows has its own numbers of steps; the other reaches the steps and not their number, or both do."""
    transform = {
        "value": lambda loss: loss,
        "grad": jax.grad,
        "jvp": pushed,
        "hessian": lambda loss: jax.hessian(loss, 1),
    }
    params = jax.tree.map(lambda leaf: leaf.astype(float), PARAMS)
    rows = jax.random.normal(jax.random.key(7), (3, 2, 3, 2))
    several = jax.tree.map(lambda leaf: jnp.stack([leaf, 0.5 * leaf]), params)
    for axes in (((None, 0), (0, None)), ((0, None), (None, 0)), ((None, 0), (None, 0))):
        found, expected = (
            jax.vmap(jax.vmap(transform[of](partial(loss_of_a_loop_that_stops, loop)), axes[0]), axes[1])(
                several if axes[0][0] == 0 or axes[1][0] == 0 else params,
                rows if axes[0][1] == axes[1][1] == 0 else rows[0],
            )
            for loop in (stopping, selecting)
        )
        for leaf, other in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
            np.testing.assert_allclose(leaf, other, rtol=1e-9, atol=1e-10)


@pytest.mark.core("loops that stop")
@pytest.mark.parametrize(
    "of",
    [
        lambda loss: jax.grad(lambda *given: jnp.sum(jax.vmap(loss, (None, 0))(*given)), (0, 1)),
        lambda loss: jax.vmap(jax.grad(loss, (0, 1)), (None, 0)),
    ],
)
def test_a_row_that_has_stopped_has_no_part_in_the_derivatives(of, x64):
    """Its step has none at its last value, nor at its first one if it never runs."""
    values = jnp.array([1.0, 9.0, 0.0, 25.0])

    def loss(factor, value):
        step = lambda factor, value: value * factor - jnp.sqrt(value)  # noqa: E731
        last, _ = rs.while_net(lambda _, value: value > 0, step, value, params=factor, max_steps=4, on_limit="stop")
        return last**2

    def step_by_step(factor, value):
        for _ in range(4 if value > 1 else int(value)):
            value = value * factor - jnp.sqrt(value)
        return value**2

    of_factor, of_values = of(loss)(1.0, values)
    pairs = [jax.grad(step_by_step, (0, 1))(1.0, value) for value in values.tolist()]
    expected = jnp.array([pair[0] for pair in pairs])
    np.testing.assert_allclose(of_factor, expected if of_factor.ndim else expected.sum(), rtol=1e-12)
    np.testing.assert_allclose(of_values, [pair[1] for pair in pairs], rtol=1e-12)


@pytest.mark.parametrize("order", ORDERS)
def test_all_parameters_of_a_loop_that_stops_are_data(order):
    traced = jax.make_jaxpr(ORDERS[order](partial(loss_of_a_loop_that_stops, stopping)))(PARAMS, XS)
    scans = [one for one in equations_of(traced.jaxpr) if one.primitive.name.startswith("rnnscan")]
    assert any(one.params["scan"].condition is not None for one in scans)
    assert all(is_data(value) for one in scans for value in one.params.values())


def is_data(value):
    """Whether a value is compared, hashed and printed, and holds no function, tracer or array."""
    if isinstance(value, core.ClosedJaxpr):
        return not value.consts
    if dataclasses.is_dataclass(value):
        return all(is_data(getattr(value, field.name)) for field in dataclasses.fields(value))
    if isinstance(value, tuple | frozenset):
        return all(map(is_data, value))
    return value is None or isinstance(value, bool | int | float | str | enum.Enum)


@pytest.mark.parametrize("context", [None, "gpu"])
@pytest.mark.parametrize("order", ORDERS)
def test_all_parameters_are_data(order, context):
    run = partial(loss, partial(rs.scan, memory=rs.Memory(recompute=("gates",))))
    if context:
        with rs.tuned_for(context):
            traced = jax.make_jaxpr(ORDERS[order](run))(PARAMS, XS)
    else:
        traced = jax.make_jaxpr(ORDERS[order](run))(PARAMS, XS)
    scans = [one for one in equations_of(traced.jaxpr) if one.primitive.name.startswith("rnnscan")]
    assert scans
    for equation in scans:
        assert all(map(is_data, equation.params.values())), equation
        hash(tuple(equation.params.values()))  # It raises for what has no hash.


def scans_of(function, *given):
    return [one for one in jax.make_jaxpr(function)(*given).eqns if "scan" in one.primitive.name]


def test_a_gradient_is_two_scans_with_their_steps():
    forward, backward = scans_of(jax.grad(partial(loss, rs.scan)), PARAMS, XS)
    assert (forward.primitive.name, backward.primitive.name) == ("rnnscan_scan", "rnnscan_cotangent_scan")
    shapes = [aval.shape for aval in forward.params["step"].in_avals]
    assert shapes[-3:] == [(3, 4), (3, 4), (3, 2)], "the carry, and x"
    assert backward.params["scan"].options.kept == ("gates",)
    products = [one for one in backward.params["step"].eqns if one.primitive.name == "dot_general"]
    assert len(products) == 3, "the cotangents of h, of the kernel and of the recurrent kernel"


def test_calls_that_are_equal_have_equal_parameters():
    def calls(params, xs):
        back = partial(rs.scan, reverse=True)
        return loss(rs.scan, params, xs) + loss(rs.scan, params, 2 * xs) + loss(back, params, xs)

    for function in (calls, jax.grad(calls)):
        scans = [one.params for one in scans_of(function, PARAMS, XS) if one.primitive.name == "rnnscan_scan"]
        first, second, third = scans
        assert first == second != third


@pytest.mark.large_loops
def test_equal_layers_are_planned_and_lowered_once(monkeypatch):
    runs = []
    run = scan_rules.run_saving
    monkeypatch.setattr(scan_rules, "run_saving", lambda *given, **options: runs.append(1) or run(*given, **options))
    layers = [rs.cells.GRU(4) for _ in range(5)]
    params = [layer.init(jax.random.key(2), input_size=4) for layer in layers]

    def deep(params, xs):
        for layer, own in zip(layers, params, strict=True):
            xs = rs.scan(layer, own, layer.initial_carry(xs[0]), xs)[1]
        return jnp.sum(xs**2)

    jax.jit(jax.grad(deep)).lower(params, jnp.ones((20, 3, 4)))
    assert len(runs) == 1


@pytest.mark.large_loops
def test_a_program_for_several_platforms_has_the_plan_of_each():
    gradient = jax.jit(jax.grad(partial(loss, rs.scan)))

    def count(*platforms):
        text = gradient.trace(PARAMS, jnp.ones((64, 3, 2))).lower(lowering_platforms=platforms).as_text()
        return [len(re.findall(name, text)) for name in ("stablehlo.while", "optimization_barrier", "stablehlo.tanh")]

    alone = [count(platform) for platform in ("cpu", "cuda", "tpu")]
    assert alone[0] != alone[1] != alone[2]
    assert count("cpu", "cuda", "tpu") == [sum(counts) for counts in zip(*alone, strict=True)]


@pytest.mark.large_loops
def test_rows_are_planned_together():
    cell = rs.cells.GRU(8)
    params = cell.init(jax.random.key(3), input_size=4)
    xs = jnp.ones((6, 20, 4))

    def of_row(xs):
        return jnp.sum(rs.scan(cell, params, cell.initial_carry(xs[0]), xs)[1] ** 2)

    def products(function):
        equations = equations_of(running(function)(xs).jaxpr)
        return sorted(one.outvars[0].aval.shape for one in equations if one.primitive.name == "dot_general")

    def together(xs):
        return jnp.sum(jax.vmap(of_row)(xs))

    assert products(jax.vmap(jax.grad(of_row))) == products(jax.grad(together))


@pytest.mark.core("rows")
@pytest.mark.parametrize("mapped", [(0,), (1,), (2,), (0, 1)], ids=str)
def test_an_output_that_is_the_carry_has_rows_if_only_the_first_carry_has_some(mapped, x64):
    """The backward pass reads h before a step, and after it, from one stack, to which the first carry comes."""
    draw = partial(normal, np.random.default_rng(0), dtype=jnp.float64)
    given = draw((3, 4)), draw((2, 4)), draw((6, 2, 3))

    def cell(w, h, x):
        new = jnp.tanh(x @ w)
        return new, (new, h * new)

    def gradient(scan):
        def loss(w, h, xs):
            final, (first, second) = scan(cell, w, h, xs)
            return jnp.sum(jnp.sin(first)) + jnp.sum(second**2) + jnp.sum(final)

        return jax.jit(jax.vmap(jax.grad(loss, (0, 1, 2)), tuple(0 if i in mapped else None for i in range(3))))

    rows = [leaf + draw((5, *leaf.shape)) if i in mapped else leaf for i, leaf in enumerate(given)]
    expected = gradient(lambda cell, w, h, xs: lax.scan(partial(cell, w), h, xs))(*rows)
    for leaf, other in zip(gradient(rs.scan)(*rows), expected, strict=True):
        np.testing.assert_allclose(leaf, other, rtol=1e-9, atol=1e-11)


@pytest.mark.core("rows")
def test_forward_mode_of_the_rows_of_a_gradient_that_reads_no_carry(x64):
    """The first carry has rows, and so have zeros in place of the carries that are not read."""
    draw = partial(normal, np.random.default_rng(0), dtype=jnp.float64)
    w, carry, xs = draw((4, 4)), draw((5, 2, 4)), draw((6, 2, 4))

    def tangents(scan):
        loss = lambda h, xs: jnp.sum(scan(w, h, xs)[1] ** 2)  # noqa: E731
        gradient = jax.vmap(jax.grad(loss, 1), (0, None))
        return jax.jit(lambda h, xs: jax.jvp(partial(gradient, h), (xs,), (xs,)))(carry, xs)

    def cell(w, h, x):
        return jnp.tanh(h @ w + x), jnp.sin(x) ** 2

    expected = tangents(lambda w, h, xs: lax.scan(partial(cell, w), h, xs))
    for leaf, other in zip(tangents(partial(rs.scan, cell)), expected, strict=True):
        np.testing.assert_allclose(leaf, other, rtol=1e-9, atol=1e-11)


def test_no_step_is_kept_alive():
    def steps():
        traced = jax.jit(jax.grad(partial(loss, partial(rs.scan, unroll=2)))).trace(PARAMS, XS)
        traced.lower()
        scans = [one for one in traced.jaxpr.eqns if "scan" in one.primitive.name]
        return [weakref.ref(one.params["step"].jaxpr) for one in scans]

    references = steps()
    assert len(references) == 2
    jax.clear_caches()
    gc.collect()
    assert [reference() for reference in references] == [None, None]


def test_a_key_that_an_inner_jit_closes_over():
    key = jax.random.key(5)
    noisy = jax.jit(lambda hidden: hidden + jax.random.normal(key, hidden.shape))

    def cell(params, carry, x):
        carry = noisy(jnp.tanh(carry * params + x))
        return carry, carry

    ours, theirs = (jax.jit(scan, static_argnums=0)(cell, 0.5, jnp.ones((3, 2)), XS)[1] for scan in (rs.scan, plain))
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def _counts(params, carry, x):
    """Linear in x, beside a counter."""
    hidden, count = carry
    return (hidden * params * (count % 3) + x, count + 1), hidden


def _is_given(params, carry, x):
    """Linear in x, by a factor that does not depend on it."""
    factor, hidden = carry
    return (jnp.sin(factor), hidden * factor + x), hidden


def _counts_within(params, carry, x):
    """Linear in x, with a counter within a loop of the step."""
    hidden, count = carry
    (hidden, count), _ = lax.scan(
        lambda pair, _: ((pair[0] * params + x * pair[1], pair[1] + 1), None), (hidden, count), None, 2
    )
    return (hidden, count), hidden


@pytest.mark.core("derivatives")
@pytest.mark.parametrize(
    ("cell", "carry"),
    [
        (_counts_within, (jnp.zeros((3, 2)), 0)),
        (_counts, (jnp.ones((3, 2)), 0)),
        (_is_given, (jnp.ones((3, 2)), jnp.ones((3, 2)))),
    ],
)
def test_a_linear_scan_with_known_results_is_transposed(cell, carry):
    def transposed(scan):
        def linear(xs):
            (first, _), ys = scan(cell, 0.5, carry, xs)
            return ys * (first if cell is _is_given else 1)

        return jax.jit(lambda xs: jax.linear_transpose(linear, xs)(xs))(XS)

    for leaf, expected in zip(*map(jax.tree.leaves, map(transposed, (rs.scan, plain))), strict=True):
        np.testing.assert_allclose(leaf, expected, rtol=1e-5)


def test_a_gradient_outside_of_jit_with_a_key_and_an_array_that_a_cell_closes_over():
    key, shift = jax.random.key(5), jnp.ones(2)
    noisy = jax.jit(lambda hidden: hidden + jax.random.normal(key, hidden.shape))

    def cell(params, carry, x):
        carry = noisy(jnp.tanh(carry * params + x)) + shift
        return carry, carry

    def slope(scan):
        return jax.grad(lambda params: jnp.sum(scan(cell, params, jnp.ones((3, 2)), XS)[1]))(0.5)

    np.testing.assert_allclose(slope(rs.scan), slope(plain), rtol=1e-5)


def test_no_array_that_a_step_captures_is_kept_alive():
    def run():
        array = jnp.full((3, 2), 0.5)
        shifted = jax.jit(lambda hidden: hidden + array)

        def cell(params, carry, x):
            carry = shifted(jnp.tanh(carry * params + x))
            return carry, carry

        jax.jit(jax.grad(lambda params: jnp.sum(rs.scan(cell, params, jnp.ones((3, 2)), XS)[1]))).lower(0.5)
        return weakref.ref(array)

    reference = run()
    jax.clear_caches()
    gc.collect()
    assert reference() is None


def test_a_mapped_tangent_map_is_transposed(x64):
    params = jax.tree.map(lambda leaf: leaf.astype(float), PARAMS)
    rows = jax.tree.map(lambda leaf: jnp.stack([leaf, 2 * leaf]), params)

    def transposed(scan):
        push = lambda dot: jax.jvp(lambda params: loss(scan, params, XS.astype(float)), (params,), (dot,))[1]  # noqa: E731
        return jax.linear_transpose(jax.vmap(push), rows)(jnp.arange(2.0))

    for leaf, expected in zip(*map(jax.tree.leaves, map(transposed, (rs.scan, plain))), strict=True):
        np.testing.assert_allclose(leaf, expected, rtol=1e-9)


def test_a_loop_within_a_step_that_starts_from_a_python_bool():
    """JAX 0.10 keeps it as the value of a literal."""

    def once(pair):
        return jnp.sin(pair[0]), False

    def cell(params, carry, x):
        factor, _ = lax.while_loop(lambda pair: pair[1], once, (carry[0, 0] * 0 + 1, True))
        carry = lax.stop_gradient(factor) * jnp.tanh(carry * params + x)
        return carry, carry

    def slope(scan):
        return jax.grad(lambda params: jnp.sum(scan(cell, params, jnp.ones((3, 2)), XS)[1]))(0.5)

    np.testing.assert_allclose(slope(rs.scan), slope(plain), rtol=1e-5)


@pytest.mark.parametrize(
    "order", [pushed, lambda run: pushed(jax.grad(run)), lambda run: pushed(lambda w: pushed(run)(w)[1])]
)
def test_tangents_that_are_python_numbers(order):
    def run(scan):
        def last(weight):
            return scan(lambda params, carry, x: (carry * params + x, carry), weight, 1.0, jnp.arange(3.0))[0]

        return jax.jit(lambda: order(last)(2.0))()

    np.testing.assert_allclose(*map(jnp.stack, (run(rs.scan), run(plain))))


@pytest.mark.large_loops
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", ["LSTM", "GRU", "MinGRU", "two kinds"])
def test_a_backward_pass_is_that_of_its_two_scans(name, reverse, x64):
    """One as it runs, the other as JAX differentiates it: with every kind of carry, and results that nothing reads."""

    def two_kinds(params, carry, x):
        h, total, count = carry
        h = jnp.tanh(h @ params["matrix"] + x)
        total = total * jax.nn.sigmoid(x) + h
        return (h, total, count + 1), (h, total * count)

    if name == "two kinds":
        cell, params = two_kinds, {"matrix": jax.random.normal(jax.random.key(1), (2, 2))}
        carry = (XS[0].astype(float), 2 * XS[0].astype(float), 0)
    else:
        cell = getattr(rs.cells, name)(4)
        params = jax.tree.map(lambda leaf: leaf.astype(float), cell.init(jax.random.key(1), input_size=2))
        carry = jax.tree.map(lambda leaf: leaf.astype(float) + 0.3, cell.initial_carry(XS[0]))

    def total(params, xs):
        final, ys = rs.scan(cell, params, carry, xs, reverse=reverse, memory=rs.Memory(chunk=5))
        return sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves((final[0], ys)))

    given = params, XS.astype(float)
    traced = jax.make_jaxpr(jax.grad(total, (0, 1)))(*given)
    equations = traced.jaxpr.eqns
    place = [one.primitive.name for one in equations].index("rnnscan_cotangent_scan")
    backward = equations[place]
    before = traced.jaxpr.replace(eqns=equations[:place], outvars=backward.invars)
    operands = core.jaxpr_as_fun(core.ClosedJaxpr(before, traced.consts))(*jax.tree.leaves(given))
    by_scans = cotangent_scan._by_scans(*operands, **backward.params)
    for leaf, expected in zip(
        cotangent_scan.cotangent_scan_p.bind(*operands, **backward.params), by_scans, strict=True
    ):
        np.testing.assert_allclose(leaf, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.core("loops that stop")
@pytest.mark.parametrize("first", [1, None], ids=["an integer first", "one leaf"])
def test_a_count_that_nothing_reads_outlives_dead_code(first, x64):
    """A `jax.checkpoint` in a scan eliminates it before the second derivative is taken."""
    xs = jnp.array([1.0, 0.7, 1.2])

    def step(_, carry):
        *number, value = carry
        value = 1.3 * value + 0.1 * jnp.sin(value) * (number[0] if number else 1)
        return (*(one + 2 for one in number), value)

    def start(value):
        return (value,) if first is None else (first, value)

    def by_loop(value):
        return rs.while_net(lambda _, carry: carry[-1] < 5, step, start(value), max_steps=7, on_limit="stop")[0][-1]

    def by_steps(value):
        return selecting(lambda _, carry: carry[-1] < 5, step, start(value), None)[-1]

    def second(run):
        def cell(carry, x):
            last = run(carry * x)
            return last / (1 + last**2), None

        return jax.grad(jax.grad(lambda carry: lax.scan(jax.checkpoint(cell), carry, xs)[0]))(0.8)

    np.testing.assert_allclose(second(by_loop), second(by_steps), rtol=1e-9)


def test_a_tangent_that_reaches_no_result_is_dead_code():
    """The results are truth values, which have none."""
    step, scan = jax.make_jaxpr(lambda carry, x: (carry | (x > 0.3), x > 0.1))(False, 0.5), Scan(0, 1, 5, False)
    xs = jnp.linspace(-1, 1, 5)

    def final(xs, tangents):
        return bind([np.array(False), xs, tangents], step, scan, tangents=Tangents((False, True), (False, False)))[0]

    jaxpr = jax.make_jaxpr(final)(xs, xs).jaxpr
    for _ in range(2):
        jaxpr, used = partial_eval.dce_jaxpr(jaxpr, [True])
    assert used == [True]
    assert jax.jit(final)(xs, xs)
