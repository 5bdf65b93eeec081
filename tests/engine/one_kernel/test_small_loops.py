"""Small loops of a CPU run written out, by one plain scan, and equal `lax.scan` in every transformation."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import rnnscan as rs
from benchmarks.small_steps import USES, Use, in_rows, kalman
from tiers import variants


STEPS = 7
SOME = ["Kalman filter, 4 states, 2 observed", "square root Kalman filter, 4 states", "GRU, 8 units"]
TOO_LARGE = "Kalman filter by division, 16 states", "8 Kalman filters, 8 states"
IN_ONE_KERNEL = [name for name in USES if not name.startswith(TOO_LARGE)]
pytestmark = pytest.mark.usefixtures("x64")


def plain(use, **options):
    return lambda params, carry, xs: lax.scan(partial(use.cell, params), carry, xs, **options)


def in_float64(use):
    """Cells of the library have parameters in float32, whose sums over the steps are rounded in their order."""
    return use._replace(**{part: jax.tree.map(jnp.float64, getattr(use, part)) for part in ("params", "carry", "xs")})


def by_rnnscan(use, **options):
    return lambda params, carry, xs: rs.scan(use.cell, params, carry, xs, **options)


def loss_of(run):
    def loss(*arguments):
        final, ys = run(*arguments)
        return sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(final)) + jnp.sum(ys)

    return loss


def is_one_kernel(use, **options):
    return rs.explain(use.cell, *arguments_of(use), **options).kernel.startswith("one kernel")


def assert_equal(got, expected, tolerance=1e-10):
    jax.tree.map(partial(np.testing.assert_allclose, rtol=tolerance, atol=tolerance), got, expected)


def arguments_of(use):
    return use.params, use.carry, use.xs


QUICK = [
    *SOME,
    "Kalman filter by division, 16 states",
    "extended Kalman filter, 3 states",
    "8 Kalman filters, 2 states, 1 observed",
]


@pytest.mark.parametrize("name", variants(list(USES), QUICK))
def test_values_and_gradients_are_those_of_lax_scan(name):
    use = in_float64(USES[name](STEPS))
    for transformed in (lambda run: run, lambda run: jax.grad(loss_of(run), (0, 1, 2))):
        got, expected = (transformed(run)(*arguments_of(use)) for run in (by_rnnscan(use), plain(use)))
        assert_equal(got, expected)


@pytest.mark.parametrize("name", variants(list(USES), SOME))
def test_rounding_in_float32_is_that_of_plain(name):
    """The errors of the log likelihood and of its gradient, beside plain `lax.scan` in float64."""

    def results(use, run):
        likelihood = jax.jit(jax.value_and_grad(lambda params: jnp.sum(run(params, use.carry, use.xs)[1])))
        value, gradient = likelihood(use.params)
        return value, jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(gradient)])

    with jax.enable_x64(False):
        use = USES[name](200)
        narrow = [results(use, run(use)) for run in (by_rnnscan, plain)]
    wide = use._replace(
        **{
            part: jax.tree.map(lambda leaf: leaf.astype(jnp.float64), getattr(use, part))
            for part in ("params", "carry", "xs")
        }
    )
    for mine, of_plain, exact in zip(*narrow, results(wide, plain(wide)), strict=True):
        size = jnp.max(jnp.abs(exact))
        errors = [float(jnp.max(jnp.abs(each - exact)) / size) for each in (mine, of_plain)]
        assert errors[0] <= 1.5 * errors[1] + 1e-6
        np.testing.assert_allclose(mine / size, of_plain / size, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", USES)
def test_what_is_small_is_one_kernel_and_says_so(name):
    with jax.enable_x64(False):
        use = USES[name](1_000)
        explanation = rs.explain(use.cell, *arguments_of(use))
    assert ("one kernel" in str(explanation)) == (name in IN_ONE_KERNEL)


OPTIONS = [{"reverse": True}, {"unroll": 2}, {"truncate": 3}]
OPTIONS += [{"memory": rs.Memory(**choice)} for choice in ({"recompute": "all"}, {"segment": 3}, {"segment": "sqrt"})]
WITH_OPTIONS = [*SOME[:2], "SIR epidemic, Runge-Kutta 4"]
CASES = {f"{name}, {options}": (name, options) for options in OPTIONS for name in WITH_OPTIONS}


# Each option for one of the uses in `make test`.
EACH = [f"{WITH_OPTIONS[number % len(WITH_OPTIONS)]}, {options}" for number, options in enumerate(OPTIONS)]


@pytest.mark.parametrize(("name", "options"), variants(CASES, EACH))
def test_options_change_no_value(name, options):
    use = USES[name](STEPS)
    by_lax = partial(rs.scan, use.cell, engine="lax", **options)
    calls_nothing, keeps_nothing = "SIR" in name, options.get("memory") == rs.Memory(recompute="all")
    runs_as_large = calls_nothing and keeps_nothing  # It would gain nothing.
    assert is_one_kernel(use, **options) != runs_as_large
    got, expected = (
        jax.value_and_grad(loss_of(run), (0, 1, 2))(*arguments_of(use)) for run in (by_rnnscan(use, **options), by_lax)
    )
    assert_equal(got, expected)


@pytest.mark.parametrize("name", variants(SOME, SOME[2:]))
def test_second_order_and_forward_mode(name):
    use = in_float64(USES[name](STEPS))
    tangents = jax.tree.map(jnp.cos, arguments_of(use))

    def second(run):
        return jax.jvp(jax.grad(loss_of(run), (0, 1, 2)), arguments_of(use), tangents)[1]

    def reverse(run):
        return jax.grad(lambda params: loss_of(lambda *rest: run(*rest))(params, use.carry, use.xs))

    assert_equal(second(by_rnnscan(use)), second(plain(use)), 1e-8)
    got, expected = (
        jax.grad(lambda params, run=run: sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(reverse(run)(params))))(
            use.params
        )
        for run in (by_rnnscan(use), plain(use))
    )
    assert_equal(got, expected, 1e-7)


@pytest.mark.parametrize("name", variants(SOME, SOME[2:]))
def test_vmap_is_a_loop_over_rows(name):
    use = in_float64(USES[name](STEPS))
    stacked = jnp.stack([use.xs, 0.5 * use.xs, -use.xs])
    gradient = jax.grad(loss_of(by_rnnscan(use)))
    got = jax.vmap(gradient, (None, None, 0))(use.params, use.carry, stacked)
    expected = [gradient(use.params, use.carry, xs) for xs in stacked]
    assert_equal(got, jax.tree.map(lambda *leaves: jnp.stack(leaves), *expected))


def test_lengths_and_resets():
    use = in_rows(kalman(3, 2, STEPS), 2)
    options = {"seq_lengths": jnp.asarray([4, 7]), "reset_to": jax.tree.map(jnp.ones_like, use.carry)}
    options["reset"] = jnp.zeros((STEPS, 2), bool).at[2, 1].set(True)
    by_lax = partial(rs.scan, use.cell, engine="lax", **options)
    assert "one kernel" in str(rs.explain(use.cell, *arguments_of(use), **options))
    got, expected = (
        jax.value_and_grad(loss_of(run), (0, 1, 2))(*arguments_of(use)) for run in (by_rnnscan(use, **options), by_lax)
    )
    assert_equal(got, expected)


def test_integers_keys_and_numbers_in_the_carry():
    def cell(params, carry, x):
        (count, number, matrix) = carry
        matrix = matrix @ params["matrix"] + jnp.diag(x)
        return (count + 1, number + matrix[0, 0], matrix), (matrix.sum(), count)

    params = {"matrix": jnp.asarray([[0.5, 0.1], [0.2, 0.4]])}
    carry, xs = (0, 1.0, jnp.eye(2)), jnp.linspace(0, 1, 2 * STEPS).reshape(STEPS, 2)
    assert "one kernel" in str(rs.explain(cell, params, carry, xs))
    assert_equal(rs.scan(cell, params, carry, xs), lax.scan(partial(cell, params), carry, xs))


def test_a_leaf_that_does_not_change_and_arrays_that_are_closed_over_have_gradients():
    weights = jnp.asarray([[0.5, 0.1], [0.2, 0.4]])

    def loss(weights, fixed, run):
        def cell(params, carry, x):
            state, fixed = carry
            state = jnp.tanh(weights @ jnp.outer(state, fixed) @ weights)[:, 0] + x
            return (state, fixed), state

        return jnp.sum(run(cell, (jnp.ones(2), fixed), jnp.ones((STEPS, 2)))[1] ** 2)

    fixed = jnp.asarray([0.3, 0.7])
    ours = lambda cell, carry, xs: rs.scan(cell, None, carry, xs)  # noqa: E731
    plain = lambda cell, carry, xs: lax.scan(partial(cell, None), carry, xs)  # noqa: E731
    got, expected = (jax.grad(loss, (0, 1))(weights, fixed, run) for run in (ours, plain))
    assert_equal(got, expected)


def noisy(steps):
    """A step that draws numbers."""

    def cell(params, carry, x):
        key, state = carry
        key, of_noise, of_choice = jax.random.split(key, 3)
        state = jnp.tanh(params @ jnp.outer(state, x) @ params)[:, 0] + 0.1 * jax.random.normal(of_noise, (2,))
        is_kept = jax.random.bernoulli(jax.random.fold_in(of_choice, 3), 0.7, (2,))
        return (key, jnp.where(is_kept, state, 0.5 * state)), jnp.sum(state)

    params = jnp.asarray([[0.5, 0.1], [-0.3, 0.8]])
    return Use(cell, params, (jax.random.key(3), jnp.ones(2)), jnp.linspace(-1, 1, 2 * steps).reshape(steps, 2))


def indexed(steps):
    """A step that reads and writes by indices that it computes."""

    def cell(params, carry, x):
        table = params @ carry @ params.T
        places = jnp.stack([jnp.argmax(table[:, 0]), jnp.argmin(table[:, 1])])
        table = table.at[places].set(0.5 * table[places] + x[0]).at[places, 0].add(x).at[places[0]].set(x[0])
        return jnp.tanh(table), jnp.sum(table[places[::-1]]) + table[places[1], 2]

    params = 0.3 * jnp.cos(jnp.arange(9.0)).reshape(3, 3)
    return Use(cell, params, jnp.eye(3), jnp.linspace(-1, 1, 2 * steps).reshape(steps, 2))


@pytest.mark.parametrize("make", [noisy, indexed])
def test_random_numbers_and_computed_indices_are_in_the_kernel(make):
    use = make(STEPS)
    assert rs.explain(use.cell, *arguments_of(use)).kernel.startswith("one kernel")
    final, ys = by_rnnscan(use)(*arguments_of(use))
    expected = plain(use)(*arguments_of(use))
    assert_equal((jax.tree.leaves(final)[-1], ys), (jax.tree.leaves(expected[0])[-1], expected[1]))

    def gradient(run):
        """Of the last leaf of the carry too. The other one is a key."""

        def loss(params, state, xs):
            carry = (*use.carry[:-1], state) if isinstance(use.carry, tuple) else state
            final, ys = run(params, carry, xs)
            return jnp.sum(jnp.sin(jax.tree.leaves(final)[-1])) + jnp.sum(ys**2)

        return jax.grad(loss, (0, 1, 2))

    operands = use.params, jax.tree.leaves(use.carry)[-1], use.xs
    tangents = jax.tree.map(jnp.cos, operands)
    mine, of_plain = gradient(by_rnnscan(use)), gradient(plain(use))
    assert_equal(mine(*operands), of_plain(*operands))
    assert_equal(jax.jvp(mine, operands, tangents), jax.jvp(of_plain, operands, tangents))
    stacked = jax.tree.map(lambda leaf: jnp.stack([leaf, 0.5 * leaf]), operands)
    assert_equal(jax.vmap(mine)(*stacked), jax.vmap(of_plain)(*stacked))


@pytest.mark.skipif(jax.__version_info__ < (0, 12), reason="before jax 0.12 a loop of one kernel touches 1 KiB at most")
@pytest.mark.parametrize("make", [noisy, indexed])
def test_xla_compiles_random_numbers_and_computed_indices_into_the_kernel(make):
    with jax.enable_x64(False):
        use = make(1_000)
        loss = lambda params: jnp.sum(rs.scan(use.cell, params, use.carry, use.xs)[1])  # noqa: E731
        compiled = jax.jit(jax.grad(loss)).lower(use.params).compile().as_text()
    assert compiled.count("xla_cpu_small_call") == compiled.count(" while(")


def test_another_generator_than_threefry_keeps_a_loop_from_one_kernel():
    use = noisy(STEPS)
    carry = (jax.random.key(3, impl="rbg"), use.carry[1])
    assert rs.explain(use.cell, use.params, carry, use.xs).kernel.startswith("not one kernel: random_")


@pytest.mark.parametrize("memory", [rs.Memory(), rs.Memory(recompute="all"), rs.Memory(segment=3)])
def test_complex_states_have_gradients(memory):
    def cell(params, carry, x):
        carry = jnp.exp(1j * params["angle"] - 0.1) * carry + (params["inputs"] @ jnp.outer(x, x))[:, 0]
        return carry, jnp.real(carry * jnp.conj(carry))

    params = {"angle": jnp.asarray([0.3, 1.1]), "inputs": jnp.asarray([[0.5, 0.1], [-0.3, 0.8]])}
    use = Use(cell, params, jnp.asarray([1.0 + 0.5j, -0.2j]), jnp.linspace(-1, 1, 2 * STEPS).reshape(STEPS, 2))

    def loss(run):
        return lambda params, xs: jnp.sum(jnp.sin(run(params, use.carry, xs)[1]))

    runs = by_rnnscan(use, memory=memory), plain(use)
    assert rs.explain(cell, *arguments_of(use)).kernel.startswith("one kernel")
    assert_equal(*(jax.grad(loss(run), (0, 1))(use.params, use.xs) for run in runs))
    assert_equal(*(jax.jvp(loss(run), (use.params, use.xs), (use.params, use.xs)) for run in runs))


def test_a_small_lru_has_gradients():
    cell = rs.cells.LRU(4)
    xs = jnp.cos(jnp.arange(8.0 * 3 * 3)).reshape(8, 3, 3)
    params = cell.init(jax.random.key(0), input_size=3)

    def loss(params, **options):
        return jnp.sum(jnp.sin(rs.scan(cell, params, cell.initial_carry(xs[0]), xs, **options)[1]))

    assert_equal(jax.grad(loss)(params), jax.grad(loss)(params, engine="lax"))


def saved_bytes(use, **options):
    def residuals(*arguments):
        return jax.vjp(by_rnnscan(use, **options), *arguments)[1]

    return sum(
        leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(jax.eval_shape(residuals, *arguments_of(use)))
    )


def test_small_residuals_are_kept_and_others_are_not():
    """A short scan keeps them. A long one keeps the carry, as one that recomputes everything does."""
    everything = rs.Memory(recompute="all")
    short, long = (kalman(4, 2, steps) for steps in (100, 20_000))
    assert saved_bytes(short) > 1.5 * saved_bytes(short, memory=everything)
    assert saved_bytes(long) == saved_bytes(long, memory=everything)
    assert "one kernel" in str(rs.explain(long.cell, *arguments_of(long)))


def test_small_residuals_of_a_loop_that_is_not_split_are_kept():
    """A derivative rule with symbolic zeros keeps the step in one piece."""

    @jax.custom_vjp
    def product(a, b):
        return a * b

    product.defvjp(lambda a, b: (a.value * b.value, (a.value, b.value)), lambda ab, ct: (ct * ab[1], ct * ab[0]), True)

    def use(steps):
        xs = jnp.cos(jnp.arange(4.0 * steps)).reshape(steps, 4)
        return Use(
            lambda params, h, x: (jnp.sin(jnp.tanh(jnp.exp(-product(h, params)) + x)),) * 2,
            jnp.ones(4),
            jnp.zeros(4),
            xs,
        )

    short, long, everything = use(100), use(40_000), rs.Memory(recompute="all")
    assert rs.explain(short.cell, *arguments_of(short)).engine == "lax"
    assert saved_bytes(short, memory=everything) < saved_bytes(short) == saved_bytes(short, memory=None)
    assert saved_bytes(long, memory=everything) == saved_bytes(long) < saved_bytes(long, memory=None)


def test_a_long_loop_without_calls_runs_as_large_loops_do():
    """One kernel would only compute it again, as they do, and keep the inputs and carries that they keep."""
    short, long = (USES["hidden Markov model, 4 states"](steps) for steps in (100, 20_000))
    assert is_one_kernel(short)
    assert not is_one_kernel(long)


def test_a_loop_without_calls_keeps_what_takes_longer_to_compute_again():
    """An equation of the kernel keeps a value for less time than an exp takes, and for more than a product."""
    use = USES["SIR epidemic, Runge-Kutta 4"](100)
    assert saved_bytes(use) < saved_bytes(use, memory=None) / 2
    use = USES["hidden Markov model, 4 states"](100)
    everything, nothing = saved_bytes(use, memory=None), saved_bytes(use, memory=rs.Memory(recompute="all"))
    # The maximum of a `logsumexp` has no cotangent, so that no derivative reads what it is chosen from.
    assert nothing < saved_bytes(use) < 1.05 * everything
    assert "kept are values that take longer to compute again" in rs.explain(use.cell, *arguments_of(use)).kernel


def test_a_loop_without_calls_keeps_no_more_on_many_rows():
    """The residuals of one row are small. Those of 64 rows are not: they are kept as those of a large loop."""
    use = USES["hidden Markov model, 4 states"](1_000)
    xs = jnp.broadcast_to(use.xs, (64, 1_000))

    def saved(run):
        on_rows = lambda params, carry, xs: jax.vmap(run, (None, None, 0))(params, carry, xs)  # noqa: E731
        leaves = jax.tree.leaves(jax.eval_shape(lambda *a: jax.vjp(on_rows, *a)[1], use.params, use.carry, xs))
        return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)

    assert is_one_kernel(use)
    assert saved(by_rnnscan(use)) == saved(by_rnnscan(use, engine="fission"))


@pytest.mark.skipif(jax.__version_info__ < (0, 12), reason="before jax 0.12 a loop of one kernel touches 1 KiB at most")
@pytest.mark.parametrize("name", [name for name in IN_ONE_KERNEL if "units" not in name])
def test_xla_compiles_both_loops_to_one_kernel(name):
    with jax.enable_x64(False):
        use = USES[name](1_000)
        gradient = jax.jit(jax.grad(loss_of(by_rnnscan(use))))
        compiled = gradient.lower(*arguments_of(use)).compile().as_text()
        # The columns of two QR factors run in loops within the first. The second reads what these have kept.
        loops = 4 if "square root" in name else 2
        assert compiled.count("xla_cpu_small_call") == compiled.count(" while(") == loops


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (lambda: kalman(4, 2, STEPS), {"engine": "fission"}),
        (lambda: kalman(4, 2, STEPS), {"memory": rs.Memory(chunk=4)}),
        (lambda: USES["Kalman filter by division, 16 states"](STEPS), {}),
    ],
)
def test_what_asks_for_more_runs_as_before(make, options):
    use = make()
    assert not is_one_kernel(use, **options)
    assert_equal(by_rnnscan(use, **options)(*arguments_of(use)), plain(use)(*arguments_of(use)))


@pytest.mark.parametrize("platform", ["gpu", "tpu"])
def test_only_a_cpu_has_such_kernels(platform):
    use = kalman(4, 2, STEPS)
    with rs.tuned_for(platform):
        assert "one kernel" not in str(rs.explain(use.cell, *arguments_of(use)))


def test_names_that_are_recomputed_or_kept_in_a_long_scan_are_honored():
    def cell(params, carry, x):
        product = rs.name(params @ carry @ params.T, "product")
        return jnp.tanh(product) + x, product[0, 0]

    use = Use(cell, jnp.eye(2) / 2, jnp.eye(2), jnp.ones((5, 2, 2)))
    assert is_one_kernel(use)
    assert not is_one_kernel(use, memory=rs.Memory(recompute=("product",)))
    long = use._replace(xs=jnp.ones((50_000, 2, 2)))
    assert is_one_kernel(long)
    # The carry before each step, its input and the product.
    assert saved_bytes(long) - saved_bytes(long, memory=rs.Memory("all")) == long.xs.nbytes


def test_explain_says_what_is_written_out_and_what_is_kept():
    use = kalman(4, 2, 100)
    text = rs.explain(use.cell, *arguments_of(use)).kernel
    assert "cholesky" in text
    assert "4 triangular_solve" in text
    assert "kept are values that take longer to compute again, about " in text
    text = rs.explain(use.cell, *arguments_of(use), memory=rs.Memory(recompute="all")).kernel
    assert "computes each step again" in text


@pytest.mark.skipif(jax.__version_info__ >= (0, 12), reason="from jax 0.12 on a step may touch any number of bytes")
def test_explain_names_the_flag_where_the_bytes_are_the_reason(monkeypatch):
    use = kalman(4, 2, 100)
    assert "=65536 before jax starts" in rs.explain(use.cell, *arguments_of(use)).kernel
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_extra_options=xla_cpu_small_while_loop_byte_threshold=65536")
    assert "XLA_FLAGS" not in rs.explain(use.cell, *arguments_of(use)).kernel


def test_explain_names_what_keeps_a_small_loop_from_one_kernel():
    def cell(params, carry, x):
        return jnp.linalg.eigh(params @ carry @ params.T)[1] + x, x[0]  # This line.

    text = rs.explain(cell, jnp.eye(3), jnp.eye(3), jnp.ones((5, 3, 3))).kernel
    assert text.startswith("not one kernel: eigh of float64[3,3] at ")
    assert f"{__file__}:{cell.__code__.co_firstlineno + 1}" in text


def lowered(use, *platforms):
    gradient = jax.jit(jax.grad(loss_of(by_rnnscan(use)), (0, 1, 2)))
    return jax.export.export(gradient, platforms=platforms)(*arguments_of(use)).mlir_module()


def test_a_program_for_several_platforms_is_written_out_on_cpus_alone():
    """Each platform has the loops of its own plan."""
    cpu, cuda, both = (lowered(kalman(2, 1, 5), *names) for names in (["cpu"], ["cuda"], ["cpu", "cuda"]))
    assert "custom_call" not in cpu
    assert "custom_call" in cuda
    assert both.count("stablehlo.while") == cpu.count("stablehlo.while") + cuda.count("stablehlo.while")


@pytest.mark.parametrize("rows", [2, 2_000])
def test_under_vmap_the_loop_of_all_rows_is_one_kernel_or_not(rows):
    """XLA vectorizes the products of many rows."""
    use = kalman(2, 1, 5)
    xs = jnp.broadcast_to(use.xs, (rows, *use.xs.shape))
    on_rows = jax.vmap(lambda xs: by_rnnscan(use)(use.params, use.carry, xs)[1])
    text = jax.jit(jax.grad(lambda xs: jnp.sum(on_rows(xs)))).lower(xs).as_text()
    assert ("lapack" in text) == (rows > 2)


def test_a_value_that_is_not_finite_is_named_with_its_line():
    def cell(params, carry, x):
        factor = jnp.linalg.cholesky(carry @ params @ params.T)
        return carry - x, jnp.log(factor[0, 0])  # This line.

    arguments = (jnp.eye(2), jnp.eye(2), jnp.ones((5, 2, 2)))
    assert rs.explain(cell, *arguments).kernel.startswith("one kernel")
    with jax.debug_nans(True), pytest.raises(FloatingPointError):
        jax.grad(lambda params: jnp.sum(rs.scan(cell, params, *arguments[1:])[1]))(arguments[0])


@pytest.mark.parametrize("rows", [8, 512])
def test_gradients_of_a_factor_on_many_rows(rows):
    """The loop of 512 rows is no kernel: LAPACK leaves the other triangle of a factor as it was."""
    use = kalman(2, 1, 5)
    scales = jnp.linspace(0.5, 1.5, rows)
    of_row = lambda run: lambda params, s: jnp.sum(run(params, jax.tree.map(lambda c: s * c, use.carry), use.xs)[1])  # noqa: E731
    got, expected = (
        jax.jit(jax.vmap(jax.grad(of_row(run)), (None, 0)))(use.params, scales) for run in (by_rnnscan(use), plain(use))
    )
    assert_equal(got, expected, 1e-9)


def test_a_rule_of_a_user_that_closes_over_an_array_and_takes_an_integer():
    weight, carry, xs = jnp.eye(3), jnp.eye(3), jnp.ones((4, 3))
    function = jax.custom_vjp(lambda a, i: jnp.sin(a @ weight))
    function.defvjp(lambda a, i: (function(a, i), a), lambda a, ct: (jnp.cos(a @ weight) * ct @ weight.T, None))

    def cell(params, carry, x):
        new = function(params @ carry, jnp.argmax(carry, 1))
        return jnp.tanh(new), new[0] + x

    use = Use(cell, 0.3 * jnp.eye(3), carry, xs)

    def on_rows(run):
        return lambda params: jnp.sum(jax.vmap(lambda c: run(params, c, xs)[1])(jnp.stack([carry, 2 * carry])))

    assert_equal(*(jax.grad(on_rows(run))(use.params) for run in (by_rnnscan(use), plain(use))))
    assert "one kernel" in rs.explain(cell, use.params, carry, xs).kernel
