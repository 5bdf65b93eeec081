"""Truncated backpropagation: the values of a scan, and gradients that go back as far as each form says."""

import jax
import jax.numpy as jnp
import pytest

import rnnscan as rs
from tiers import variants
from zoo.case import Case, assert_trees_close


pytestmark = pytest.mark.usefixtures("x64")

# A cell of few equations: each is traced once a step of the slow loop.
CASE = Case(rs.cells.RNN(4))


def slow_by_window(params, carry, xs, *, every, back):
    """Each window by itself, in a loop over its steps, from a constant carry."""
    length = xs.shape[0]
    carries = [carry]
    for x in xs:
        carries.append(CASE.cell(params, carries[-1], x)[0])
    outputs = []
    for end in range(every, length + every, every):
        start = max(0, end - back)
        last = carry if start == 0 else jax.lax.stop_gradient(carries[start])
        ys = []
        for x in xs[start : min(end, length)]:
            last, y = CASE.cell(params, last, x)
            ys.append(y)
        outputs += ys[end - every - start :]
    return last, jnp.stack(outputs)


def both(run, slow):
    arguments = CASE.arguments(length=7, batch=2)
    return [jax.jit(lambda *a, run=run: CASE.gradients(run, *a))(*arguments) for run in (run, slow)]


WINDOWS = [(1, 1), (1, 3), (2, 2), (2, 3), (2, 5), (3, 3), (3, 4), (2, 7), (3, 9), (7, 7), (9, 9)]


# Windows that overlap by more than one, and one that is longer than the sequence.
@pytest.mark.parametrize(
    ("every", "back"),
    variants({f"{every}, {back}": (every, back) for every, back in WINDOWS}, ["2, 5", "3, 9"]),
)
def test_by_window_goes_back_as_far_as_the_loop_does(every, back):
    fast, slow = both(
        lambda *a: rs.truncated.by_window(CASE.cell, *a, every=every, back=back),
        lambda *a: slow_by_window(*a, every=every, back=back),
    )
    assert_trees_close(fast, slow)


def test_by_window_that_goes_back_as_far_as_every_is_by_chunk():
    fast, slow = both(
        lambda *a: rs.truncated.by_window(CASE.cell, *a, every=3, back=3),
        lambda *a: rs.truncated.by_chunk(CASE.cell, *a, size=3),
    )
    assert_trees_close(fast, slow)


def test_the_two_forms_differ_from_each_other_and_from_the_whole():
    params, carry, xs = CASE.arguments(length=7)

    def gradient(run):
        return jax.jit(jax.grad(lambda params: jnp.sin(run(params)[1]).sum()))(params)["kernel"]

    whole = gradient(lambda params: rs.scan(CASE.cell, params, carry, xs))
    chunk = gradient(lambda params: rs.truncated.by_chunk(CASE.cell, params, carry, xs, size=3))
    window = gradient(lambda params: rs.truncated.by_window(CASE.cell, params, carry, xs, every=1, back=3))
    assert min(abs(a - b).max() for a, b in [(whole, chunk), (chunk, window), (window, whole)]) > 1e-6


def test_padding_in_windows_is_padding_in_the_whole():
    params, carry, xs = CASE.arguments(length=7)
    lengths = jnp.array([0, 4, 7])
    windows = rs.truncated.by_window(CASE.cell, params, carry, xs, every=2, back=3, seq_lengths=lengths)
    assert_trees_close(windows, rs.scan(CASE.cell, params, carry, xs, seq_lengths=lengths))


def test_many_windows_are_one_program():
    params, carry, xs = CASE.arguments(length=60)

    def size(length):
        run = lambda *a: rs.truncated.by_window(CASE.cell, *a, every=2, back=6)  # noqa: E731
        return len(jax.make_jaxpr(run)(params, carry, xs[:length]).pretty_print().splitlines())

    assert size(60) == size(20)


