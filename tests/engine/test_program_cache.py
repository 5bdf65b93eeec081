"""Outside `jit` a call runs the program that an earlier call with the same cell, options and shapes compiled."""

import gc
import weakref
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import rnnscan as rs
from rnnscan.engine.cache import program_cache
from rnnscan.engine.loops import lowering
from slow_reference import assert_close
from tiers import variants


WEIGHT, XS, CARRY = (
    jnp.linspace(-1.0, 1.0, 9).reshape(3, 3),
    jnp.linspace(0.0, 1.0, 24).reshape(4, 2, 3),
    jnp.ones((2, 3)),
)


class Counter:
    """How often a cell was traced."""

    def __init__(self):
        self.traces = 0

    def count(self, function):
        def counted(params, carry, x):
            self.traces += 1
            return function(params, carry, x)

        return counted


def recurrence(weight, carry, x):
    hidden = jnp.tanh(carry @ weight + x)
    return hidden, hidden


def total(cell, **options):
    return lambda weight: rs.scan(cell, weight, CARRY, XS, **options)[1].sum()


@pytest.mark.core("kept programs")
@pytest.mark.parametrize(
    "transform", [lambda f: f, jax.grad, jax.value_and_grad], ids=["call", "grad", "value_and_grad"]
)
def test_a_second_call_traces_nothing(transform):
    counter = Counter()
    run = transform(total(counter.count(recurrence)))
    first = run(WEIGHT)
    traces = counter.traces
    assert_close(run(2 * WEIGHT), transform(total(recurrence))(2 * WEIGHT))
    assert_close(run(WEIGHT), first)
    assert counter.traces == traces


def test_cells_of_the_library_share_programs_by_value():
    traced = []

    @dataclass(frozen=True)
    class Counted:
        cell: rs.cells.GRU

        def __call__(self, params, carry, x):
            traced.append(self.cell.hidden_size)
            return self.cell(params, carry, x)

    def run(size):
        cell = Counted(rs.cells.GRU(size))
        params = cell.cell.init(jax.random.key(0), input_size=3)
        return rs.scan(cell, params, cell.cell.initial_carry(XS[0]), XS)[1]

    first = run(5)
    once = traced.count(5)
    assert_close(run(5), first, tolerance=0)
    assert traced.count(5) == once > 0
    assert run(6).shape == (4, 2, 6)


@pytest.mark.parametrize(
    "options", [{"reverse": True}, {"memory": None}, {"truncate": 2}, {"engine": "lax"}, {"padding": "hold"}]
)
def test_another_option_is_another_program(options):
    lengths = {"seq_lengths": jnp.array([2, 4])}
    run = lambda weight, **options: rs.scan(recurrence, weight, CARRY, XS, **lengths, **options)  # noqa: E731
    run(WEIGHT)
    assert_close(run(WEIGHT, **options), jax.jit(lambda weight: run(weight, **options))(WEIGHT))


@pytest.mark.bad_input
@pytest.mark.parametrize(("good", "bad"), [({"truncate": 2}, {"truncate": 2.0}), ({"truncate": 1}, {"truncate": True})])
def test_a_kept_program_does_not_admit_an_option_of_another_type(good, bad):
    rs.scan(recurrence, WEIGHT, CARRY, XS, **good)
    with pytest.raises(ValueError, match="`truncate` must be a number of steps"):
        rs.scan(recurrence, WEIGHT, CARRY, XS, **bad)


def test_arrays_that_a_cell_closes_over_may_change():
    held = [jnp.ones(())]

    def cell(weight, carry, x):
        return recurrence(weight * held[0], carry, x)

    rs.scan(cell, WEIGHT, CARRY, XS)
    held[0] = jnp.zeros(())
    assert_close(rs.scan(cell, WEIGHT, CARRY, XS)[1], jnp.tanh(XS))


SCALE = 1.0


def scaled_by_the_module(weight, carry, x):
    return recurrence(_scaled(weight), carry, x)


def _scaled(weight):
    return weight * SCALE


@pytest.mark.parametrize("values", [(1.0, 0.0), (np.float32(1), np.float32(0)), (True, False)], ids=str)
def test_numbers_that_a_cell_closes_over_may_change(values):
    """A number is read at each call, as an array is: `lax.scan` keeps the first one."""
    scale, array = values[0], np.full(3, 0.5, np.float32)

    def cell(weight, carry, x):
        return recurrence(weight * scale, carry, x * array)

    for scale, factor in [(scale, factor) for scale in values * 2 for factor in (0.5, 2.0)]:
        array[:] = factor
        expected = recurrence(WEIGHT * scale, CARRY, XS[0] * factor)[1]
        assert_close(rs.scan(cell, WEIGHT, CARRY, XS)[1][0], expected, tolerance=1e-6)


