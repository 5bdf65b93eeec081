"""What is chosen, stored and shown of a trace, and errors."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

import rnnscan as rs
from rnnscan import cells
from rnnscan.inside.tracing import selection


T, N, D, H = 7, 3, 4, 5
CELL = rs.stack(cells.LSTM(H), cells.GRU(4))


def normal(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape)


def example(cell=CELL):
    xs = normal(1, T, N, D)
    params = jax.tree.map(lambda leaf: leaf + 0.2, cell.init(jax.random.key(0), D))
    return cell, params, cell.initial_carry(xs[0]), xs


def loss(results):
    return (results[1] ** 2).sum()


def test_chosen_steps_and_rows_are_those_of_the_whole_trace():
    whole = rs.trace(*example(), loss=loss)
    part = rs.trace(*example(), loss=loss, steps=[5, 0, 3, 3], rows=[0, 2])
    assert part.steps == (0, 3, 5)
    assert part.rows == (0, 2)
    assert list(part) == list(whole)
    for path in whole:
        for ours, theirs in ((part, whole), (part.cotangents, whole.cotangents)):
            expected = theirs[path][np.array([0, 3, 5])][:, np.array([0, 2])]
            np.testing.assert_allclose(ours[path], expected, rtol=1e-5, atol=1e-6, err_msg=path)
    assert rs.trace(*example(), names="y", steps=2)["y"].shape == (1, N, 4)


@pytest.mark.parametrize("options", [{"reverse": True}, {"engine": "lax"}, {"memory": rs.Memory(segment=3)}], ids=str)
def test_chosen_steps_in_reverse_and_with_a_memory_choice(options):
    whole = rs.trace(*example(), loss=loss, **options)
    part = rs.trace(*example(), loss=loss, steps=[1, 6], **options)
    for path in whole:
        np.testing.assert_allclose(part[path], whole[path][np.array([1, 6])], rtol=1e-5, atol=1e-6)
        expected = whole.cotangents[path][np.array([1, 6])]
        np.testing.assert_allclose(part.cotangents[path], expected, rtol=1e-5, atol=1e-6)


def test_the_results_do_not_change():
    cell, params, carry, xs = example()
    options = {"seq_lengths": jnp.array([7, 4, 1]), "key": jax.random.key(3)}
    cell = rs.dropout(cell, 0.5)
    (hidden, _), ys = rs.scan(cell, params, carry, xs, **options)
    trace = rs.trace(cell, params, carry, xs, **options, loss=loss)
    np.testing.assert_allclose(trace["y"], ys, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(trace["carry[0][0]"][-1], hidden[0], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(trace.loss, loss((None, ys)), rtol=1e-5)


def test_names_choose_by_path_and_by_its_end():
    assert list(rs.trace(*example(), names=["layer_0/gates"])) == ["layer_0/gates"]
    gates = ["layer_0/gates", *(f"layer_1/gates[{i}]" for i in range(3))]
    assert list(rs.trace(*example(), names="gates")) == gates
    assert list(rs.trace(*example(), names=["y", "layer_1/gates[1]"])) == ["layer_1/gates[1]", "y"]
    trace = rs.trace(*example())
    assert trace["layer_1/gates"][2] is trace["layer_1/gates[2]"]
    assert [leaf.shape for leaf in trace["carry"]] == [(T, N, H), (T, N, H), (T, N, 4)]
    with pytest.raises(KeyError, match="must be the name of one cell's values"):
        trace["gates"]
    with pytest.raises(KeyError, match=r"'gate'.*there are 'layer_0/gates'"):
        trace["gate"]


def bytes_of(length, **options):
    """The temporary bytes and the bytes of results of a compiled trace."""
    cell = cells.LSTM(32)
    params = jax.eval_shape(lambda: cell.init(jax.random.key(0), 4))

    def run(params, xs):
        return rs.trace(cell, params, cell.initial_carry(xs[0]), xs, names="gates", **options)

    compiled = jax.jit(run).lower(params, jax.ShapeDtypeStruct((length, 2, 4), jnp.float32)).compile()
    analysis = compiled.memory_analysis()
    return analysis.temp_size_in_bytes, analysis.output_size_in_bytes


def test_only_what_is_asked_for_is_stored():
    of_step = 2 * 4 * 32 * 4  # Bytes of the gates of both rows.
    short, long = (bytes_of(length, steps=[0, 9, 50]) for length in (64, 640))
    assert short == long
    assert 3 * of_step <= long[1] <= 3 * of_step + 64
    assert long[0] < 100 * of_step
    assert bytes_of(64, steps=[0, 9, 50], rows=[1])[1] <= 3 * of_step / 2 + 64
    assert 640 * of_step <= bytes_of(640)[1] <= 640 * of_step + 64


def test_cotangents_of_a_few_steps_need_no_more_memory_than_the_gradient():
    cell, length = cells.LSTM(32), 320
    params = jax.eval_shape(lambda: cell.init(jax.random.key(0), 4))
    xs = jax.ShapeDtypeStruct((length, 2, 4), jnp.float32)

    def gradient(params, xs):
        return jax.grad(lambda params: loss(rs.scan(cell, params, cell.initial_carry(xs[0]), xs)))(params)

    plain = jax.jit(gradient).lower(params, xs).compile().memory_analysis().temp_size_in_bytes
    temporary, results = bytes_of(length, steps=[0, 9, 50], loss=loss)
    assert temporary <= 1.05 * plain
    assert results <= 2 * 3 * 2 * 4 * 32 * 4 + 128


def test_a_trace_is_a_pytree_and_its_summary_reads_it():
    def cell(params, carry, x):
        gates = rs.name(params * x, "gates")
        return carry + gates, jnp.exp(gates)

    xs = jnp.array([1.0, -2.0, 100.0, 3.0])[:, None]
    trace = jax.jit(lambda: rs.trace(cell, jnp.float32(2), jnp.zeros(1), xs, loss=lambda results: results[0].sum()))()
    assert jax.tree.map(jnp.shape, trace).arrays == ((4, 1),) * 3
    summary = trace.summary()
    gates, carry, y = summary.values.values()
    assert (gates.minimum, gates.maximum, gates.mean) == (-4, 200, 51)
    assert gates.saturated == 0.5
    assert np.isclose(gates.norm, np.sqrt(4 + 16 + 200**2 + 36))
    assert gates.cotangent_norm == 2
    assert carry.first_nonfinite is None
    assert carry.saturated is None
    assert y.first_nonfinite == 2
    assert y.maximum == np.inf
    text = str(summary)
    assert re.search(r"^gates +-4 +200 +51 +200 +50.0 % +2 +none$", text, re.MULTILINE)
    assert "<table" in summary._repr_html_()
    assert repr(trace).startswith("Trace(cell, 4 steps, {'gates': float32[4,1], 'carry': float32[4,1]")
    with pytest.raises(TypeError, match="Return the trace from the transformed function"):
        jax.jit(lambda: rs.trace(cell, jnp.float32(2), jnp.zeros(1), xs).summary().steps)()


def test_the_first_step_that_is_not_finite_is_that_of_chosen_steps_and_mapped_rows():
    def cell(params, carry, x):
        return carry, rs.name(x, "x")

    xs = jnp.zeros((2, T, 1)).at[1, 4].set(jnp.nan)
    trace = jax.vmap(lambda xs: rs.trace(cell, None, jnp.zeros(1), xs, names="x", steps=[1, 4, 5]))(xs)
    assert trace["x"].shape == (2, 3, 1)
    assert trace.summary().values["x"].first_nonfinite == 4


@pytest.mark.parametrize(("reverse", "first"), [(True, 4), (False, 4)])
def test_the_first_step_that_is_not_finite_is_the_first_to_run(reverse, first):
    def cell(params, carry, x):
        return carry + rs.name(x, "x"), carry

    def run(xs):
        return rs.scan(cell, None, jnp.zeros(1), xs, reverse=reverse)

    xs = jnp.zeros((T, 1)).at[first].set(jnp.nan)
    for trace in (rs.trace(run, xs), rs.trace(cell, None, jnp.zeros(1), xs, reverse=reverse)):
        values = trace.summary().values
        assert values["carry"].first_nonfinite == first
        assert values["y"].first_nonfinite == (first - 1 if reverse else first + 1)
    trace = rs.trace(run, xs, steps=[0, 2, 5])
    assert trace.summary().values["carry"].first_nonfinite == (2 if reverse else 5)


def test_each_direction_of_a_net_has_its_own_first_step():
    net = rs.bidirectional(rs.cells.RNN(2))
    xs = jnp.zeros((T, N, 3)).at[3].set(jnp.nan)
    values = rs.trace(net, net.init(jax.random.key(0), 3), xs).summary().values
    carries = {path: value.first_nonfinite for path, value in values.items() if path.endswith("/carry")}
    assert carries == {"forward/carry": 3, "backward/carry": 3}


def while_net(params, xs):
    return rs.while_net(
        lambda params, carry: carry.sum() < 1, lambda params, carry: rs.name(carry + 1, "h1"), xs[0], max_steps=3
    )[0]


def scan_until(params, xs):
    def cell(params, carry, x):
        return rs.name(carry + x, "h1"), x

    return rs.scan_until(cell, None, xs[0], xs, lambda params, carry, y: carry.sum() > 1, max_steps=T)[0]


def decode(params, xs):
    def decoder(params, carry, tokens):
        return carry, jax.nn.log_softmax(rs.name(carry, "h1"))

    return rs.decode(decoder, None, xs[0], start=0, end=1, max_steps=3).scores


@pytest.mark.parametrize("function", [while_net, scan_until, decode])
def test_names_in_loops_that_stop_by_a_condition_are_not_traced_and_say_so(function):
    def with_scan(params, xs):
        return function(params, xs), rs.scan(lambda _, carry, x: (carry + x, rs.name(x, "here")), None, xs[0], xs)[1]

    xs = normal(1, T, N, D)
    trace = rs.trace(lambda xs: with_scan(None, xs), xs)
    assert list(trace) == ["here", "carry", "y"]
    assert list(trace.untraced) == ["h1"]
    three = "`rs.while_net`, `rs.scan_until` and `rs.decode` stop by a condition"
    assert trace.untraced["h1"].startswith(f"it is within `rs.{function.__name__}`: {three}")
    with pytest.raises(ValueError, match=f"'h1' cannot be traced: it is within .*{three}"):
        rs.trace(lambda xs: with_scan(None, xs), xs, names="h1")
    with pytest.raises(ValueError, match=f"which runs none.*{three}"):
        rs.trace(lambda xs: function(None, xs), xs)


def test_a_loop_in_a_cell_is_named_by_its_place():
    def step(params, carry, x):
        return carry + while_net(None, x[None]), x

    trace = rs.trace(step, None, jnp.zeros((N, D)), normal(1, T, N, D))
    assert list(trace) == ["carry", "y"]
    assert list(trace.untraced) == ["h1"]


def test_the_picture_has_a_map_for_each_value_and_the_norms():
    trace = rs.trace(*example(), loss=loss, steps=[0, 2, 6])
    figure = trace.draw(["gates", "carry"], row=1)
    figure.canvas.draw()
    maps = [axes for axes in figure.axes if axes.get_ylabel() == "unit"]
    assert [axes.get_title(loc="left") for axes in maps] == [path for path in trace if path != "y"]
    np.testing.assert_allclose(maps[0].collections[0].get_array(), trace["layer_0/gates"][:, 1].T)
    (norms,) = (axes for axes in figure.axes if axes.get_yscale() == "log")
    line = norms.lines[0]
    assert list(line.get_xdata()) == [0, 2, 6]
    expected = np.sqrt((np.asarray(trace.cotangents["layer_0/gates"]) ** 2).sum((1, 2)))
    np.testing.assert_allclose(line.get_ydata(), expected, rtol=1e-5)
    with pytest.raises(ValueError, match="`row` must be from 0 to 2; got 3"):
        trace.draw(row=3)
    with pytest.raises(ValueError, match=r"got 'gatez'.*Did you mean"):
        trace.draw(["gatez"])


def test_values_that_cannot_be_traced_are_named():
    @jax.custom_jvp
    def ruled(x):
        return rs.name(x * 2, "ruled")

    ruled.defjvp(lambda primals, tangents: (ruled(*primals), 3 * tangents[0]))

    def cell(params, carry, x):
        branch = jax.lax.cond(x.sum() > 0, lambda x: rs.name(x * 2, "branch"), lambda x: x, x)
        loop = jax.lax.while_loop(lambda x: x.sum() < 0, lambda x: rs.name(x + 1, "loop"), x)
        return carry + branch + loop + ruled(x), rs.name(x, "here")

    trace = rs.trace(cell, None, jnp.zeros(2), normal(1, T, 2), loss=lambda results: results[0].sum())
    assert list(trace) == ["ruled", "here", "carry", "y"]
    assert "branch of a `lax.cond`" in trace.untraced["branch"]
    assert "`lax.while_loop`" in trace.untraced["loop"]
    assert list(trace.cotangents) == ["here", "carry", "y"]
    np.testing.assert_allclose(trace["ruled"], 2 * normal(1, T, 2))
    assert "branch is not traced: it is within a branch" in str(trace.summary())
    with pytest.raises(ValueError, match=r"'loop' cannot be traced: it is within a `lax\.while_loop`"):
        rs.trace(cell, None, jnp.zeros(2), normal(1, T, 2), names="loop")


def plain_function(xs):
    return jax.lax.scan(lambda carry, x: (carry + x, carry), jnp.zeros(D), xs[:, 0])


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"names": "gate"}, ValueError, r"got 'gate', and there are 'layer_0/gates', .*Did you mean 'gates'\?"),
        ({"names": [3]}, TypeError, r"`names` must be names of values, as strings; got 3"),
        ({"steps": [0, 7]}, ValueError, r"`steps` must be from 0 to 6, because the scan has 7 steps; got 7"),
        ({"steps": -1}, ValueError, r"`steps` must be from 0 to 6.*got -1"),
        ({"steps": [1.5]}, TypeError, r"`steps` must be an integer or integers.*got \[1.5\]"),
        ({"rows": [3]}, ValueError, r"`rows` must be from 0 to 2, because the batch has 3 rows; got 3"),
        ({"loss": lambda results: results[1]}, ValueError, r"`loss` must return a floating scalar.*float32\[7,3,4\]"),
        ({"loss": 3}, TypeError, r"`loss` must be a function of the results; got 3"),
        ({"seq_length": 3}, TypeError, r"options of rnnscan.scan; got 'seq_length'. Did you mean 'seq_lengths'\?"),
        ({"mask": jnp.ones((3, 7), bool)}, ValueError, r"scan: `mask` must be bool\[7,N\]"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_wrong_choice_is_an_error(options, error, message):
    with pytest.raises(error, match=message):
        rs.trace(*example(), **options)


@pytest.mark.bad_input
def test_a_wrong_call_is_an_error():
    cell, params, carry, xs = example()
    net = rs.chain(rs.layer(cells.GRU(4)))
    with pytest.raises(TypeError, match=r"a net takes .*got 'reverse'"):
        rs.trace(net, net.init(jax.random.key(0), D), xs, reverse=True)
    with pytest.raises(TypeError, match="a net takes its carry by name"):
        rs.trace(net, params, carry, xs)
    with pytest.raises(ValueError, match=r"got `plain_function`, which runs none. For jax.lax.scan"):
        rs.trace(plain_function, xs)
    with pytest.raises(TypeError, match="must be a cell, a net, a Flax module or a function"):
        rs.trace(3, xs)
    with pytest.raises(TypeError, match=r"takes trace\(cell, params, carry, xs\); got 1 positional .*no 'carry'"):
        rs.trace(cells.GRU(4), params)
    with pytest.raises(TypeError, match=r"takes trace\(net, params, xs, carry=carry\); got 1 positional .*no 'xs'"):
        rs.trace(net, params)
    with pytest.raises(TypeError, match=r"takes trace\(cell, params, carry, xs\); got 4 positional"):
        rs.trace(cell, params, carry, xs, xs)
    with pytest.raises(ValueError, match="got a function that can be both"):
        rs.trace(lambda p, c, x: rs.scan(lambda _, c, u: (c + u, c), p, c, x), None, jnp.zeros(2), normal(1, 5, 3, 2))
    with pytest.raises(ValueError, match="scan without a batch axis"):
        rs.trace(cell, params, cell.initial_carry(xs[0, 0]), xs[:, 0], rows=[0])


def test_a_function_of_three_arguments_is_a_cell_or_runs_scans():
    def cell(params, carry, x):
        hidden = jnp.tanh(carry + x @ params)
        return hidden, hidden

    kernel, xs, library = normal(2, D, 4), normal(1, T, N, D), cells.GRU(4)
    assert rs.trace(cell, kernel, jnp.zeros((N, 4)), xs)["y"].shape == (T, N, 4)
    params = library.init(jax.random.key(0), D)
    assert rs.trace(partial(rs.scan, cell), kernel, jnp.zeros((N, 4)), xs)["y"].shape == (T, N, 4)
    function = rs.trace(lambda p, c, x: rs.scan(library, p, c, x), params, library.initial_carry(xs[0]), xs)
    np.testing.assert_allclose(function["y"], rs.trace(library, params, library.initial_carry(xs[0]), xs)["y"])


def test_more_bytes_than_the_machine_has_are_refused(monkeypatch):
    monkeypatch.setattr(selection, "machine_bytes", lambda: 1000)
    with pytest.raises(ValueError, match=r"got 1 values over 7 steps that need 1.64 KiB.*or at most 4 `steps`"):
        rs.trace(*example(), names="layer_0/gates")
    rs.trace(*example(), names="layer_0/gates", steps=range(4))


def test_no_steps_at_all():
    cell, params, carry, xs = example()
    trace = rs.trace(cell, params, carry, xs[:0], loss=lambda results: results[1].sum())
    assert trace["layer_0/gates"].shape == (0, N, 4 * H)
    assert trace.summary().values["y"].norm == 0


@pytest.mark.parametrize("options", [{}, {"steps": [1, 3]}], ids=["all steps", "chosen steps"])
def test_effects_of_a_cell_happen_once_a_step(options):
    seen = []

    def cell(params, carry, x):
        io_callback(lambda number: seen.append(int(number)), None, jax.lax.stop_gradient(x[0]), ordered=True)
        return carry + rs.name(x, "x"), None

    rs.trace(cell, None, jnp.zeros(1), jnp.arange(5.0)[:, None], **options)
    jax.effects_barrier()
    assert seen == [0, 1, 2, 3, 4]


def test_values_have_gradients_of_their_own():
    cell, params, carry, xs = example(cells.GRU(4))

    def of_trace(params):
        return (rs.trace(cell, params, carry, xs, names="y", steps=[2])["y"] ** 2).sum()

    def plain(params):
        return (rs.scan(cell, params, carry, xs)[1][2] ** 2).sum()

    for ours, theirs in zip(*(jax.tree.leaves(jax.grad(of)(params)) for of in (of_trace, plain)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("steps", "rows"), [(0, 2), (5, 0)])
def test_nothing_to_draw(steps, rows):
    cell, xs = rs.cells.GRU(4), jnp.ones((steps, rows, 3))
    trace = rs.trace(cell, cell.init(jax.random.key(0), 3), (jnp.zeros((rows, 4)),), xs)
    with pytest.raises(ValueError, match=r"draw: there must be a step and a row to draw; got `.*` of shape \(.*0.*\)"):
        trace.draw()


@pytest.mark.parametrize("rows", [[1], None])
def test_rows_on_a_mesh_with_explicit_axes(rows):
    def cell(params, carry, x):
        carry = jnp.tanh(carry + rs.name(x @ params, "product"))
        return carry, carry

    params, carry, xs = jnp.ones((3, 4)) / 3, jnp.ones((2, 4)), jnp.arange(36.0).reshape(6, 2, 3) / 36
    options = {"rows": rows, "loss": lambda results: (results[1] ** 2).sum()}
    expected = rs.trace(cell, params, carry, xs, **options)
    mesh = jax.make_mesh((1,), ("rows",), axis_types=(jax.sharding.AxisType.Explicit,))
    placed = (
        jax.device_put(leaf, jax.NamedSharding(mesh, spec))
        for leaf, spec in ((carry, jax.P("rows")), (xs, jax.P(None, "rows")))
    )
    with jax.set_mesh(mesh):
        found = rs.trace(cell, params, *placed, **options)
    for path, value in expected.items():
        np.testing.assert_allclose(found[path], value, rtol=1e-6)
        np.testing.assert_allclose(found.cotangents[path], expected.cotangents[path], rtol=1e-6)
