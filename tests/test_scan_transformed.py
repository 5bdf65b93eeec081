"""scan() within JAX's transformations and around them: grad, vmap, jit, checkpoint, export, shard_map."""

import functools
import gc
import weakref

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AxisType, PartitionSpec

import rnnscan as rs
from rnnscan.insight import kept_bytes
from scanned import MEMORIES, value_and_gradients
from slow_reference import arguments, assert_close, cell, loss
from tiers import variants


pytestmark = pytest.mark.usefixtures("x64", "engine")


@pytest.mark.core("as `lax.scan`")
@pytest.mark.parametrize("choice", variants(["plain autodiff", "keep names", "segments"], ["segments"]))
def test_arrays_that_the_cell_closes_over_get_gradients(choice):
    params, carry, xs = arguments(0, 6, 2)

    def closed(params, carry, xs):
        return rs.scan(lambda _, carry, x: cell(params, carry, x), None, carry, xs, memory=MEMORIES[choice])

    opened = functools.partial(rs.scan, cell)
    assert_close(value_and_gradients(closed, params, carry, xs), value_and_gradients(opened, params, carry, xs))


@pytest.mark.core("rows")
@pytest.mark.parametrize("choice", variants(["plain autodiff", "keep names", "segments"], ["keep names"]))
def test_vmap_over_everything_equals_a_loop(choice):
    several = [arguments(seed, 5, 2) for seed in range(3)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *several)

    def gradients(params, carry, xs):
        return jax.grad(lambda params: loss(rs.scan(cell, params, carry, xs, memory=MEMORIES[choice])))(params)

    expected = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(jax.jit(gradients)(*one) for one in several))
    assert_close(jax.jit(jax.vmap(gradients))(*stacked), expected)


@pytest.mark.core("modes of JAX")
def test_jit_eager_and_disabled_jit_agree():
    given = arguments(0, 4, 2)
    run = functools.partial(rs.scan, cell, memory=rs.Memory(segment=3))
    assert_close(run(*given), jax.jit(run)(*given))
    with jax.disable_jit():
        assert_close(run(*given), jax.jit(run)(*given))


@pytest.mark.core("transformations within a step")
def test_the_outer_checkpoint_of_a_user_works_around_it():
    params, carry, xs = arguments(0, 6, 2)
    run = functools.partial(rs.scan, cell, memory=rs.Memory(segment=4))
    assert_close(
        value_and_gradients(jax.checkpoint(run), params, carry, xs), value_and_gradients(run, params, carry, xs)
    )


@pytest.mark.core("transformations within a step")
def test_a_scan_within_a_cell():
    params, carry, xs = arguments(0, 5, 2)

    def outer(params, carry, xs):
        carry, ys = rs.scan(cell, params, carry, xs, memory=rs.Memory(recompute=("gate",)))
        return carry, rs.name(ys["out"].sum(0), "total")

    doubled = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), xs)
    run = functools.partial(rs.scan, outer, memory=rs.Memory(recompute=("total",)))
    expected = functools.partial(rs.scan, outer, memory=None)
    assert_close(
        value_and_gradients(run, params, carry, doubled), value_and_gradients(expected, params, carry, doubled)
    )


AROUND_NAMES = [rs.Memory(), rs.Memory(recompute=("outer",)), rs.Memory(segment=2)]


def nested(kind, value):
    """A name for `value` in a transformation within the cell, and once more outside of it."""
    name = lambda value: jnp.sin(rs.name(value, "inner"))  # noqa: E731
    match kind:
        case "cond":
            inner = lax.cond(value.sum() > 0, name, lambda value: rs.name(value, "inner") * 2, value)
        case "closing cond":
            inner = lax.cond(value.sum() > 0, lambda: name(value), lambda: rs.name(value, "inner"))
        case "jit":
            inner = jax.jit(lambda: name(value))()
        case "checkpoint":
            inner = jax.checkpoint(lambda: name(value))()
        case "vmap":
            inner = jax.vmap(name)(value)
        case "scan":
            inner = lax.scan(lambda carry, _: (carry + name(value), None), value, None, length=2)[0]
    return inner + rs.name(value, "outer")


