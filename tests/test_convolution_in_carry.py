"""A causal convolution whose last inputs are in the carry: resets, windows, lengths and steps are right."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from tiers import variants
from zoo.case import assert_trees_close


pytestmark = pytest.mark.usefixtures("x64")

TIME, BATCH, SIZE, WINDOW = 12, 3, 4, 4
# The first steps of documents, by row: at the start, one step after another, and within a window of the one before.
STARTS = ([0], [0, 1, 7, 9], [3, 5])
CELL = rs.cells.GRU(SIZE, param_dtype=float)


def convolve(params, window, x):
    seen = (*window, x)
    y = params["bias"] + sum(kernel * past for kernel, past in zip(params["kernel"], seen, strict=True))
    return seen[1:], y


def block(params, carry, x):
    window, inner = carry
    window, y = convolve(params, window, x)
    inner, y = CELL(params["cell"], inner, y)
    return (window, inner), y


def draw():
    """Random parameters, a carry from an earlier window, inputs and resets."""
    random = np.random.default_rng(0)
    normal = lambda *shape: jnp.asarray(random.normal(size=shape))  # noqa: E731
    shapes = jax.eval_shape(lambda: CELL.init(jax.random.key(0), SIZE))
    cell_params = jax.tree.map(lambda leaf: normal(*leaf.shape), shapes)
    params = {"kernel": normal(WINDOW, SIZE), "bias": normal(SIZE), "cell": cell_params}
    carry = tuple(normal(BATCH, SIZE) for _ in range(WINDOW - 1)), (normal(BATCH, SIZE),)
    reset = np.zeros((TIME, BATCH), bool)
    for row, starts in enumerate(STARTS):
        reset[starts, row] = True
    return params, carry, normal(TIME, BATCH, SIZE), jnp.asarray(reset)


def convolve_document(params, xs, past):
    """`jnp.convolve` of each feature of a document `(T, D)` after the inputs `past`, padded with zeros if None."""
    past = jnp.zeros((WINDOW - 1, SIZE)) if past is None else past
    padded = jnp.concatenate([past, xs])
    columns = [
        jnp.convolve(padded[:, feature], params["kernel"][::-1, feature], mode="valid") for feature in range(SIZE)
    ]
    return jnp.stack(columns, axis=1) + params["bias"]


def reference(params, carry, xs):
    """Each document alone: its convolution over all steps at once, and a loop of the cell over the result."""
    (window, (hidden,)), rows = carry, []
    for row, starts in enumerate(STARTS):
        outputs = []
        for start, end in zip([0, *starts], [*starts, TIME], strict=True):
            if start == end:
                continue
            is_new = start in starts
            past = None if is_new else jnp.stack([leaf[row] for leaf in window])
            ys = convolve_document(params, xs[start:end, row], past)
            inner = (jnp.zeros(SIZE) if is_new else hidden[row],)
            for y in ys:
                inner, output = CELL(params["cell"], inner, y)
                outputs.append(output)
        rows.append(jnp.stack(outputs))
    return jnp.stack(rows, axis=1)


def run(params, carry, xs, reset, **options):
    zeros = jax.tree.map(jnp.zeros_like, carry)
    return rs.scan(block, params, carry, xs, reset=reset, reset_to=zeros, **options)


MEMORIES = {
    "kept": {},
    "recomputed": {"memory": rs.Memory(recompute="all")},
    "segments": {"memory": rs.Memory(segment=5)},
    "chunks": {"memory": rs.Memory(chunk=5)},
    "lax": {"engine": "lax"},
    "plain": {"memory": None},
}


def outputs_and_gradients(function):
    """`((loss, outputs), gradients)` of a weighted sum of the outputs."""
    *arguments, _ = draw()
    weights = jnp.asarray(np.random.default_rng(1).normal(size=(TIME, BATCH, SIZE)))

    def weighted(*arguments):
        ys = function(*arguments)
        return jnp.sum(weights * ys), ys

    return jax.jit(jax.value_and_grad(weighted, argnums=(0, 1, 2), has_aux=True))(*arguments)


@functools.cache
def expected():
    """Those of the reference, which unrolls all steps, so that it takes long to compile."""
    return outputs_and_gradients(reference)


@pytest.mark.parametrize("options", variants(MEMORIES.keys(), ["kept", "chunks", "lax"]))
def test_documents_are_separate_and_so_are_their_gradients(options):
    *_, reset = draw()
    actual = outputs_and_gradients(lambda *arguments: run(*arguments, reset, **MEMORIES[options])[1])
    assert_trees_close(actual, expected(), tolerance=1e-9)


def test_a_convolution_over_the_whole_sequence_is_another_function():
    params, carry, xs, reset = draw()
    convolve = jax.jit(convolve_document)
    convolved = jnp.stack([convolve(params, xs[:, row], None) for row in range(BATCH)], axis=1)
    _, wrong = rs.scan(CELL, params["cell"], carry[1], convolved, reset=reset)
    (_, right), _ = expected()
    assert jnp.abs(wrong - right)[:, 1].max() > 0.1  # Reads the document before.
    assert jnp.abs(wrong - right)[0, 2].max() > 0.1  # Reads zeros instead of the window before.


@pytest.mark.parametrize("size", [1, 2, 5])
def test_windows_and_steps_are_the_whole(size):
    params, carry, xs, reset = draw()
    last, expected = run(params, carry, xs, reset)
    outputs, window = [], jax.jit(run)
    for start in range(0, TIME, size):
        carry, ys = window(params, carry, xs[start : start + size], reset[start : start + size])
        outputs.append(ys)
    assert_trees_close((carry, jnp.concatenate(outputs)), (last, expected), tolerance=1e-9)


def test_padding_holds_the_window():
    params, carry, xs, reset = draw()
    lengths = (TIME, 6, 0)
    last, ys = run(params, carry, xs, reset, seq_lengths=jnp.array(lengths))
    for row, length in enumerate(lengths):
        one = jax.tree.map(lambda leaf, row=row: leaf[row : row + 1], carry)
        alone, ys_alone = run(params, one, xs[:length, row : row + 1], reset[:length, row : row + 1])
        assert_trees_close(jax.tree.map(lambda leaf, row=row: leaf[row], last), jax.tree.map(lambda x: x[0], alone))
        assert_trees_close(ys[:length, row], ys_alone[:, 0], tolerance=1e-9)


def test_the_engine_finds_no_recurrent_work_in_the_convolution():
    params, carry, xs, reset = draw()
    zeros = jax.tree.map(jnp.zeros_like, carry[0])
    explanation = rs.explain(convolve, params, carry[0], xs, reset=reset, reset_to=zeros)
    kinds = {equation.kind for equation in explanation.equations}
    assert kinds == {"invariant", "parallel"}