def test_chunks_with_the_carry_handed_on_are_the_whole():
    params, carry, xs = CASE.arguments(length=7)
    pieces = []
    for first, piece in rs.truncated.chunks({"xs": xs}, size=3):
        assert first == 3 * len(pieces)
        carry, ys = CASE.scan(params, carry, piece["xs"])
        pieces.append(ys)
    assert [len(ys) for ys in pieces] == [3, 3, 1]
    _, carry_before, _ = CASE.arguments(length=7)
    assert_trees_close((carry, jnp.concatenate(pieces)), CASE.scan(params, carry_before, xs))


def test_chunks_of_nothing_and_of_leaves_that_do_not_agree():
    assert list(rs.truncated.chunks(jnp.ones((0, 2)), size=3)) == []
    with pytest.raises(ValueError, match="same number of steps"):
        rs.truncated.chunks((jnp.ones(3), jnp.ones(4)), size=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every": 0, "back": 3}, r"^by_window: `every` must be a number of steps of at least 1; got 0\."),
        ({"every": 3, "back": True}, r"^by_window: `back` must be a number of steps of at least 1; got True\."),
        ({"every": 3, "back": 2}, r"^by_window: `back` must be at least `every`, .* got back=2 and every=3\."),
    ],
)
def test_windows_that_cannot_be(options, message):
    with pytest.raises(ValueError, match=message):
        rs.truncated.by_window(CASE.cell, *CASE.arguments(), **options)


@pytest.mark.parametrize("function", [rs.truncated.by_chunk, rs.truncated.chunks])
def test_chunks_that_cannot_be(function):
    arguments = (CASE.cell, *CASE.arguments()) if function is rs.truncated.by_chunk else (jnp.ones(3),)
    with pytest.raises(ValueError, match=r"`size` must be a number of steps of at least 1; got 0\."):
        function(*arguments, size=0)


def test_a_carry_of_another_batch_is_refused():
    params, _, xs = CASE.arguments()
    _, carry, _ = CASE.arguments(batch=5)
    with pytest.raises(ValueError, match="Batch or hidden size may differ"):
        rs.truncated.by_chunk(CASE.cell, params, carry, xs, size=2)


NET = rs.chain(rs.layer(rs.cells.RNN(3)), rs.layer(rs.cells.RNN(4)))


FORMS = {"chunks": (rs.truncated.by_chunk, {"size": 3}), "windows": (rs.truncated.by_window, {"every": 3, "back": 4})}


@pytest.mark.parametrize(("form", "options"), variants(FORMS, ["windows"]))
@pytest.mark.parametrize("carry", variants([None, "given"], ["given"]))
def test_nets_are_truncated_as_the_stack_of_their_cells(carry, form, options):
    cell = rs.stack(*[net.cell for net in NET.nets])
    params, initial, xs = Case(cell).arguments(length=7, batch=2)
    mask = jnp.arange(7)[:, None] < jnp.array([7, 4])
    reset = jnp.zeros((7, 2), bool).at[3, 0].set(True).at[2, 1].set(True)

    def of_net(params, given, xs):
        params = {"net_0": params["layer_0"], "net_1": params["layer_1"]}
        return form(NET, params, xs, carry=given if carry else None, mask=mask, reset=reset, **options)

    def of_cell(params, given, xs):
        given = given if carry else jax.tree.map(jnp.zeros_like, given)
        return form(cell, params, given, xs, mask=mask, reset=reset, **options)

    gradients = lambda run: jax.jit(lambda *a: CASE.gradients(run, *a))(params, initial, xs)  # noqa: E731
    assert_trees_close(gradients(of_net), gradients(of_cell))


