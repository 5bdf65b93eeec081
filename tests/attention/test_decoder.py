"""What holds for a decoder with any mechanism, and around any cell."""

import pickle
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from decoding import (
    BATCH,
    DECODERS,
    ENCODER_LENGTH,
    ENCODER_LENGTHS,
    FEATURES,
    HIDDEN,
    KINDS,
    MECHANISMS,
    arguments,
    gradients,
    gradients_of,
    run,
)
from rnnscan import attention, cells
from tiers import variants
from zoo.case import assert_trees_close


SINGLE = 2e-5
RNN = attention.decoder(cells.RNN(4), attention.Coverage(5, 6))
STACK = attention.decoder(rs.stack(cells.RNN(3), cells.GRU(4)), attention.Coverage(5, 6))
# Decoders around cells of other kinds, which step by themselves in place of equations.
AROUND = {
    "stack": STACK,
    "projected LSTM": attention.decoder(cells.LSTM(6, proj_size=4), attention.Dot(4)),
    "GRU": attention.decoder(cells.GRU(4), attention.RecurrentAdditive(5, 6)),
    "residual": attention.decoder(rs.residual(cells.RNN(8)), attention.MultiHead(5, 6, 2)),
}


# Coverage is additive attention with a carry of its own.
@pytest.fixture(params=variants(KINDS, ["coverage"]))
def decoder(request):
    return request.param


def jitted(decoder, given, **options):
    return jax.jit(lambda *given: run(decoder, *given, **options))(*given)


@pytest.mark.usefixtures("x64")
# A cell of few equations, because it is differentiated six times.
@pytest.mark.parametrize("name", variants(["RNN", "stack", *KINDS], ["RNN"]))
def test_every_engine_and_memory_choice_gives_the_gradients_of_a_plain_scan(name):
    decoder = {"RNN": RNN, "stack": STACK, **KINDS}[name]
    given = arguments(decoder, length=5)
    plain = gradients_of(decoder, given, memory=None, engine="lax")
    for options in (
        {},
        {"memory": rs.Memory(recompute=("attention",))},
        {"memory": rs.Memory(recompute="all", chunk=2)},
        {"memory": rs.Memory(segment=2)},
        {"memory": rs.Memory(recompute=("attention",)), "engine": "lax"},
    ):
        assert_trees_close(gradients_of(decoder, given, **options), plain, tolerance=1e-11)


def test_auto_is_the_fission_engine_and_every_name_is_known(decoder):
    params, encoder_outputs, carry, xs = arguments(decoder)
    cell = decoder.over(params, encoder_outputs, encoder_lengths=jnp.asarray(ENCODER_LENGTHS))
    assert cell.names == decoder.names == ("gates", "attention")
    explanation = rs.explain(cell, params, carry, xs, memory=rs.Memory(recompute=cell.names))
    assert explanation.engine == "fission", explanation.reason
    assert "AttentionCell(Decoder(" in str(explanation)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", variants(AROUND.keys(), ["stack"]))
def test_around_any_cell_it_is_that_cell_and_then_its_attention(name):
    """The cell steps first, on input and context, and its new output is the query; every parameter gets a gradient."""
    decoder = AROUND[name]
    given = arguments(decoder)
    (params, encoder_outputs, (inner, context, *state), xs) = given
    mechanism, encoder = decoder.attention, jnp.moveaxis(encoder_outputs, 0, 1)
    outputs, weights = [], []

    @jax.jit
    def step(inner, context, state, x):
        inner, query = decoder.cell(params["cell"], inner, jnp.concatenate([x, context], axis=-1))
        encoded = mechanism.encode(params["attention"], encoder, None)
        return inner, query, *mechanism.attend(params["attention"], encoded, None, query, context, state)

    for x in xs:
        inner, query, context, state, step_weights = step(inner, context, tuple(state), x)
        outputs.append(jnp.concatenate([query, context], axis=-1))
        weights.append(step_weights)
    expected = (inner, context, *state), (jnp.stack(outputs), jnp.stack(weights))
    actual, gradients = gradients_of(decoder, given, encoder_lengths=None)
    assert_trees_close(actual, expected)
    for path, leaf in jax.tree_util.tree_leaves_with_path(gradients):
        assert np.any(leaf != 0), jax.tree_util.keystr(path)