def test_a_numpy_array_that_changes_in_place_warns_once_if_jax_keeps_a_copy():
    arrays = [np.full(3, 0.5), np.full(3, 0.5, np.float32)]

    def cell_over(array):
        return lambda weight, carry, x: recurrence(weight, carry, x * array)

    cells = [cell_over(array) for array in arrays]
    run = lambda cell: rs.scan(cell, WEIGHT, CARRY, XS)  # noqa: E731
    for cell in cells * 2:
        run(cell)
    for array in arrays:
        array[:] = 2.0
    run(cells[1])
    message = r"^scan: <lambda> reads a NumPy array, float64\[3\], that changed in place .* Pass the array in `params`"
    with pytest.warns(rs.ChangedArrayWarning, match=message) as warned:
        run(cells[0])
    assert len(warned) == 1
    assert warned[0].filename == __file__
    arrays[0][:] = 3.0
    run(cells[0])
    new = cell_over(np.full(3, 3.0))
    assert_close(run(new), run(lambda weight, carry, x: recurrence(weight, carry, x * 3.0)), tolerance=1e-6)


READS = {
    "an item": lambda array: array[0],
    "a Python number": lambda array: float(array[0]),
    "a branch": lambda array: 2.0 if array[0] > 1 else 0.5,
    "an item, and all of it": lambda array: array[0] * jnp.asarray(array.astype(np.float32))[0],
    "a new array": lambda array: (2 * array)[0],
}


@pytest.mark.filterwarnings("ignore::rnnscan.ChangedArrayWarning")  # Of float64 it cannot tell what is read.
@pytest.mark.parametrize(
    ("name", "dtype"),
    variants(
        {f"{name}, {dtype.__name__}": (name, dtype) for name in READS for dtype in (np.float64, np.float32, np.int32)},
        ["an item, float32", "an item, float64", "a branch, int32"],
    ),
)
def test_what_a_cell_reads_of_a_numpy_array_may_change(name, dtype):
    """It is a constant of a kept program: later calls gave the first call's values."""
    array, read = np.ones(3, dtype), READS[name]

    def cell(weight, carry, x):
        return recurrence(weight, carry, x * read(array))

    for value in (1, 3, 1):
        array[:] = value
        expected = recurrence(WEIGHT, CARRY, XS[0] * np.float32(read(array)))[1]
        assert_close(rs.scan(cell, WEIGHT, CARRY, XS)[1][0], expected, tolerance=1e-6)
    array = np.full(4, 2, dtype)
    expected = recurrence(WEIGHT, CARRY, XS[0] * np.float32(read(array)))[1]
    assert_close(rs.scan(cell, WEIGHT, CARRY, XS)[1][0], expected, tolerance=1e-6)


def test_equal_contents_of_an_array_share_a_program_and_a_trace_may_count_itself_in_one():
    array, counts, counter = np.ones(3, np.float32), np.zeros(1, int), Counter()

    def count(weight, carry, x):
        counts[0] += 1
        return recurrence(weight, carry, x)

    cells = [counter.count(lambda weight, carry, x: recurrence(weight, carry, x * array[0])), count]
    traces = []
    for value in (1, 1, 3, 1, 3):
        array[:] = value
        for cell in cells:
            rs.scan(cell, WEIGHT, CARRY, XS)
        traces.append((counter.traces, int(counts[0])))
    assert traces[0] == traces[1]
    assert traces[1][0] < traces[2][0]
    assert traces[1][1] == traces[2][1]
    assert traces[2] == traces[3] == traces[4]


def test_what_loops_with_conditions_read_may_change():
    scale, most, array = 1.0, 2.5, np.ones(3, np.float32)

    def step(params, carry, x=0.0):
        return carry + scale * array[0] + x

    def cell(params, carry, x):
        return step(params, carry, x), carry

    def runs(params, carry):
        return carry[0] < most

    def stops(params, carry, y):
        return carry[0] >= most

    for scale, most, array[:] in ((1.0, 2.5, 1), (3.0, 2.5, 1), (3.0, 20.0, 1), (3.0, 20.0, 2)):
        steps = int(np.ceil(most / (scale * array[0])))
        expected = steps * scale * array[0] * jnp.ones(3)
        carry, _ = rs.while_net(runs, step, jnp.zeros(3), max_steps=9)
        assert_close(carry, expected)
        assert_close(rs.scan_until(cell, None, jnp.zeros(3), jnp.zeros((9, 3)), stops, max_steps=9)[0], expected)


