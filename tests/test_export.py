"""`jax.export` with symbolic sizes: one program for every batch, and with the lax engine for every length."""

import importlib
import pkgutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
import zoo
from drawn import normal
from rnnscan import attention, cells
from tiers import variants
from zoo.case import Case, assert_trees_close


CASES = {
    name: case
    for module in pkgutil.iter_modules(zoo.__path__)
    for name, case in getattr(importlib.import_module(f"zoo.{module.name}"), "CASES", {}).items()
}
# Loops with products, a linear loop, and parameters whose gradients are summed in the loop.
TELLING = {
    "RNN": cells.RNN(4),
    "LSTM": cells.LSTM(4),
    "MinGRU": cells.MinGRU(4),
    "LayerNormLSTM": cells.LayerNormLSTM(4),
}
LENGTH, BATCHES = 9, (1, 3)


def inputs(steps, rows, features=(3,)):
    return normal(np.random.default_rng(0), (steps, rows, *features), jnp.float32)


def check(run, params, shape, sizes):
    """Compare an exported program with one that is compiled for each size: results and gradients."""

    def all_of(params, xs):
        def loss(params, xs):
            outputs = run(params, xs)
            return Case.loss(outputs), outputs

        return jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(params, xs)

    symbolic = jax.ShapeDtypeStruct(jax.export.symbolic_shape(shape), jnp.float32)
    exported = jax.export.export(jax.jit(all_of))(params, symbolic)
    for steps, rows in sizes:
        xs = inputs(steps, rows, symbolic.shape[2:])
        assert_trees_close(exported.call(params, xs), jax.jit(all_of)(params, xs), tolerance=2e-5)


def random_like(tree):
    random = np.random.default_rng(1)
    return jax.tree.map(lambda leaf: normal(random, leaf.shape, leaf.dtype, 0.5), tree)


def of_cell(cell, features=3, **options):
    run = lambda params, xs: rs.scan(cell, params, cell.initial_carry(xs[0]), xs, **options)  # noqa: E731
    return run, random_like(jax.eval_shape(lambda: cell.init(jax.random.key(0), features)))


@pytest.mark.parametrize("name", variants(TELLING.keys(), ["RNN"]))
def test_one_program_for_every_batch(name):
    batches = BATCHES if name == "RNN" else BATCHES[-1:]
    check(*of_cell(TELLING[name]), f"{LENGTH}, n, 3", [(LENGTH, rows) for rows in batches])


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["9, n, ...", "t, n, ..."])
@pytest.mark.parametrize("name", CASES)
def test_one_program_for_every_size_for_every_cell(name, shape):
    case = CASES[name]
    lengths = (LENGTH,) if shape.startswith("9") else (1, LENGTH)
    run, params = of_cell(case.cell, case.features[-1])
    sizes = [(steps, rows) for steps in lengths for rows in BATCHES]
    check(run, params, shape.replace("...", ", ".join(map(str, case.features))), sizes)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"memory": rs.Memory(recompute="all")}, marks=pytest.mark.slow),
        {"memory": rs.Memory(segment=4), "reverse": True},
        pytest.param({"memory": rs.Memory(recompute=("gates",))}, marks=pytest.mark.slow),
        pytest.param({"memory": None}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_every_memory_choice(options):
    check(*of_cell(cells.GRU(4), **options), f"{LENGTH}, n, 3", [(LENGTH, 2)])


def test_lengths_of_a_symbolic_batch_in_a_bidirectional_net():
    net = rs.bidirectional(cells.RNN(4), cells.RNN(4))

    def run(params, xs):
        return net(params, xs, seq_lengths=jnp.arange(xs.shape[1]) % LENGTH, memory=rs.Memory(recompute="all"))

    check(run, random_like(net.init(jax.random.key(0), 3)), f"{LENGTH}, n, 3", [(LENGTH, 4)])


def test_a_decoder_over_a_symbolic_number_of_encoder_steps():
    decoder = attention.decoder(cells.RNN(4), attention.Additive(3, 5))

    def run(params, encoder_outputs):
        cell = decoder.over(params, encoder_outputs)
        xs = jnp.broadcast_to(encoder_outputs.sum(0), (LENGTH, *encoder_outputs.shape[1:]))
        return rs.scan(cell, params, cell.initial_carry(xs[0]), xs)

    check(run, random_like(decoder.init(jax.random.key(0), 3)), "l, n, 3", [(5, 2)])


@pytest.mark.parametrize("name", [pytest.param("LSTM", marks=pytest.mark.slow), "MinGRU"])
def test_choices_for_an_accelerator(name):
    with rs.tuned_for("gpu"):
        check(*of_cell(TELLING[name]), f"{LENGTH}, n, 3", [(LENGTH, 2)])