def test_by_window_stops_the_gradient_to_arrays_that_a_cell_holds():
    """An attention decoder reads its encoder's outputs at every step; a window counts those of its own steps."""
    decoder = rs.attention.decoder(rs.cells.GRU(3), rs.attention.Dot(3))
    params = decoder.init(jax.random.key(0), 2)
    outputs, xs = (jax.random.normal(jax.random.key(key), shape) for key, shape in ((1, (4, 2, 3)), (2, (6, 2, 2))))

    def loss(outputs, form, **options):
        cell = decoder.over(params, outputs)
        carry = jax.tree.map(jax.lax.stop_gradient, cell.initial_carry(xs[0]))
        return jnp.sum(jnp.sin(form(cell, params, carry, xs, **options)[1][0]))

    by_window = jax.jit(jax.grad(lambda outputs: loss(outputs, rs.truncated.by_window, every=2, back=2)))(outputs)
    by_chunk = jax.jit(jax.grad(lambda outputs: loss(outputs, rs.truncated.by_chunk, size=2)))(outputs)
    assert_trees_close(by_window, by_chunk)


UNITS = 4
KEY = jax.random.key(5)
RANDOM = {
    "each step": rs.dropout(rs.cells.RNN(UNITS), 0.4),
    "each sequence": rs.dropout(rs.cells.GRU(UNITS), 0.4, on="recurrent", each="sequence"),
    "zoneout": rs.stack(rs.zoneout(rs.cells.RNN(UNITS), 0.3), rs.dropout(rs.cells.RNN(UNITS), 0.4)),
}


@pytest.mark.parametrize(("every", "back"), variants({f"{e}, {b}": (e, b) for e, b in WINDOWS}, ["2, 5", "3, 3"]))
@pytest.mark.parametrize("cell", variants(RANDOM, ["each step", "each sequence"]))
def test_windows_with_a_key_make_the_random_choices_of_the_whole(cell, every, back):
    params, carry, xs = Case(cell).arguments(length=7, batch=2)
    options = {"key": KEY, "first_step": 3}
    whole = rs.scan(cell, params, carry, xs, **options)
    windows = rs.truncated.by_window(cell, params, carry, xs, every=every, back=back, **options)
    assert_trees_close(windows, whole)
    assert abs(whole[1] - rs.scan(cell, params, carry, xs)[1]).max() > 1e-3


@pytest.mark.parametrize(("every", "form"), [(7, "scan"), (3, "chunks")], ids=["scan", "chunks"])
def test_gradients_of_windows_with_a_key_are_those_of_the_scan_and_of_chunks(every, form):
    case = Case(RANDOM["each step"])
    run = {
        "scan": lambda *a: rs.scan(case.cell, *a, key=KEY),
        "chunks": lambda *a: rs.truncated.by_chunk(case.cell, *a, size=every, key=KEY),
    }[form]
    arguments = case.arguments(length=7, batch=2)
    by_window = lambda *a: rs.truncated.by_window(case.cell, *a, every=every, back=every, key=KEY)  # noqa: E731
    fast, slow = (jax.jit(lambda *a, run=run: case.gradients(run, *a))(*arguments) for run in (by_window, run))
    assert_trees_close(fast, slow)


def test_windows_of_a_net_with_a_key_and_dropout_between_its_nets():
    net = rs.chain(rs.layer(RANDOM["each step"]), rs.layer(rs.cells.RNN(3)), dropout=0.5)
    xs = jnp.ones((7, 2, 3))
    params = net.init(jax.random.key(0), 3)
    carry = net.initial_carry(xs)
    windows = rs.truncated.by_window(net, params, xs, every=2, back=5, key=KEY)
    assert_trees_close(windows, net(params, xs, carry=carry, key=KEY))


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("run", "error", "match"),
    [
        (
            lambda cell: rs.truncated.by_window(cell, None, 0.0, None, every=1, back=2),
            ValueError,
            "by_window: the numb",
        ),
        (lambda cell: list(rs.truncated.chunks(None, 2)), ValueError, "chunks: the number of steps must be known"),
        (
            lambda cell: rs.truncated.by_chunk(cell, None, 0.0, jnp.ones(4), size=2, truncate=2),
            TypeError,
            "by_chunk: `size` takes the place of `truncate`",
        ),
    ],
)
def test_arguments_that_other_functions_have(run, error, match):
    with pytest.raises(error, match=match):
        run(lambda params, carry, x: (carry + 1, carry))
