"""rs.memory_report: what it predicts is what jax.vjp keeps, and near what XLA allocates."""

import io
from functools import cache, partial
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax
from jax.experimental import io_callback
from rich.console import Console

import rnnscan as rs
from rnnscan import attention, cells
from rnnscan.insight import kept_bytes
from rnnscan.insight.memory_picture import memory_figure
from rnnscan.insight.memory_report import memory_report
from rnnscan.insight.report_rows import Category, predict_kept
from rnnscan.planning.arguments import Arguments
from rnnscan.planning.memory_prediction import predict_temporary
from tiers import variants
from zoo.cases import CASES, SEVERAL


SCHEDULE = rs.checkpointing.nested(19, slots=8)
FLOAT, LENGTH, BATCH, FEATURES, HIDDEN = 4, 48, 8, 16, 32


def shapes(*sizes):
    return jax.ShapeDtypeStruct(sizes, jnp.float32)


def arguments_of(cell, length=LENGTH, batch=BATCH, features=FEATURES):
    params = jax.eval_shape(lambda: cell.init(jax.random.key(0), features))
    return params, jax.eval_shape(cell.initial_carry, shapes(batch, features)), shapes(length, batch, features)


def report_of(cell, memory=rs.Memory(), *, compile=False, batch=BATCH, **options):
    return memory_report(cell, *arguments_of(cell, batch=batch), memory=memory, compile=compile, **options)


def rows_of(phase):
    return {row.name: row.bytes for row in phase.rows}


def assert_exact(report):
    assert report.predicted
    assert report.training.kept_bytes == report.training.counted_bytes


CHOICES = {
    "auto": [(rs.Memory(), "auto"), ("a name", "auto")],
    "segments": [(rs.Memory(segment=(9, 2)), "auto"), (rs.Memory(segment=4), "lax")],
    "schedules": [
        (rs.Memory(segment=SCHEDULE, recompute="all"), "auto"),
        (rs.Memory(segment=SCHEDULE), "auto"),
        (rs.Memory(segment=SCHEDULE), "lax"),
    ],
    "lax": [("a name", "lax"), (rs.Memory(recompute="all"), "lax"), (rs.Memory(), "lax")],
}
# Every choice of memory with an LSTM, and the default one with each kind of cell.
TELLING = [*(f"LSTM, {choices}" for choices in CHOICES), *(f"{name}, auto" for name in SEVERAL if name != "LSTM")]


@pytest.mark.parametrize(
    ("name", "choices"),
    variants({f"{name}, {choices}": (name, choices) for name in CASES for choices in CHOICES}, TELLING),
)
def test_what_is_predicted_to_be_kept_is_what_jax_keeps(name, choices):
    case = CASES[name]
    arguments = jax.eval_shape(lambda: case.arguments(length=19))
    for memory, engine in CHOICES[choices]:
        if memory == "a name":
            memory = rs.Memory(recompute=tuple(case.cell.names[:1]), chunk=4 if engine == "auto" else None)
        all_given = Arguments(rs.scan, case.cell, *arguments, {"memory": memory, "engine": engine})
        predicted = predict_kept(all_given)
        places = zip(all_given.places, all_given.shapes, strict=True)
        given = {place: leaf for place, leaf in places if place in predicted.arguments}
        assert given.keys() == predicted.arguments
        total = sum(leaf.size * leaf.dtype.itemsize for leaf in given.values())
        total += sum(row.bytes for row in predicted.rows)
        assert total == kept_bytes(partial(case.scan, memory=memory, engine=engine), *arguments)


SHORT = [rs.Memory(), rs.Memory(segment=2), rs.Memory(segment="sqrt"), None]


@pytest.mark.parametrize("length", [0, 1, 2])
@pytest.mark.parametrize("memory", variants(SHORT, [rs.Memory(segment="sqrt")]), ids=str)
def test_short_sequences_and_none(length, memory):
    cell = rs.stack(cells.RNN(4), cells.GRU(4))
    report = memory_report(cell, *arguments_of(cell, length=length), memory=memory, compile=False)
    assert report.training.kept_bytes == report.training.counted_bytes
    assert report.length == length


def unchanged(params, carry, x):
    hidden = jnp.tanh(rs.name(x @ params + carry["bias"], "sum") + carry["hidden"])
    return carry | {"hidden": hidden, "steps": carry["steps"] + 1}, None