def test_a_number_of_the_module_may_change(monkeypatch):
    counter = Counter()
    counted = counter.count(recurrence)
    for scale in (1.0, 0.0, 1.0):
        monkeypatch.setitem(globals(), "SCALE", scale)
        expected = lax.scan(lambda carry, x, scale=scale: recurrence(WEIGHT * scale, carry, x), CARRY, XS)[1]
        assert_close(rs.scan(scaled_by_the_module, WEIGHT, CARRY, XS)[1], expected, tolerance=1e-6)
    rs.scan(counted, WEIGHT, CARRY, XS)
    traces = counter.traces
    monkeypatch.setitem(globals(), "SCALE", 3.0)  # This cell does not read it.
    rs.scan(counted, WEIGHT, CARRY, XS)
    assert counter.traces == traces


def test_a_number_that_a_function_over_named_values_closes_over_may_change():
    scale = 1.0

    def cell_net(params, input_t, hidden_t_prev):
        return {"hidden_t": jnp.tanh(scale * input_t + hidden_t_prev)}

    def run():
        states, links = {"hidden_t_prev": CARRY}, {"hidden_t_prev": "hidden_t"}
        return rs.recurrent_net(cell_net, {}, inputs={"input_t": XS}, initial_cell_inputs=states, links=links)

    first = run()["hidden_t_all"][0]
    scale = 0.0
    assert_close(run()["hidden_t_all"][0], jnp.tanh(CARRY), tolerance=1e-6)
    assert_close(first, jnp.tanh(XS[0] + CARRY), tolerance=1e-6)


def test_a_cell_that_counts_its_traces_is_traced_once():
    traces, nan = 0, float("nan")

    def cell(weight, carry, x):
        nonlocal traces
        traces += 1
        return recurrence(weight, carry, jnp.where(x == nan, 0.0, x))

    rs.scan(cell, WEIGHT, CARRY, XS)
    before = traces
    rs.scan(cell, WEIGHT, CARRY, XS)
    assert traces == before


def programs():
    """How many programs of equations were compiled."""
    return lowering._jitted.cache_info().misses


def test_loops_and_segments_that_close_over_arrays_are_compiled_once():
    def run(most):
        def step(params, carry, x=0.0):
            return carry + most + x

        for segment in (None, 3):
            memory = rs.Memory(segment=segment)
            rs.while_net(lambda params, carry: carry[0] < most, step, jnp.zeros(3), max_steps=9, memory=memory)
            rs.scan(lambda p, carry, x: (step(p, carry, x),) * 2, None, jnp.zeros(3), XS[:, 0], memory=memory)
        return programs()

    before, *after = (run(jnp.asarray(most)) for most in (1.5, 2.5, 3.5))
    assert after == [before] * 2


def test_a_mutable_callable_is_compiled_once():
    @dataclass(eq=False)
    class Scaled:
        scale: float

        def __call__(self, weight, carry, x):
            return recurrence(self.scale * weight, carry, x)

    def run(scale):
        assert_close(rs.scan(Scaled(scale), WEIGHT, CARRY, XS)[1], total_of(scale))
        return programs()

    total_of = lambda scale: rs.scan(recurrence, scale * WEIGHT, CARRY, XS)[1]  # noqa: E731
    before, *after = (run(scale) for scale in (0.5, 0.5))
    assert after == [before]


@pytest.mark.parametrize("transform", [lambda f: f, jax.value_and_grad], ids=["call", "value_and_grad"])
def test_a_cell_that_closes_over_arrays_is_compiled_once(transform):
    held = {"scale": jnp.ones(()), "shift": 0.0}

    def cell(weight, carry, x):
        return recurrence(weight * held["scale"] + held["shift"], carry, jax.nn.relu(x))

    run = lambda: transform(total(cell))(WEIGHT)  # noqa: E731
    expected = lambda: transform(  # noqa: E731
        lambda weight: total(recurrence)(weight * held["scale"] + held["shift"])
    )(WEIGHT)
    compiled = []
    for scale in (1.0, 0.5, 2.0):
        held["scale"] = jnp.asarray(scale)
        assert_close(run(), expected(), tolerance=1e-6)
        compiled.append(programs())
    assert compiled[0] == compiled[2]
    held["shift"] = 0.25
    assert_close(run(), expected(), tolerance=1e-6)
    held["scale"] = jnp.linspace(0.0, 1.0, 3)
    assert_close(run(), expected(), tolerance=1e-6)