@pytest.mark.core("transformations within a step")
@pytest.mark.parametrize("memory", variants(AROUND_NAMES, [rs.Memory(recompute=("outer",))]), ids=str)
@pytest.mark.parametrize(
    "kind", variants(["cond", "closing cond", "jit", "checkpoint", "vmap", "scan"], ["closing cond", "vmap", "scan"])
)
def test_names_within_transformations_in_the_cell(kind, memory):
    def stepped(params, carry, x):
        hidden = jnp.tanh(nested(kind, x["signal"] @ params["kernel"] + carry))
        return hidden, hidden

    params, carry, xs = arguments(0, 3, 2)
    gradient = lambda memory: jax.jit(  # noqa: E731
        jax.grad(lambda params: loss(rs.scan(stepped, params, carry["hidden"], xs, memory=memory)))
    )(params)
    assert_close(gradient(memory), gradient(None))


@pytest.mark.core("kept programs")
def test_no_trace_is_kept_alive():
    """JAX's caches hold what a name's reader is, for as long as they like."""
    traced = []

    @jax.jit  # Its cache has the reader in its key.
    def product(params, x):
        result = rs.name(x * params, "product")
        traced.append(weakref.ref(result))
        return result

    def cell(params, carry, x):
        hidden = jnp.tanh(product(params, x) + carry)
        return hidden, hidden

    jax.grad(lambda params: loss(rs.scan(cell, params, jnp.ones(2), jnp.ones((3, 2)))))(jnp.ones(2))
    gc.collect()
    assert traced
    assert [one for one in traced if one() is not None] == []


@pytest.mark.core("export")
def test_export_with_symbolic_time_and_batch():
    params, _, xs = arguments(0, 4, 2)

    def run(xs):
        rows = xs["signal"].shape[1]
        initial = {"hidden": jnp.ones((rows, 4)), "count": jnp.zeros(rows, xs["token"].dtype)}
        return rs.scan(cell, params, initial, xs)

    shapes = {"signal": "t, b, 3", "scale": "t", "token": "t, b"}
    scope = jax.export.SymbolicScope()
    symbolic = {
        name: jax.ShapeDtypeStruct(jax.export.symbolic_shape(shape, scope=scope), xs[name].dtype)
        for name, shape in shapes.items()
    }
    assert_close(jax.export.export(jax.jit(run))(symbolic).call(xs), run(xs))


@pytest.mark.core("devices")
@pytest.mark.skipif(jax.device_count() < 2, reason="needs two devices")
@pytest.mark.parametrize("padding", variants(["zero", "hold"], ["hold"]))
def test_shard_map_over_the_batch(padding):
    params, carry, xs = arguments(0, 5, 2)
    lengths = jnp.array([2, 5])
    mesh = jax.make_mesh((2,), ("batch",), axis_types=(AxisType.Auto,))
    rows, steps = PartitionSpec("batch"), PartitionSpec(None, "batch")

    def run(params, carry, xs, lengths):
        memory = rs.Memory(segment=3, recompute=("gate",))
        return rs.scan(cell, params, carry, xs, seq_lengths=lengths, padding=padding, truncate=2, memory=memory)

    sharded = jax.shard_map(
        run,
        mesh=mesh,
        in_specs=(PartitionSpec(), rows, {"signal": steps, "scale": PartitionSpec(), "token": steps}, rows),
        out_specs=(rows, steps),
    )

    def results_and_gradient(run):
        def loss_and_results(params):
            results = run(params, carry, xs, lengths)
            return loss(results), results

        return jax.jit(jax.value_and_grad(loss_and_results, has_aux=True))(params)

    assert_close(results_and_gradient(sharded), results_and_gradient(run))