def invariant_name(params, carry, x):
    return jnp.tanh(x + carry @ rs.name(jnp.sin(params), "sine")), None


def shared_name(params, carry, x):
    hidden = jnp.tanh(rs.name(x @ params, "product") * rs.name(jnp.sin(carry), "product"))
    return rs.name(hidden, "hidden"), (hidden, rs.name(jnp.cos(hidden), "cosine"))


def closing_over(params, carry, x):
    hidden = jnp.tanh((x + carry) @ params) * ENCODER
    return hidden, hidden


ENCODER = jnp.linspace(-1.0, 1.0, 8 * 4).reshape(8, 4)
OWN_CELLS = {
    unchanged: {"bias": shapes(8, 4), "hidden": shapes(8, 4), "steps": jax.ShapeDtypeStruct((), jnp.int32)},
    invariant_name: shapes(8, 4),
    shared_name: shapes(8, 4),
    closing_over: shapes(8, 4),
}


@pytest.mark.parametrize("cell", OWN_CELLS, ids=lambda cell: cell.__name__)
@pytest.mark.parametrize("engine", variants(["auto", "lax"], ["auto"]))
@pytest.mark.parametrize("memory", [rs.Memory(), rs.Memory(recompute="all"), rs.Memory(segment=4)], ids=str)
def test_cells_of_ones_own(cell, engine, memory):
    arguments = (shapes(4, 4), OWN_CELLS[cell], shapes(10, 8, 4))
    assert_exact(memory_report(cell, *arguments, memory=memory, engine=engine, compile=False))


def test_an_input_may_be_missing_and_a_carry_a_number():
    def cell(params, carry, x):
        return jnp.tanh(carry * params), carry

    report = memory_report(cell, jnp.float16(2.0), 0.5, None, length=7, compile=False)
    assert_exact(report)
    assert (report.length, report.batch) == (7, 1)


def narrow(params, carry, x):
    carry = jnp.tanh(carry @ params.astype(carry.dtype) + x)
    return carry, carry


def with_policy(params, carry, x):
    save = jax.checkpoint_policies.dots_saveable
    carry = jax.checkpoint(lambda carry: jnp.sin(carry @ params), policy=save)(carry) + x
    return carry, rs.name(jnp.cos(carry), "y")


def over_constant(params, carry, x):
    hidden, steps = carry
    hidden = rs.name(hidden @ params + steps * CLOSED_OVER + x, "hidden")
    return (jnp.tanh(hidden), 2 * steps), hidden


CLOSED_OVER = jnp.arange(4.0)
RECURRENT, WIDE = (4, 4), jax.ShapeDtypeStruct((16, 4), jnp.float32)
EXACT = {
    # name: (cell, params, carry, x, options)
    "16 bits in segments": (narrow, jax.ShapeDtypeStruct(RECURRENT, jnp.bfloat16), WIDE, WIDE, {"segment": 4}),
    "16 bits in nested segments": (
        narrow,
        jax.ShapeDtypeStruct(RECURRENT, jnp.float16),
        WIDE,
        WIDE,
        {"segment": (8, 4)},
    ),
    "integers alone": (lambda p, c, x: (c + 1, 2 * c), None, jax.ShapeDtypeStruct((3,), jnp.int32), None, {}),
    "an integer result of floats": (
        lambda p, c, x: (c + 1, jnp.argmax(x, -1)),
        None,
        jax.ShapeDtypeStruct((), jnp.int32),
        WIDE,
        {},
    ),
    "an unchanged carry": (lambda p, c, x: (c, jnp.ones(3)), None, WIDE, None, {}),
    "a policy in the step": (with_policy, shapes(*RECURRENT), WIDE, WIDE, {}),
    "a closed-over array": (over_constant, shapes(*RECURRENT), (WIDE, shapes()), WIDE, {}),
}


@pytest.mark.parametrize("engine", ["auto", "lax"])
@pytest.mark.parametrize("name", EXACT)
def test_what_no_derivative_reads_is_not_predicted(name, engine):
    cell, params, carry, x, memory = EXACT[name]
    xs = None if x is None else shapes(24, *x.shape)
    assert_exact(
        memory_report(cell, params, carry, xs, length=24, memory=rs.Memory(**memory), engine=engine, compile=False)
    )


