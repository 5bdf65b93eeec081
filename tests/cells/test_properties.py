"""What holds for every cell: under JAX's transforms, over time, over the batch, and under every memory choice."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from tiers import variants


pytestmark = pytest.mark.usefixtures("x64")


@pytest.mark.slow  # test_battery.py has it for the stack too.
def test_scan_is_a_loop(case, assert_trees_close):
    arguments = case.arguments()
    assert_trees_close(case.jitted(*arguments), jax.jit(case.loop)(*arguments))


def test_jit_eager_and_disable_jit_agree(case, assert_trees_close):
    arguments = case.arguments()
    compiled = jax.jit(case.scan)(*arguments)
    assert_trees_close(case.scan(*arguments), compiled)
    with jax.disable_jit():
        assert_trees_close(case.scan(*arguments), compiled)


def test_reverse_is_a_loop_from_the_end(case, assert_trees_close):
    params, carry, xs = case.arguments()
    last, ys = jax.jit(case.loop)(params, carry, xs[::-1])
    assert_trees_close(jax.jit(lambda *a: case.scan(*a, reverse=True))(params, carry, xs), (last, ys[::-1]))


@pytest.mark.parametrize(
    "mapped", variants([(0,), (1,), (2,), (0, 1, 2)], [(0,)]), ids=["params", "carry", "xs", "all"]
)
def test_vmap_is_a_loop_over_the_mapped(case, mapped, assert_trees_close):
    first, second = case.arguments(), case.arguments(seed=1)
    pairs = [
        (one, other if index in mapped else one) for index, one, other in zip(range(3), first, second, strict=True)
    ]
    stacked = [
        jax.tree.map(lambda *leaves: jnp.stack(leaves), *pair) if index in mapped else pair[0]
        for index, pair in enumerate(pairs)
    ]
    in_axes = tuple(0 if index in mapped else None for index in range(3))
    outputs = jax.jit(jax.vmap(case.scan, in_axes=in_axes))(*stacked)
    one_by_one = [case.jitted(*arguments) for arguments in zip(*pairs, strict=True)]
    assert_trees_close(outputs, jax.tree.map(lambda *leaves: jnp.stack(leaves), *one_by_one))


def memory_choices(names):
    """Every kind of memory choice; seven steps leave each segment a remainder."""
    yield rs.Memory()
    for name in names:
        yield rs.Memory(recompute=(name,))
    yield rs.Memory(recompute="all")
    for segment in (3, "sqrt", (5, 2)):
        yield rs.Memory(segment=segment)


@pytest.mark.slow  # test_battery.py has it for the stack too.
def test_values_and_gradients_are_the_same_under_every_memory_choice(case, assert_trees_close):
    arguments = case.arguments(length=7)

    def lowered(memory):
        return jax.jit(lambda *a: case.gradients(lambda *a: case.scan(*a, memory=memory), *a)).lower(*arguments)

    plain = lowered(None).compile()(*arguments)
    programs = {program.as_text(): program for program in map(lowered, memory_choices(case.cell.names))}
    # Only the choices that differ are compiled: for a cell with one name, to recompute it is to recompute all.
    assert len(programs) >= 4
    for program in programs.values():
        assert_trees_close(program.compile()(*arguments), plain)


def test_gradients_are_those_of_a_loop(case, assert_trees_close):
    arguments = case.arguments(length=4)

    def gradients_of(run):
        return jax.jit(lambda *a: case.gradients(run, *a))(*arguments)

    assert_trees_close(gradients_of(case.scan), gradients_of(case.loop))


@pytest.mark.slow  # test_battery.py has it for the stack too.
def test_chunks_with_the_carry_passed_on_are_the_whole(case, assert_trees_close):
    params, carry, xs = case.arguments(length=7)
    middle, first_ys = case.jitted(params, carry, xs[:3])
    last, second_ys = case.jitted(params, middle, xs[3:])
    assert_trees_close((last, jnp.concatenate([first_ys, second_ys])), case.jitted(params, carry, xs))


def test_an_output_does_not_depend_on_later_inputs(case):
    params, carry, xs = case.arguments()
    outputs = lambda xs: np.asarray(case.jitted(params, carry, xs)[1])  # noqa: E731
    ys = outputs(xs)
    for time in range(1, xs.shape[0]):
        changed_ys = outputs(jnp.where((jnp.arange(len(xs)) >= time)[:, None, None], xs + 1.0, xs))
        np.testing.assert_array_equal(changed_ys[:time], ys[:time])
        assert np.any(changed_ys[time] != ys[time])


@pytest.mark.slow  # test_battery.py has it for the stack too.
def test_rows_of_the_batch_do_not_see_each_other(case, assert_trees_close):
    params, carry, xs = case.arguments(batch=3)
    last, ys = case.jitted(params, carry, xs)
    order = jnp.array([2, 0, 1])
    permuted = case.jitted(params, jax.tree.map(lambda leaf: leaf[order], carry), xs[:, order])
    assert_trees_close(permuted, (jax.tree.map(lambda leaf: leaf[order], last), ys[:, order]))

    changed_last, changed_ys = case.jitted(params, carry, xs.at[:, 1].add(1.0))
    np.testing.assert_array_equal(changed_ys[:, ::2], ys[:, ::2])
    for changed, leaf in zip(jax.tree.leaves(changed_last), jax.tree.leaves(last), strict=True):
        np.testing.assert_array_equal(changed[::2], leaf[::2])


@pytest.mark.slow  # test_battery.py has it for the stack too.
def test_batch_of_one_is_a_row_and_needs_no_axis(case, assert_trees_close):
    params, carry, xs = case.arguments(batch=3)
    last, ys = case.jitted(params, carry, xs)
    row = jax.tree.map(lambda leaf: leaf[1:2], carry)
    assert_trees_close(case.jitted(params, row, xs[:, 1:2]), (jax.tree.map(lambda leaf: leaf[1:2], last), ys[:, 1:2]))
    row = jax.tree.map(lambda leaf: leaf[1], carry)
    assert_trees_close(case.jitted(params, row, xs[:, 1]), (jax.tree.map(lambda leaf: leaf[1], last), ys[:, 1]))


def test_no_steps_return_the_carry_and_empty_outputs(case, assert_trees_close):
    params, carry, xs = case.arguments(length=0)
    (last, ys), gradients = jax.jit(lambda *a: case.gradients(case.scan, *a))(params, carry, xs)
    assert_trees_close(last, carry, tolerance=0)
    assert ys.shape == (0, 3, case.cell.output_size)
    of_params, of_carry, of_xs = gradients
    assert_trees_close(of_params, jax.tree.map(jnp.zeros_like, params), tolerance=0)
    assert_trees_close(of_carry, jax.grad(lambda carry: case.loss((carry, ys)))(carry))
    assert of_xs.shape == xs.shape


@pytest.mark.slow  # test_battery.py has it for the stack too.
def test_one_step_is_the_cell(case, assert_trees_close):
    params, carry, xs = case.arguments(length=1)
    new_carry, y = jax.jit(case.cell)(params, carry, xs[0])
    assert_trees_close(case.jitted(params, carry, xs), (new_carry, y[None]))


@pytest.mark.parametrize("padding", variants(["zero", "hold", "drop"], ["hold"]))
def test_padding_is_as_if_each_row_ran_by_itself(case, padding, assert_trees_close):
    params, carry, xs = case.arguments(length=4, batch=3)
    lengths = (0, 2, 7)
    # The rows by themselves never see the padding, so NaN in it shows wherever it leaks.
    valid = jnp.arange(4)[:, None] < jnp.array(lengths)
    xs = jnp.where(valid[:, :, None], xs, jnp.nan)

    def padded(params, carry, xs):
        return case.scan(params, carry, xs, seq_lengths=jnp.array(lengths), padding=padding)

    def by_rows(params, carry, xs):
        rows = [run_row(case, params, carry, xs, row, min(lengths[row], 4), padding) for row in range(3)]
        carries, ys = zip(*rows, strict=True)
        return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *carries), jnp.concatenate(ys, axis=1)

    actual = jax.jit(lambda *a: case.gradients(padded, *a))(params, carry, xs)
    assert all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(actual))
    assert_trees_close(actual, jax.jit(lambda *a: case.gradients(by_rows, *a))(params, carry, xs))


def run_row(case, params, carry, xs, row, length, padding):
    """One row for its own length, with what the padding leaves behind."""
    carry = jax.tree.map(lambda leaf: leaf[row : row + 1], carry)
    ys = jnp.zeros((0, 1, case.cell.output_size))
    if length:
        carry, ys = case.loop(params, carry, xs[:length, row : row + 1])
    behind = xs.shape[0] - length
    if padding == "drop" and behind:
        carry = jax.tree.map(jnp.zeros_like, carry)
    last_y = ys[-1:] if padding == "hold" and length else jnp.zeros((1, 1, case.cell.output_size))
    return carry, jnp.concatenate([ys, jnp.repeat(last_y, behind, axis=0)])