@pytest.mark.core("devices")
@pytest.mark.parametrize("wanted", [0, 1], ids=["carry", "outputs"])
def test_shard_map_where_the_loss_reads_the_carry_or_the_outputs_alone(wanted):
    """In several chunks, with what the cell closes over sharded too."""
    mesh = jax.make_mesh((2,), ("batch",), axis_types=(AxisType.Auto,))
    rows, steps = PartitionSpec("batch"), PartitionSpec(None, "batch")
    params, carry, xs = jnp.full((3, 3), 0.3), jnp.full((4, 3), 0.1), jnp.linspace(0.0, 1.0, 6 * 4 * 3).reshape(6, 4, 3)

    def run(params, scale, carry, xs):
        def cell(params, carry, x):
            hidden = jnp.tanh((carry * scale) @ params + x)
            return hidden, hidden * scale

        return rs.scan(cell, params, carry, xs, memory=rs.Memory(recompute="all", segment=4))[wanted]

    out = (rows, steps)[wanted]
    sharded = jax.shard_map(run, mesh=mesh, in_specs=(PartitionSpec(), rows, rows, steps), out_specs=out)
    gradient = lambda run: jax.jit(jax.grad(lambda *given: (run(*given) ** 2).sum(), argnums=(0, 1, 2, 3)))  # noqa: E731
    given = (params, jnp.full((4, 1), 0.7), carry, xs)
    assert_close(gradient(sharded)(*given), gradient(run)(*given))


@pytest.mark.core("modes of JAX")
def test_a_buffer_that_is_donated_gives_the_same():
    params, carry, xs = arguments(0, 5, 2)
    run = lambda params, carry: rs.scan(cell, params, carry, xs)[0]  # noqa: E731
    expected = run(params, carry)
    donated = jax.jit(run, donate_argnums=1)(params, jax.tree.map(jnp.copy, carry))
    assert_close(donated, expected)


@pytest.mark.core("kept programs")
def test_tracing_does_not_depend_on_what_was_traced_before():
    """An inner jit is traced anew for each memory choice: its names may not come from another choice's cache."""
    inner = jax.jit(cell)
    given = arguments(0, 6, 2)

    def bytes_kept(cell, memory):
        params, carry, xs = given
        run = lambda params: rs.scan(cell, params, carry, xs, memory=memory)[1]["out"]  # noqa: E731
        return kept_bytes(run, params)

    for memory in (None, rs.Memory(), rs.Memory(recompute=("gate",)), rs.Memory(recompute="all"), None):
        assert bytes_kept(lambda *args: inner(*args), memory) == bytes_kept(cell, memory)


@pytest.mark.core("kept programs")
def test_nothing_is_traced_again_on_a_second_call():
    traces = []

    def counted(params, carry, x):
        traces.append(None)
        return cell(params, carry, x)

    run = jax.jit(functools.partial(rs.scan, counted))
    given = arguments(0, 4, 2)
    run(*given)
    before = len(traces)
    run(*given)
    assert len(traces) == before


@pytest.mark.parametrize(
    "options", [{}, {"memory": rs.Memory(segment=2)}, {"memory": rs.Memory(segment=(4, 2))}], ids=str
)
def test_rules_that_read_which_tangents_are_zero(options):
    """The leaves of their residuals are fewer where an operand has no tangent, as in the first step."""

    @jax.custom_vjp
    def product(x, y):
        return x * y + x

    def forward(x, y):
        return product(x.value, y.value), (y.value, (x.value,) if y.perturbed else ())

    def backward(residuals, cotangent):
        y, x = residuals
        return cotangent * (y + 1), (x[0] * cotangent if x else None)

    product.defvjp(forward, backward, symbolic_zeros=True)

    def step(_, carry, x):
        return (product(*carry) + x, 0.5 * carry[0]), carry[0]

    xs = jnp.linspace(0.1, 0.3, 6)

    def by_scan(start):
        return jax.lax.scan(lambda *step_of: step(None, *step_of), (start, jnp.ones_like(start)), xs)[0][0]

    def run(start):
        return rs.scan(step, None, (start, jnp.ones_like(start)), xs, **options)[0][0]

    start = jnp.asarray(0.4)
    for transform in (jax.grad, lambda f: jax.grad(jax.checkpoint(f))):
        assert jnp.allclose(transform(run)(start), transform(by_scan)(start), rtol=1e-5)