def branching(params, carry, x):
    return lax.cond(x.sum() > 0, lambda: rs.name(jnp.sin(carry), "sine"), lambda: carry), x


def with_effect(params, carry, x):
    io_callback(lambda: None, None, ordered=False)
    return jnp.sin(rs.name(carry * params, "product")), x


@pytest.mark.parametrize("cell", [branching, with_effect, rs.cells.LSTM(4)], ids=["branching", "with_effect", "LSTM"])
def test_what_jax_decides_is_counted_and_called_so(cell):
    arguments = arguments_of(cell) if isinstance(cell, rs.cells.LSTM) else (shapes(4), shapes(8, 4), shapes(10, 8, 4))
    memory = None if isinstance(cell, rs.cells.LSTM) else rs.Memory()
    report = memory_report(cell, *arguments, memory=memory, compile=False)
    assert not report.predicted
    assert report.training.kept_bytes == report.training.counted_bytes
    assert "residuals of autodiff" in rows_of(report.training)
    assert "predicted, " not in str(report).splitlines()[1]


def test_the_rows_of_an_lstm():
    floats = LENGTH * BATCH * HIDDEN
    model = FLOAT * ((FEATURES + HIDDEN) * 4 * HIDDEN + 4 * HIDDEN)
    report = report_of(cells.LSTM(HIDDEN), rs.Memory(chunk=8), optimizer=optax.adam(1e-3))
    training = rows_of(report.training)
    assert training['"gates"'] == 4 * FLOAT * floats
    assert training["ys, kept"] == FLOAT * floats
    assert training["carry[1] before 6 of the steps"] == 6 * FLOAT * BATCH * HIDDEN
    assert training["params['kernel']"] == FLOAT * FEATURES * 4 * HIDDEN
    assert training["gradient of params"] == model
    assert training["gradient of xs"] == training["xs"] == FLOAT * LENGTH * BATCH * FEATURES
    assert training["optimizer state"] == 2 * model + 4, "two moments and a counter"
    inference = rows_of(report.inference)
    assert (inference["ys"], inference["last carry"]) == (FLOAT * floats, 2 * FLOAT * BATCH * HIDDEN)
    assert report.inference.kept_bytes == 0
    recomputing = rows_of(report_of(cells.LSTM(HIDDEN), rs.Memory(recompute=("gates",))).training)
    assert recomputing['"gates", recomputed'] == 0
    assert '"gates"' not in recomputing


def test_parts_are_all_there_is():
    for memory in (rs.Memory(), rs.Memory(recompute="all"), rs.Memory(segment=8), None):
        report = report_of(cells.GRU(HIDDEN), memory)
        for phase in (report.inference, report.training):
            assert sum(row.bytes for row in phase.rows) == phase.peak_bytes
            assert all(row.bytes >= 0 for row in phase.rows)


def test_twice_the_examples_take_twice_the_memory_of_what_is_per_example():
    memory = rs.Memory(chunk=8)
    one, two = (report_of(cells.LSTM(HIDDEN), memory, batch=batch, optimizer=optax.sgd(0.1)) for batch in (4, 8))
    assert (one.batch, two.batch) == (4, 8)
    for few, many in zip(one.training.rows, two.training.rows, strict=True):
        assert few.name == many.name
        if few.name == "scratch":
            assert 1.5 <= many.bytes / few.bytes <= 2
        else:
            assert many.bytes == few.bytes * (2 if few.per_example else 1), few.name
    assert {row.category for row in one.training.rows if not row.per_example} == {"standard", "working fixed"}


def test_the_batch_can_be_said_where_the_axes_do_not_tell():
    def cell(params, carry, x):
        return jnp.tanh(carry + x.sum()), x

    arguments = (None, shapes(2, 8), shapes(10, 8, 4))
    assert memory_report(cell, *arguments, compile=False).batch == 1
    assert memory_report(cell, *arguments, compile=False, batch=8).batch == 8


def test_offloaded_names_are_in_the_memory_of_the_host():
    with pytest.warns(UserWarning, match="saves nothing on a CPU"):
        report = report_of(cells.LSTM(HIDDEN), rs.Memory(offload=("gates",)))
    assert_exact(report)
    assert report.training.offloaded_bytes == 4 * FLOAT * LENGTH * BATCH * HIDDEN
    assert "of it offloaded" in str(report)
    assert "in host memory" in str(report)