def test_a_derivative_rule_of_a_cell_may_change():
    held = {"slope": 1.0, "weight": WEIGHT}

    @jax.custom_jvp
    def identity(x):
        return x

    identity.defjvp(lambda primals, tangents: (primals[0], held["slope"] * tangents[0]))

    def cell(_, carry, x):
        return recurrence(held["weight"], identity(carry), x)

    gradient = jax.grad(lambda carry: rs.scan(cell, None, carry, XS)[1].sum())
    plain = jax.grad(lambda carry: rs.scan(recurrence, WEIGHT, carry, XS)[1].sum())(CARRY)
    assert_close(gradient(CARRY), plain, tolerance=1e-6)
    gradient(CARRY)
    held["slope"] = 0.0
    assert_close(gradient(CARRY), jnp.zeros_like(CARRY))


def rule_of_each_tangent(slope):
    function = jax.custom_jvp(jnp.sin)
    function.defjvps(lambda tangent, result, x: slope * tangent)
    return function


def rule_of_a_function_with_a_rule(slope):
    function = jax.custom_jvp(jax.nn.relu)
    function.defjvps(lambda tangent, result, x: slope * tangent)
    return function


def backward_rule(slope):
    function = jax.custom_vjp(jnp.sin)
    function.defvjp(lambda x: (jnp.sin(x), None), lambda _, cotangent: (slope * cotangent,))
    return function


def gradient_of_its_own(slope):
    return jax.custom_gradient(lambda x: (jnp.sin(x), lambda cotangent: slope * cotangent))


def root(slope):
    of_line = partial(lax.custom_root, initial_guess=0.5, solve=lambda f, x: x, tangent_solve=lambda g, y: slope * y)
    return lambda x: of_line(lambda y: y - x.mean())


@pytest.mark.parametrize(
    "make", [rule_of_each_tangent, rule_of_a_function_with_a_rule, backward_rule, gradient_of_its_own, root]
)
def test_a_function_of_jax_may_have_a_rule_of_the_users(make):
    def gradient(slope, **options):
        function = make(slope)

        def cell(weight, carry, x):
            carry = 0.5 * carry + function(weight * carry + x)
            return carry, carry

        return jax.grad(lambda weight: (rs.scan(cell, weight, jnp.ones(3), XS[:, 0], **options)[1] ** 2).sum())

    steps = []  # A step that lives is found by its key.
    for slope in (1.0, 2.0):
        run = gradient(slope, memory=rs.Memory(segment=2))
        steps.append(jax.make_jaxpr(run)(0.5))
        assert_close(run(0.5), gradient(slope, memory=None)(0.5), tolerance=1e-5)


def test_an_array_that_a_cell_makes_while_it_is_traced_may_change():
    held = np.eye(3, dtype=np.float32)

    def cell(_, carry, x):
        return recurrence(jnp.asarray(held), carry, x)

    for scale in (1.0, 2.0, 3.0):
        held[:] = scale * np.eye(3)
        assert_close(rs.scan(cell, None, CARRY, XS)[1], rs.scan(recurrence, scale * jnp.eye(3), CARRY, XS)[1])


def test_a_cell_keeps_a_bounded_number_of_programs(monkeypatch):
    monkeypatch.setattr(program_cache, "_PROGRAMS", 2)
    counter = Counter()
    cell = counter.count(recurrence)

    def traces(length):
        before = counter.traces
        rs.scan(cell, WEIGHT, CARRY, XS[:length])
        return counter.traces - before

    assert all(traces(length) for length in (1, 2, 3))
    assert [traces(3), traces(2)] == [0, 0]
    assert traces(1)
    assert len(program_cache._of_functions[cell]) == 2


def test_what_a_cell_closes_over_gets_its_gradient():
    def of_closed_over(weight):
        return rs.scan(lambda _, carry, x: recurrence(weight, carry, x), None, CARRY, XS)[1].sum()

    assert_close(jax.grad(of_closed_over)(WEIGHT), jax.grad(total(recurrence))(WEIGHT), tolerance=1e-6)