@pytest.mark.usefixtures("x64")
def test_padding_of_the_decoder_holds_every_part_of_the_carry_and_hides_what_it_holds(decoder):
    params, encoder_outputs, carry, xs = arguments(decoder, length=4)
    lengths = np.array([0, 2, 4, 4])
    padded = jnp.where((np.arange(4)[:, None] < lengths)[..., None], xs, jnp.nan)
    (last, ys), gradients = gradients_of(
        decoder, (params, encoder_outputs, carry, padded), seq_lengths=jnp.asarray(lengths)
    )
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves((last, ys, gradients)))
    of_row = lambda tree, row: jax.tree.map(lambda leaf: leaf[row], tree)  # noqa: E731
    short, _ = jitted(decoder, (params, encoder_outputs, carry, xs[:2]))
    whole, whole_ys = jitted(decoder, (params, encoder_outputs, carry, xs))
    for row, expected in enumerate((carry, short, whole, whole)):
        assert_trees_close(of_row(last, row), of_row(expected, row))
    for row, length in enumerate((0, 2, 4, 4)):
        steps = jax.tree.map(lambda leaf, row=row, length=length: leaf[:length, row], (ys, whole_ys))
        assert_trees_close(*steps)
        assert not any(np.any(leaf[length:, row]) for leaf in ys)


def test_chunks_with_the_carry_passed_on_are_the_whole_and_the_past_sees_no_future(decoder):
    params, encoder_outputs, carry, xs = arguments(decoder, length=4)
    pieces = lambda xs, carry: jitted(decoder, (params, encoder_outputs, carry, xs))  # noqa: E731
    middle, first = pieces(xs[:2], carry)
    last, second = pieces(xs[2:], middle)
    whole = pieces(xs, carry)
    both = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), first, second)
    assert_trees_close((last, both), whole, tolerance=SINGLE)
    _, changed = pieces(xs.at[2:].add(1.0), carry)
    assert_trees_close(*(jax.tree.map(lambda leaf: leaf[:2], ys) for ys in (changed, whole[1])), tolerance=0)
    assert np.any(changed[1][2:] != whole[1][1][2:])


def test_no_step_one_step_and_an_encoder_of_one_step_or_none(decoder):
    params, encoder_outputs, carry, xs = arguments(decoder)
    last, (ys, weights) = jitted(decoder, (params, encoder_outputs, carry, xs[:0]))
    assert_trees_close(last, carry, tolerance=0)
    assert ys.shape == (0, BATCH, decoder.output_size)
    assert weights.shape == (0, *_weights_shape(decoder, ENCODER_LENGTH))
    for encoder_length in (1, 0):
        shorter = encoder_outputs[:encoder_length]
        start = decoder.over(params, shorter).initial_carry(xs[0])
        (_, (ys, weights)), gradients = gradients_of(decoder, (params, shorter, start, xs[:1]), encoder_lengths=None)
        assert weights.shape == (1, *_weights_shape(decoder, encoder_length))
        np.testing.assert_array_equal(weights, jnp.ones_like(weights))
        assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves((ys, gradients)))


def _weights_shape(decoder, encoder_length):
    heads = (decoder.attention.heads,) if isinstance(decoder.attention, attention.MultiHead) else ()
    return (BATCH, *heads, encoder_length)


def test_lengths_of_all_steps_or_more_are_none(decoder):
    given = arguments(decoder)
    whole = gradients_of(decoder, given, encoder_lengths=None)
    assert_trees_close(gradients_of(decoder, given, encoder_lengths=(4, 5, 99, 4)), whole, tolerance=SINGLE)


