"""A gradient of random choices without a key warns, once for each cell: dropout is off in training."""

import linecache
import subprocess
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import rnnscan as rs
from tiers import variants


KEY = jax.random.key(0)
XS = jnp.linspace(-1.0, 1.0, 30).reshape(5, 2, 3)
GRU = rs.cells.GRU(4)
PARAMS = GRU.init(KEY, 3)
CARRY = GRU.initial_carry(XS[0])
RATES = iter(np.linspace(0.1, 0.9, 100).tolist())


def random_cell():
    """A cell of its own for each test: it warns once, and so does JAX, which keeps derivatives of programs."""
    return rs.dropout(GRU, next(RATES))


@pytest.fixture
def warnings_are_errors():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def loss(params, cell, **options):
    return rs.scan(cell, params, CARRY, XS, **options)[1].sum()


TRANSFORMS = {
    "grad": jax.grad,
    "jit of grad": lambda f: jax.jit(jax.grad(f)),
    "grad of jit": lambda f: jax.grad(jax.jit(f)),
    "jvp": lambda f: lambda params: jax.jvp(f, (params,), (params,)),
}


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
def test_a_gradient_without_a_key_warns_once(transform):
    cell = random_cell()
    message = r"^scan: Dropout\(.*\) makes random choices in training, and is differentiated without a `key`, so it"
    with pytest.warns(rs.NoKeyWarning, match=message) as warned:
        transform(lambda params: loss(params, cell) + loss(params, cell, memory=None))(PARAMS)
    assert len(warned) == 1
    assert "rs.scan(cell, params, CARRY" in linecache.getline(warned[0].filename, warned[0].lineno)


def test_a_kept_program_points_at_the_call_that_is_differentiated():
    cell = random_cell()
    rs.scan(cell, PARAMS, CARRY, XS)
    with pytest.warns(rs.NoKeyWarning) as warned:
        jax.grad(lambda params: rs.scan(cell, params, CARRY, XS)[1].sum())(PARAMS)  # This line.
    assert linecache.getline(warned[0].filename, warned[0].lineno).endswith("# This line.\n")


def of_linen(cell):
    rnn = rs.linen.RNN(cell)
    variables = rnn.init(KEY, XS)
    return lambda **given: jax.grad(lambda variables: rnn.apply(variables, XS, **given).sum())(variables)


def of_nnx(cell):
    rnn = rs.nnx.RNN(cell, in_features=3, rngs=nnx.Rngs(0))
    return lambda **given: nnx.grad(lambda rnn: rnn(XS, **given).sum())(rnn)


def of_scan_until(cell):
    def run(params, bound):
        xs = (XS, jnp.arange(5)) if bound else XS
        cell_or_bound = rs.with_key(cell, KEY, params, XS[0]) if bound else cell
        return rs.scan_until(cell_or_bound, params, CARRY, xs, lambda _, carry, y: False, max_steps=5)[1].sum()

    return lambda bound=False: jax.grad(run)(PARAMS, bound)


OTHER_LOOPS = {
    "linen": (
        of_linen,
        {"rngs": {"dropout": KEY}},
        r'linen\.RNN: .* without the rng "dropout", so it makes none\. Pass rngs=',
    ),
    "nnx": (of_nnx, {"key": KEY}, r"nnx\.RNN: .* without a `key`, so it makes none\. Pass key="),
    "scan_until": (of_scan_until, {"bound": True}, r"scan_until: .* without a key, .* rnnscan\.with_key\("),
}


@pytest.mark.parametrize(("make", "with_a_key", "message"), variants(OTHER_LOOPS, ["linen", "nnx"]))
def test_other_loops_over_cells_warn(make, with_a_key, message):
    silent = make(rs.dropout(GRU, 0.0))
    run = make(random_cell())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(**with_a_key)
        silent()
    with pytest.warns(rs.NoKeyWarning, match=rf"^{message}") as warned:
        [run() for _ in range(2)]
    assert len(warned) == 1
    assert warned[0].filename == __file__