def test_a_second_recurrent_net_traces_nothing():
    counter = Counter()

    def cell_net(weight, input_t, hidden_t_prev):
        return {"hidden_t": recurrence(weight, hidden_t_prev, input_t)[0]}

    counted = counter.count(lambda weight, carry, x: cell_net(weight, x, carry))

    def counted_net(weight, input_t, hidden_t_prev):
        return {"hidden_t": counted(weight, hidden_t_prev, input_t)["hidden_t"]}

    def run(weight):
        return rs.recurrent_net(
            counted_net,
            weight,
            inputs={"input_t": XS},
            initial_cell_inputs={"hidden_t_prev": CARRY},
            links={"hidden_t_prev": "hidden_t"},
        )["hidden_t_all"]

    first = run(WEIGHT)
    traces = counter.traces
    assert_close(run(WEIGHT), first)
    assert counter.traces - traces == 1, "the check of its outputs alone"


def test_a_cell_may_hold_itself():
    @dataclass
    class Cell:
        owner: object = None

        def __call__(self, weight, carry, x):
            return recurrence(weight, carry, x)

    cell = Cell()
    cell.owner = cell
    assert_close(rs.scan(cell, WEIGHT, CARRY, XS), rs.scan(recurrence, WEIGHT, CARRY, XS))


def test_a_mutable_callable_is_traced_at_every_call():
    @dataclass(eq=False)
    class Scaled:
        scale: float

        def __call__(self, weight, carry, x):
            return recurrence(self.scale * weight, carry, x)

    cell = Scaled(1.0)
    rs.scan(cell, WEIGHT, CARRY, XS)
    cell.scale = 0.0
    assert_close(rs.scan(cell, WEIGHT, CARRY, XS)[1], jnp.tanh(XS))


def test_a_cell_may_ask_for_the_value_of_a_parameter():
    def cell(params, carry, x):
        weight, passes = params
        for _ in range(int(passes)):
            carry = carry @ weight
        return recurrence(weight, carry, x)

    run = lambda: rs.scan(cell, (WEIGHT, np.array(2)), CARRY, XS)  # noqa: E731
    assert_close(run(), run(), tolerance=0)
    expected = rs.scan(lambda weight, carry, x: recurrence(weight, carry @ weight @ weight, x), WEIGHT, CARRY, XS)
    assert_close(run(), expected, tolerance=1e-6)


@pytest.mark.core("kept programs")
def test_a_program_does_not_keep_its_function_alive():
    def cell(weight, carry, x):
        return recurrence(weight, carry, x)

    rs.scan(cell, WEIGHT, CARRY, XS)
    alive = weakref.ref(cell)
    del cell
    gc.collect()
    assert alive() is None


@pytest.mark.core("kept programs")
def test_nor_does_that_of_a_function_that_closes_over_arrays():
    weight = jnp.array(WEIGHT)

    def cell(_, carry, x):
        return recurrence(weight, carry, x)

    for _ in range(2):
        rs.scan(cell, None, CARRY, XS)
    alive = weakref.ref(cell)
    del cell
    gc.collect()
    assert alive() is None


def test_a_warning_is_given_at_every_call():
    for _ in range(2):
        with pytest.warns(UserWarning, match="leaves no loop"):
            rs.scan(recurrence, WEIGHT, CARRY, XS, unroll=4, memory=rs.Memory(recompute="all"))


def test_a_method_of_an_object_that_changes_is_not_cached():
    class Decay:
        rate = 2.0

        def __call__(self, params, carry, x):
            return self.rate * carry + x, None

    decay = Decay()
    for decay.rate in (2.0, 3.0):
        for cell in (decay.__call__, decay):
            carry, _ = rs.scan(cell, None, jnp.float32(1), jnp.ones(3))
            assert carry == lax.scan(lambda carry, x: decay(None, carry, x), jnp.float32(1), jnp.ones(3))[0]


def test_a_cell_whose_base_declares_a_variable_of_the_class():
    """`blocks` of `cells.MLSTM` is a `ClassVar` without a value, which is no field."""
    cell, xs = rs.cells.MLSTM(8, heads=2), jnp.ones((3, 2, 4))
    params = cell.init(jax.random.key(0), input_size=4)
    eager = rs.scan(cell, params, cell.initial_carry(xs[0]), xs)[1]
    jitted = jax.jit(lambda xs: rs.scan(cell, params, cell.initial_carry(xs[0]), xs)[1])(xs)
    np.testing.assert_allclose(eager, jitted, rtol=1e-6)