def test_rows_of_the_batch_do_not_see_each_other(decoder):
    params, encoder_outputs, carry, xs = arguments(decoder)
    (last, ys) = jitted(decoder, (params, encoder_outputs, carry, xs))
    changed_last, changed_ys = jitted(decoder, (params, encoder_outputs.at[:, 1].add(1.0), carry, xs))
    others = lambda tree, axis: jax.tree.map(lambda leaf: leaf.take(np.array([0, 2, 3]), axis), tree)  # noqa: E731
    assert_trees_close((others(last, 0), others(ys, 1)), (others(changed_last, 0), others(changed_ys, 1)), tolerance=0)
    assert np.any(ys[1][:, 1] != changed_ys[1][:, 1])


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", variants(["additive", "coverage", "multi-head"], ["multi-head"]))
def test_supplied_keys_are_the_projected_ones(name):
    """And their gradient is the one that the projection passes on; without a projection there is no kernel for it."""
    decoder = KINDS[name]
    supplied_to = replace(decoder, attention=replace(decoder.attention, project_keys=False))
    params, encoder_outputs, carry, xs = arguments(decoder)
    lengths = jnp.asarray(ENCODER_LENGTHS)

    def supplied(params, encoder_outputs, carry, xs):
        keys = encoder_outputs @ params["attention"]["key_kernel"]
        of_attention = {name: leaf for name, leaf in params["attention"].items() if name != "key_kernel"}
        return run(supplied_to, {**params, "attention": of_attention}, encoder_outputs, carry, xs, keys=keys)

    given = params, encoder_outputs, carry, xs
    assert_trees_close(gradients(supplied, *given), gradients_of(decoder, given))
    assert "key_kernel" not in jax.eval_shape(lambda: supplied_to.init(jax.random.key(0), FEATURES))["attention"]
    other = encoder_outputs @ params["attention"]["key_kernel"] + 1.0
    cell = decoder.over(params, encoder_outputs, encoder_lengths=lengths, keys=other)
    _, (_, weights) = rs.scan(cell, params, carry, xs)
    assert np.any(weights != run(decoder, *given)[1][1])


@pytest.mark.usefixtures("x64")
def test_dot_products_with_supplied_keys():
    decoder = DECODERS["dot, scaled"]
    given = arguments(decoder)
    assert_trees_close(run(decoder, *given, keys=given[1]), run(decoder, *given))
    doubled = run(decoder, *given, keys=2 * given[1])
    twice = replace(decoder, attention=attention.Dot(HIDDEN))
    assert_trees_close(doubled, run(twice, *given))


def test_a_bound_cell_is_a_pytree_and_goes_through_jit_and_its_arrays_get_gradients(decoder):
    params, encoder_outputs, carry, xs = arguments(decoder)
    cell = decoder.over(params, encoder_outputs, encoder_lengths=jnp.asarray(ENCODER_LENGTHS))
    made = jax.jit(lambda params, outputs: decoder.over(params, outputs, encoder_lengths=jnp.asarray(ENCODER_LENGTHS)))
    across = jax.jit(lambda cell, *given: rs.scan(cell, *given))(made(params, encoder_outputs), params, carry, xs)
    assert_trees_close(across, jax.jit(lambda *given: rs.scan(cell, *given))(params, carry, xs), tolerance=SINGLE)

    of_cell = jax.jit(jax.grad(lambda cell: rs.scan(cell, params, carry, xs)[1][0].sum(), allow_int=True))(cell)
    assert all(np.any(leaf) for leaf in of_cell.encoded.values())


def test_vmap_is_a_loop_and_a_row_alone_is_a_row_of_the_batch(decoder):
    params, encoder_outputs, carry, xs = arguments(decoder)
    lengths = jnp.asarray(ENCODER_LENGTHS)
    whole = jitted(decoder, (params, encoder_outputs, carry, xs))

    def row(encoder_outputs, carry, xs, length):
        cell = decoder.over(params, encoder_outputs, encoder_lengths=length)
        return rs.scan(cell, params, carry, xs)

    by_row = jax.jit(jax.vmap(row, in_axes=(1, 0, 1, 0), out_axes=(0, 1)))(encoder_outputs, carry, xs, lengths)
    assert_trees_close(by_row, whole, tolerance=SINGLE)
    mapped = jax.vmap(lambda outputs: decoder.over(params, outputs, encoder_lengths=lengths))(encoder_outputs[None])
    one = jax.vmap(lambda cell: rs.scan(cell, params, carry, xs))(mapped)
    assert_trees_close(jax.tree.map(lambda leaf: leaf[0], one), whole, tolerance=SINGLE)