def decoding(params, carry, x):
    decoder = attention.decoder(cells.LSTM(HIDDEN), attention.Additive(HIDDEN, HIDDEN))
    return decoder.over(params["decoder"], params["encoder"])(params["decoder"], carry, x)


def decoder_arguments():
    decoder = attention.decoder(cells.LSTM(HIDDEN), attention.Additive(HIDDEN, HIDDEN))
    params = jax.eval_shape(lambda: decoder.init(jax.random.key(0), FEATURES))
    encoder, xs = shapes(24, BATCH, HIDDEN), shapes(LENGTH, BATCH, FEATURES)
    start = lambda params, encoder, x: decoder.over(params, encoder).initial_carry(x)  # noqa: E731
    carry = jax.eval_shape(start, params, encoder, shapes(BATCH, FEATURES))
    return {"decoder": params, "encoder": encoder}, carry, xs


def attending(params, carry, x):
    """Additive attention over keys that are projected ahead."""
    seen = rs.name(jnp.tanh(params["keys"] + (carry[0] @ params["query_kernel"])[:, None]), "attention")
    context = jnp.einsum("ns,nse->ne", jax.nn.softmax(seen @ params["score_kernel"]), params["encoder"])
    return cells.LSTM(HIDDEN)(params["lstm"], carry, jnp.concatenate([x, context], -1))


def attending_arguments():
    lstm, carry, _ = arguments_of(cells.LSTM(HIDDEN), features=FEATURES + HIDDEN)
    weights = {"query_kernel": shapes(HIDDEN, HIDDEN), "score_kernel": shapes(HIDDEN)}
    encoder = {"keys": shapes(BATCH, 24, HIDDEN), "encoder": shapes(BATCH, 24, HIDDEN)}
    return weights | encoder | {"lstm": lstm}, carry, shapes(LENGTH, BATCH, FEATURES)


def ratios(cell, arguments, memory):
    report = memory_report(cell, *arguments, memory=memory)
    return [phase.peak_bytes / phase.compiled.total for phase in (report.inference, report.training)]


WORKLOADS = {
    "LSTM": cells.LSTM(HIDDEN),
    "GRU": cells.GRU(HIDDEN),
    "LayerNormLSTM": cells.LayerNormLSTM(HIDDEN),
    "MinGRU": cells.MinGRU(HIDDEN),
    "Stack": rs.stack(cells.LSTM(HIDDEN), cells.LSTM(HIDDEN)),
    "attention": attending,
}


PEAKS = {
    "keep": rs.Memory(),
    "recompute": rs.Memory(recompute="all"),
    "segments": rs.Memory(segment="sqrt"),
    "plain": None,
}


@pytest.mark.parametrize(
    ("name", "memory"),
    variants(
        {f"{name}, {kind}": (name, memory) for name in WORKLOADS for kind, memory in PEAKS.items()},
        ["LSTM, plain", "Stack, recompute", "MinGRU, segments", "attention, keep"],
    ),
)
def test_the_predicted_peak_is_near_that_of_xla(name, memory):
    cell = WORKLOADS[name]
    found = ratios(cell, attending_arguments() if name == "attention" else arguments_of(cell), memory)
    assert 0.8 <= min(found) <= max(found) <= 1.2


def test_the_predicted_peak_of_a_long_sequence_in_segments():
    """What XLA holds twice, the outputs and their cotangents, is the most of it."""
    cell = cells.LSTM(16)
    found = ratios(cell, arguments_of(cell, length=1024, batch=2, features=4), rs.Memory(segment="sqrt"))
    assert 0.95 <= min(found) <= max(found) <= 1.05


@pytest.mark.parametrize(
    ("memory", "least"),
    variants({"keep": (rs.Memory(), 0.8), "segments": (rs.Memory(segment="sqrt"), 0.65)}, ["segments"]),
)
def test_the_predicted_peak_of_a_decoder_that_projects_its_keys_within_the_step(memory, least):
    """XLA copies what is large of a segment's steps to lay it out for products, which is not foreseen."""
    found = ratios(decoding, decoder_arguments(), memory)
    assert least <= min(found) <= max(found) <= 1.2