def test_a_linen_cell_that_is_said_to_be_deterministic_is_silent():
    run = of_linen(rs.linen.Cell(random_cell(), deterministic=True, parent=None))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run()


@pytest.mark.parametrize("engine", ["lax", "fission"])
def test_the_gradient_is_that_of_the_cell(engine):
    expected = jax.grad(loss)(PARAMS, GRU)
    with pytest.warns(rs.NoKeyWarning):
        gradients = jax.grad(loss)(PARAMS, random_cell(), engine=engine)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), gradients, expected)


def test_each_cell_warns():
    cells = (random_cell(), rs.zoneout(GRU, 0.5))
    with pytest.warns(rs.NoKeyWarning) as warned:
        jax.grad(lambda params: sum(loss(params, cell) for cell in cells))(PARAMS)
    assert len(warned) == 2


def test_nets_warn():
    net = rs.layer(random_cell())
    with pytest.warns(rs.NoKeyWarning, match=r"^scan: Dropout"):
        jax.grad(lambda params: net(params, XS)[1].sum())(PARAMS)
    chain = rs.chain(rs.layer(GRU), rs.layer(GRU), dropout=0.5)
    params = chain.init(KEY, 3)
    with pytest.warns(rs.NoKeyWarning, match=r"^chain: a chain with dropout=0\.5 makes random choices"):
        jax.grad(lambda params: chain(params, XS)[1].sum())(params)


@pytest.mark.usefixtures("warnings_are_errors")
def test_evaluation_training_with_a_key_and_other_cells_are_silent():
    cell = random_cell()
    loss(PARAMS, cell)
    jax.jit(lambda params: loss(params, cell))(PARAMS)
    jax.grad(loss)(PARAMS, cell, key=KEY)
    for none in (GRU, rs.dropout(GRU, 0.0), rs.dropout(GRU, 0.0, on="recurrent"), rs.zoneout(GRU, 0.0)):
        jax.grad(loss)(PARAMS, none)
        np.testing.assert_array_equal(loss(PARAMS, none, key=KEY), loss(PARAMS, GRU))
    stack = rs.stack(GRU, rs.residual(GRU))
    params, carry = stack.init(KEY, 3), stack.initial_carry(XS[0])
    jax.grad(lambda params: rs.scan(stack, params, carry, XS)[1].sum())(params)
    net = rs.chain(rs.layer(cell), rs.layer(GRU), dropout=0.5)
    jax.grad(lambda params: net(params, XS, key=KEY)[1].sum())(net.init(KEY, 3))


@pytest.mark.usefixtures("warnings_are_errors")
def test_reports_are_silent():
    cell = random_cell()
    rs.memory_report(cell, PARAMS, CARRY, XS, compile=False)
    rs.explain(cell, PARAMS, CARRY, XS)
    rs.plan(cell, PARAMS, CARRY, XS, budget="1MiB")


@pytest.mark.slow
def test_a_user_sees_it_and_can_ignore_it():
    program = (
        "import jax, warnings, jax.numpy as jnp, rnnscan as rs\n"
        "{}\n"
        "cell, xs = rs.dropout(rs.cells.GRU(4), 0.5), jnp.ones((5, 2, 3))\n"
        "params = cell.init(jax.random.key(0), 3)\n"
        "for _ in range(3): jax.grad(lambda p: rs.scan(cell, p, cell.initial_carry(xs[0]), xs)[1].sum())(params)\n"
    )
    for line, count in (("", 1), ("warnings.filterwarnings('ignore', category=rs.NoKeyWarning)", 0)):
        run = subprocess.run(
            [sys.executable, "-c", program.format(line)], capture_output=True, text=True, check=True, timeout=200
        )
        assert run.stderr.count("NoKeyWarning: scan:") == count