def test_random_cells_within_a_decoder_get_their_keys():
    """Dropout and zoneout of the inner cell; without a key there is none."""
    mechanism = attention.Additive(5, 6)
    plain = attention.decoder(cells.LSTM(HIDDEN), mechanism)
    inner = rs.zoneout(rs.dropout(cells.LSTM(HIDDEN), 0.5, on="input"), (0.0, 0.4))
    decoder = attention.decoder(inner, mechanism)
    params, encoder_outputs, carry, xs = arguments(decoder, length=6)
    cell, key = decoder.over(params, encoder_outputs), jax.random.key(3)
    training = rs.with_key(cell, key, params, xs[0])
    (last, (ys, weights)) = rs.scan(training, params, carry, (xs, jnp.arange(6)))

    inner_step = rs.with_key(inner, key, params["cell"], jnp.zeros((BATCH, FEATURES + 5)))
    plain_cell = plain.over(params, encoder_outputs)

    @jax.jit
    def one_step(carry, x, step):
        inner_carry, query = inner_step(params["cell"], carry[0], (jnp.concatenate([x, carry[1]], axis=-1), step))
        context, _, weights = mechanism.attend(params["attention"], plain_cell.encoded, None, query, carry[1], ())
        return (inner_carry, context), jnp.concatenate([query, context], axis=-1), weights

    step_carry = carry
    for step, x in enumerate(xs):
        step_carry, step_y, step_weights = one_step(step_carry, x, step)
        np.testing.assert_allclose(ys[step], step_y, rtol=SINGLE, atol=SINGLE)
        np.testing.assert_allclose(weights[step], step_weights, rtol=SINGLE, atol=SINGLE)
    assert_trees_close(last, step_carry, tolerance=SINGLE)

    in_net = rs.layer(cell)(params, xs, carry=carry, key=key)
    assert_trees_close(in_net, (last, (ys, weights)), tolerance=SINGLE)
    again = rs.layer(cell)(params, xs, carry=carry, key=jax.random.key(4))
    assert np.any(again[1][0] != ys)


def test_a_layer_is_a_net_of_a_bound_cell(decoder):
    params, encoder_outputs, _, xs = arguments(decoder)
    cell = decoder.over(params, encoder_outputs)
    lengths = jnp.array([3, 1, 0, 2])
    last, (ys, weights) = rs.layer(cell)(params, xs, seq_lengths=lengths)
    expected = rs.scan(cell, params, cell.initial_carry(xs[0]), xs, seq_lengths=lengths)
    assert_trees_close((last, (ys, weights)), expected, tolerance=SINGLE)
    made = jax.eval_shape(lambda: cell.init(jax.random.key(0), FEATURES))
    assert jax.tree.structure(made) == jax.tree.structure(params)


def test_bfloat16_is_near_float32(decoder):
    in_bfloat16 = replace(
        decoder,
        cell=replace(decoder.cell, dtype=jnp.bfloat16, carry_dtype=jnp.float32),
        attention=replace(decoder.attention, dtype=jnp.bfloat16),
    )
    given = arguments(decoder)
    (last, ys), gradients = gradients_of(in_bfloat16, given)
    (exact_last, exact_ys), exact_gradients = gradients_of(decoder, given)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(ys)} == {"bfloat16"}
    assert {leaf.dtype.name for leaf in jax.tree.leaves((last, gradients))} == {"float32"}
    # bfloat16 rounds to 2**-9 = 0.002: a few such roundings a step, and for gradients their sum over steps.
    for actual, exact, tolerance in (((last, ys), (exact_last, exact_ys), 0.03), (gradients, exact_gradients, 0.1)):
        for leaf, exact_leaf in zip(jax.tree.leaves(actual), jax.tree.leaves(exact), strict=True):
            distance = np.abs(np.asarray(leaf, np.float32) - exact_leaf).max()
            assert distance <= tolerance * np.abs(exact_leaf).max()