def test_temporary_memory_of_programs_that_are_easily_told():
    square = shapes(16, 16)
    size = FLOAT * 16 * 16
    chain = predict_temporary(lambda a: [(a @ a) @ a], square)
    assert chain.nbytes == size, "the first product"
    fused = predict_temporary(lambda a: [jnp.sin(a) * 2 + 1], square)
    assert fused.nbytes == 0
    constant = predict_temporary(lambda a: [a @ lax.reshape(np.ones(16 * 16, np.float32), (16, 16))], square)
    assert constant.nbytes == 0, "a constant is a part of the program"
    both = predict_temporary(lambda a, b: [(a @ a) @ (b @ b)], square, square, fixed=1)
    assert (both.nbytes, both.fixed) == (2 * size, size)
    loop = lambda a, xs: lax.scan(lambda c, x: (c @ a, x @ a), a, xs)  # noqa: E731
    stacked = predict_temporary(lambda a, xs: [loop(a, xs)[1].sum()], square, shapes(5, 16, 16))
    assert 5 * size <= stacked.nbytes <= 9 * size, "the stack, and what a trip of the loop takes"


@cache
def compiled_report():
    """For the tests of how a report is shown."""
    memory = rs.Memory(recompute=("gates",))
    return report_of(cells.LSTM(HIDDEN), memory, compile=True, optimizer=optax.sgd(0.1, momentum=0.9))


def test_it_shows_as_text_as_a_table_and_as_html():
    report = compiled_report()
    text = str(report)
    written = io.StringIO()
    Console(file=written, width=200).print(report)
    for shown in (text, written.getvalue(), report._repr_html_()):
        for part in ("LSTM(hidden_size=32)", "by XLA", "working variable", "scratch", "all cached", "48 steps of 8"):
            assert part in shown
    assert "params[&#x27;kernel&#x27;]" in report._repr_html_()
    assert "by XLA" not in str(report_of(cells.LSTM(HIDDEN)))


def test_a_legend_gives_the_categories_in_the_words_of_the_field():
    net = rs.chain(rs.layer(cells.GRU(3)), rs.layer(cells.GRU(3)))
    params = jax.eval_shape(lambda: net.init(jax.random.key(0), 2))
    of_net = rs.memory_report(net, params, jax.ShapeDtypeStruct((5, 2, 2), jnp.float32), compile=False)
    for report in (report_of(cells.LSTM(HIDDEN)), of_net):
        legend = str(report).split("\n\n")[-1]
        assert [line.split(":")[0] for line in legend.split("\n")[:4]] == [*get_args(Category)]
        assert str(report).count(legend) == 1
        for word in ("parameters", "activations", "residuals", "temporary buffers", "gradients", "optimizer state"):
            assert word in legend


def test_the_picture_has_bars_as_long_as_what_it_shows():
    report = compiled_report()
    (axes,) = memory_figure(report).axes
    ends = {}
    for bar in axes.patches:
        ends[round(bar.get_y(), 1)] = bar.get_x() + bar.get_width()
    shown = [ends[row] for row in sorted(ends)]
    phases = (report.inference, report.training)
    wanted = [total for phase in phases for total in (sum(row.bytes for row in phase.rows), phase.compiled.total)]
    np.testing.assert_allclose(shown, wanted)
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels[2:] == ["training, predicted", "training, by XLA (no optimizer)"]
    (axes,) = memory_figure(report_of(cells.LSTM(HIDDEN)), title="a title").axes
    assert axes.get_title(loc="left") == "a title"
    assert len(axes.get_yticklabels()) == 2


def test_errors_say_what_must_hold():
    with pytest.raises(ValueError, match="must be one that the cell gives"):
        report_of(cells.LSTM(4), rs.Memory(recompute=("gate",)))
    with pytest.raises(ValueError, match="`batch` must be a number of examples"):
        memory_report(cells.LSTM(4), *arguments_of(cells.LSTM(4)), batch=0)
    with pytest.raises(TypeError, match="`optimizer` must have a function"):
        report_of(cells.LSTM(4), optimizer="adam")


@pytest.mark.bad_input
def test_a_wrong_type_of_memory_is_refused():
    with pytest.raises(TypeError, match="`memory` must be"):
        report_of(cells.LSTM(4), "all")