@pytest.mark.parametrize("name", variants(["dot", "coverage", "multi-head"], ["coverage"]))
def test_all_in_16_bits_but_what_is_summed_up_over_steps(name):
    decoder = DECODERS[name]
    to_bfloat16 = lambda tree: jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), tree)  # noqa: E731
    params, encoder_outputs, _, xs = to_bfloat16(arguments(decoder))
    cell = decoder.over(params, encoder_outputs)
    carry = cell.initial_carry(xs[0])
    assert [leaf.dtype.name for leaf in carry[1:]] == ["bfloat16", "float32"][: len(carry) - 1]
    last, ys = rs.scan(cell, params, carry, xs)
    assert {leaf.dtype.name for leaf in jax.tree.leaves((ys, last[:2]))} == {"bfloat16"}
    given = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), (params, encoder_outputs, carry, xs))
    exact = run(decoder, *given, encoder_lengths=None)
    for leaf, exact_leaf in zip(jax.tree.leaves(ys), jax.tree.leaves(exact[1]), strict=True):
        np.testing.assert_allclose(np.asarray(leaf, np.float32), exact_leaf, atol=0.04)


def test_integers_are_inputs_too():
    decoder = KINDS["additive"]
    params, encoder_outputs, _, xs = arguments(decoder)
    cell = decoder.over(params, encoder_outputs)
    tokens = jnp.round(4 * xs).astype(jnp.int32)
    carry = cell.initial_carry(tokens[0])
    assert carry[1].dtype == encoder_outputs.dtype
    as_floats = rs.scan(cell, params, carry, tokens.astype(jnp.float32))
    assert_trees_close(rs.scan(cell, params, carry, tokens), as_floats, tolerance=SINGLE)


@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_is_a_value_and_shows_its_configuration(name):
    decoder = DECODERS[name]
    copy = pickle.loads(pickle.dumps(decoder))
    assert copy == decoder
    assert hash(copy) == hash(decoder)
    assert repr(decoder) == f"Decoder(cell=LSTM(hidden_size=4), attention={MECHANISMS[name]!r})"
    assert decoder.output_size == HIDDEN + decoder.attention.encoder_size


def test_a_mechanism_shows_what_differs_from_the_default():
    shown = repr(attention.MultiHead(5, 6, heads=2, use_bias=False, dtype="bfloat16"))
    fields = {"encoder_size=5", "attention_size=6", "heads=2", "use_bias=False", "dtype=bfloat16"}
    assert set(shown.removeprefix("MultiHead(").removesuffix(")").split(", ")) == fields


@pytest.mark.parametrize("name", variants(DECODERS.keys(), ["coverage"]))
def test_parameters_start_from_the_key_and_the_carry_from_zeros(name):
    decoder = DECODERS[name]
    mechanism = replace(decoder.attention, param_dtype=jnp.float16)
    make = jax.jit(attention.decoder(decoder.cell, mechanism).init, static_argnums=1)
    params, again, other = (make(jax.random.key(seed), FEATURES) for seed in (0, 0, 1))
    assert_trees_close(params, again, tolerance=0)
    assert all(leaf.dtype == jnp.float16 for leaf in params["attention"].values())
    for leaf_name, leaf in params["attention"].items():
        assert np.any(leaf != other["attention"][leaf_name]) != leaf_name.endswith("bias")
    carry = decoder.over(params, jnp.ones((ENCODER_LENGTH, BATCH, mechanism.encoder_size))).initial_carry(
        jnp.ones((BATCH, FEATURES))
    )
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(carry))
