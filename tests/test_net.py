"""recurrent_net(): links, states, aliases, and what a gradient may flow through."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import rnnscan as rs
from rnnscan.insight import kept_bytes
from slow_reference import assert_close, loss
from tiers import variants


pytestmark = pytest.mark.usefixtures("x64")

LENGTH, BATCH, FEATURES, HIDDEN = 5, 3, 2, 4
LINKS = {"hidden_t_prev": "hidden_t", "state_t_prev": "state_t"}


def cell_net(params, input_t, scale_t, hidden_t_prev, state_t_prev):
    """Two inputs, two states, and one output that is not linked."""
    gates = rs.name(input_t @ params["kernel"] + hidden_t_prev @ params["recurrent_kernel"] + params["bias"], "gates")
    forget, update = jnp.split(gates, 2, axis=-1)
    state = jax.nn.sigmoid(forget) * state_t_prev + jnp.tanh(update) * scale_t
    return {"hidden_t": jnp.tanh(state), "state_t": state, "readout_t": jnp.sin(state) @ params["out"]}


def random_arguments(length=LENGTH, batch=BATCH):
    random = np.random.default_rng(0)
    normal = lambda *shape: jnp.asarray(random.normal(size=shape))  # noqa: E731
    params = {
        "kernel": normal(FEATURES, 2 * HIDDEN),
        "recurrent_kernel": normal(HIDDEN, 2 * HIDDEN) / 2,
        "bias": normal(2 * HIDDEN),
        "out": normal(HIDDEN, 2),
    }
    inputs = {"input_t": normal(length, batch, FEATURES), "scale_t": normal(length, batch, 1)}
    states = {"hidden_t_prev": normal(batch, HIDDEN), "state_t_prev": normal(batch, HIDDEN)}
    return params, inputs, states


def net(params, inputs, states, cell_net=cell_net, **options):
    return rs.recurrent_net(cell_net, params, inputs=inputs, initial_cell_inputs=states, links=LINKS, **options)


def looped(params, inputs, states, reverse=False):
    """What recurrent_net means, without padding: a loop, its results by name."""
    length = len(inputs["input_t"])
    outputs = {}
    for t in reversed(range(length)) if reverse else range(length):
        outputs[t] = cell_net(params, **{name: value[t] for name, value in inputs.items()}, **states)
        states = {state: outputs[t][output] for state, output in LINKS.items()}
    stacked = {name: jnp.stack([outputs[t][name] for t in range(length)]) for name in outputs[0]}
    results = {f"{name}_all": value for name, value in stacked.items()}
    return results | {f"{output}_last": states[state] for state, output in LINKS.items()}


def gradients(run, *arguments):
    return jax.grad(lambda *arguments: loss(run(*arguments)), argnums=(0, 1, 2))(*arguments)


def results_and_gradients(run, *arguments):
    """Of one program, for each of the arguments."""

    def loss_and_results(*arguments):
        results = run(*arguments)
        return loss(results), results

    wanted = tuple(range(len(arguments)))
    return jax.jit(jax.value_and_grad(loss_and_results, argnums=wanted, has_aux=True))(*arguments)


@pytest.mark.parametrize(
    "options",
    variants(
        [{}, {"reverse": True}, {"recompute": ("gates",)}, {"recompute": "all"}, {"memory": rs.Memory(segment=2)}],
        [{"reverse": True}, {"recompute": ("gates",)}],
    ),
    ids=str,
)
def test_equals_a_loop(options):
    given = random_arguments()
    run = functools.partial(net, **options)
    expected = functools.partial(looped, reverse=options.get("reverse", False))
    assert_close(results_and_gradients(run, *given), results_and_gradients(expected, *given))


def test_recompute_keeps_less():
    given = random_arguments()
    bytes_of = lambda recompute: kept_bytes(functools.partial(net, recompute=recompute), *given)  # noqa: E731
    gates = LENGTH * BATCH * 2 * HIDDEN * 8
    assert bytes_of(()) == bytes_of(("gates",)) + gates


def test_memory_none_is_plain_autodiff():
    given = random_arguments()
    plain = functools.partial(net, memory=None)

    def plain_scan(params, inputs, states):
        def step(states, x):
            outputs = cell_net(params, **x, **states)
            return {state: outputs[output] for state, output in LINKS.items()}, outputs

        return jax.lax.scan(step, states, inputs)

    assert kept_bytes(plain, *given) == kept_bytes(plain_scan, *given)
    assert kept_bytes(plain, *given) > kept_bytes(net, *given)
    assert_close(gradients(jax.jit(plain), *given), gradients(jax.jit(net), *given))


def test_finite_differences():
    given = random_arguments()
    run = jax.jit(lambda *given: loss(net(*given, recompute=("gates",))))
    check_grads(run, given, order=1, modes=["rev"], rtol=1e-6)


def test_a_state_of_one_axis_is_shared_and_its_gradient_is_the_sum_over_the_batch():
    params, inputs, states = random_arguments()
    shared = {state: value[0] for state, value in states.items()}
    repeated = {state: jnp.stack([value] * BATCH) for state, value in shared.items()}
    assert_close(net(params, inputs, shared), net(params, inputs, repeated))
    of_shared, of_repeated = (gradients(jax.jit(net), params, inputs, given)[2] for given in (shared, repeated))
    assert_close(of_shared, jax.tree.map(lambda leaf: leaf.sum(0), of_repeated))


def test_a_number_is_a_state():
    params, inputs, _ = random_arguments()
    results = rs.recurrent_net(
        lambda params, input_t, sum_t_prev: {"sum_t": sum_t_prev + input_t[:, 0]},
        params,
        inputs={"input_t": inputs["input_t"]},
        initial_cell_inputs={"sum_t_prev": 1.0},
        links={"sum_t_prev": "sum_t"},
    )
    np.testing.assert_allclose(results["sum_t_last"], 1 + inputs["input_t"][..., 0].sum(0), rtol=1e-12)


@pytest.mark.parametrize("offset", [0, 1, 2, LENGTH, -1, -2, -LENGTH - 1])
def test_aliases_are_the_states_from_an_offset_on(offset):
    params, inputs, states = random_arguments()
    results = net(params, inputs, states, aliases={"states": ("state_t_prev", offset)})
    whole = jnp.concatenate([states["state_t_prev"][None], results["state_t_all"]])
    assert_close(results["states"], whole[offset:])


def test_the_aliases_of_the_ends_are_all_and_last():
    params, inputs, states = random_arguments()
    aliases = {"all": ("hidden_t_prev", 1), "last": ("hidden_t_prev", -1)}
    results = net(params, inputs, states, aliases=aliases)
    assert_close(results["all"], results["hidden_t_all"])
    assert_close(results["last"], results["hidden_t_last"][None])


def test_aliases_of_a_reverse_run_have_the_initial_state_at_the_end():
    params, inputs, states = random_arguments()
    aliases = {"states": ("state_t_prev", 0), "last": ("state_t_prev", -1), "later": ("state_t_prev", 2)}
    results = net(params, inputs, states, aliases=aliases, reverse=True)
    whole = jnp.concatenate([results["state_t_all"], states["state_t_prev"][None]])
    assert_close(results["states"], whole)
    assert_close(results["last"], whole[:1])
    assert_close(results["later"], whole[:-2])


@pytest.mark.parametrize("reverse", variants([False, True], [True]))
@pytest.mark.parametrize("padding", variants(["zero", "hold", "drop"], ["hold"]))
def test_aliases_over_padding_are_the_true_states(padding, reverse):
    """The states after the first steps to run, each from a run of its own."""
    params, inputs, states = random_arguments()
    mask = jnp.array([[1, 0, 0], [0, 1, 0], [1, 1, 0], [0, 1, 0], [1, 0, 1]], bool)
    options = {"padding": padding, "reverse": reverse}
    results = net(params, inputs, states, mask=mask, aliases={"states": ("state_t_prev", 0)}, **options)
    expected = []
    for steps in range(LENGTH + 1):
        seen = slice(LENGTH - steps, LENGTH) if reverse else slice(0, steps)
        first = {name: value[seen] for name, value in inputs.items()}
        expected.append(net(params, first, states, mask=mask[seen], **options)["state_t_last"])
    assert_close(results["states"], jnp.stack(expected[::-1] if reverse else expected))


def test_lengths_hold_state_and_output():
    params, inputs, states = random_arguments()
    lengths = jnp.array([0, 3, LENGTH])
    results = net(params, inputs, states, seq_lengths=lengths)
    for row, length in enumerate([0, 3, LENGTH]):
        alone = net(
            params,
            {name: value[:length, row : row + 1] for name, value in inputs.items()},
            {name: value[row : row + 1] for name, value in states.items()},
        )
        assert_close(results["hidden_t_last"][row], alone["hidden_t_last"][0])
        assert_close(results["readout_t_all"][:length, row], alone["readout_t_all"][:, 0])
        held = alone["readout_t_all"][-1, 0] if length else jnp.zeros(2)
        assert_close(
            results["readout_t_all"][length:, row],
            jnp.stack([held] * (LENGTH - length)) if length < LENGTH else jnp.zeros((0, 2)),
        )


def test_before_the_first_valid_step_all_is_the_initial_state():
    """Caffe2's `_all` is the alias of offset 1: 6 steps of padding give the initial state 6 times, and its gradient."""

    def last_and_gradient(state):
        results = rs.recurrent_net(
            lambda params, input_t, sum_prev: {"sum": sum_prev + input_t, "free": input_t + 1},
            None,
            inputs={"input_t": jnp.ones((6, 2, 1))},
            initial_cell_inputs={"sum_prev": state},
            links={"sum_prev": "sum"},
            seq_lengths=jnp.array([0, 4]),
        )
        return results["sum_all"][:, 0].sum(), results

    gradient, results = jax.jit(jax.grad(last_and_gradient, has_aux=True))(jnp.array([[3.0], [5.0]]))
    np.testing.assert_array_equal(results["sum_all"][:, 0, 0], np.full(6, 3.0))
    np.testing.assert_array_equal(results["sum_all"][:, 1, 0], [6, 7, 8, 9, 9, 9])
    np.testing.assert_array_equal(results["free_all"][:, :, 0], [[0, 2]] * 6)  # As in scan: zero before any.
    np.testing.assert_array_equal(gradient, [[6.0], [0.0]])


MASK = jnp.array([[0, 0, 1], [1, 0, 0], [0, 0, 0], [1, 0, 1], [0, 0, 1]], bool)  # Gaps first, last and between.


def looped_with_holding(params, inputs, states, reverse):
    """What padding="hold" means: at a padded step a row's states and outputs stay as they are."""
    outputs = None
    results = {}
    order = range(LENGTH)
    for t in reversed(order) if reverse else order:
        new = cell_net(params, **{name: value[t] for name, value in inputs.items()}, **states)
        before = {LINKS[state]: value for state, value in states.items()} | {"readout_t": jnp.zeros((BATCH, 2))}
        outputs = before if outputs is None else outputs
        outputs = {name: jnp.where(MASK[t][:, None], new[name], outputs[name]) for name in new}
        states = {state: outputs[output] for state, output in LINKS.items()}
        results[t] = outputs
    stacked = {f"{name}_all": jnp.stack([results[t][name] for t in order]) for name in outputs}
    return stacked | {f"{output}_last": states[state] for state, output in LINKS.items()}


@pytest.mark.parametrize(
    ("reverse", "shared"), variants({"forward": (False, True), "reverse": (True, False)}, ["reverse"])
)
def test_a_mask_with_gaps_holds_as_a_loop_does(reverse, shared):
    params, inputs, states = random_arguments()
    states = {state: value[0] for state, value in states.items()} if shared else states

    def expected(params, inputs, states):
        whole = {state: jnp.broadcast_to(value, (BATCH, HIDDEN)) for state, value in states.items()}
        return looped_with_holding(params, inputs, whole, reverse)

    run = functools.partial(net, mask=MASK, reverse=reverse, aliases={"after": ("hidden_t_prev", 1)})
    results = run(params, inputs, states)
    assert_close(results.pop("after"), results["hidden_t_all"])
    assert_close(results, jax.jit(expected)(params, inputs, states))
    run = jax.jit(functools.partial(net, mask=MASK, reverse=reverse))
    assert_close(gradients(run, params, inputs, states), gradients(jax.jit(expected), params, inputs, states))


RESET = jnp.array([[0, 1, 0], [0, 0, 1], [1, 0, 0], [0, 1, 1], [1, 0, 0]], bool)


def looped_with_resets(params, inputs, states, episode):
    results = {}
    for t in range(LENGTH):
        states = {state: jnp.where(RESET[t][:, None], episode[state], states[state]) for state in states}
        results[t] = cell_net(params, **{name: value[t] for name, value in inputs.items()}, **states)
        states = {state: results[t][output] for state, output in LINKS.items()}
    stacked = {f"{name}_all": jnp.stack([results[t][name] for t in range(LENGTH)]) for name in results[0]}
    return stacked | {f"{output}_last": states[state] for state, output in LINKS.items()}


def test_reset_goes_back_to_reset_to_and_not_to_the_initial_state():
    params, inputs, states = random_arguments()
    episode = {
        "hidden_t_prev": jnp.linspace(-1, 1, HIDDEN),  # shared by the rows
        "state_t_prev": jnp.linspace(2, 1, BATCH * HIDDEN).reshape(BATCH, HIDDEN),
    }

    def ours(params, inputs, states, episode):
        return net(params, inputs, states, reset=RESET, reset_to=episode)

    given = params, inputs, states, episode
    assert_close(results_and_gradients(ours, *given), results_and_gradients(looped_with_resets, *given))


@pytest.mark.parametrize("seed", variants(range(2), [0]))
def test_windows_with_the_states_handed_on_equal_the_whole(seed):
    """The issue's figure for a GRU was a difference of 0.34: a reset went back to the state that was handed on."""
    random = np.random.default_rng(seed)
    params, inputs, states = random_arguments()
    reset, valid = (jnp.asarray(random.random((LENGTH, BATCH)) < share) for share in (0.4, 0.7))
    episode = {state: jnp.asarray(random.normal(size=HIDDEN)) for state in states}
    run = functools.partial(net, reset_to=episode)
    whole = run(params, inputs, states, reset=reset, mask=valid)
    begin, windows = 0, []
    while begin < LENGTH:
        window = slice(begin, begin + int(random.integers(1, 4)))
        piece = {name: value[window] for name, value in inputs.items()}
        windows.append(run(params, piece, states, reset=reset[window], mask=valid[window]))
        states = {state: windows[-1][f"{output}_last"] for state, output in LINKS.items()}
        begin = window.stop
    for output in LINKS.values():
        assert_close(jnp.concatenate([window[f"{output}_all"] for window in windows]), whole[f"{output}_all"])
        assert_close(windows[-1][f"{output}_last"], whole[f"{output}_last"])


def test_the_timestep_counts_from_zero():
    params, inputs, states = random_arguments()

    def counting(params, step, **blobs):
        return cell_net(params, **blobs) | {"step_t": step}

    results = net(params, inputs, states, cell_net=counting, timestep="step", reverse=True)
    assert results["step_t_all"].dtype == jnp.int32
    np.testing.assert_array_equal(results["step_t_all"], np.arange(LENGTH))


def test_the_scope_goes_before_the_names_of_the_results():
    given = random_arguments()
    plain = net(*given, aliases={"states": ("state_t_prev", 0)})
    scoped = net(*given, aliases={"states": ("state_t_prev", 0)}, scope="encoder", outputs_with_grads=("states",))
    assert_close(scoped, {f"encoder/{name}": value for name, value in plain.items()})


def test_gradients_flow_through_the_named_results_only():
    params, inputs, states = random_arguments()

    def gradient(of, **options):
        def chosen(params):
            results = net(params, inputs, states, **options)
            return loss({name: results[name] for name in of})

        return jax.jit(jax.grad(chosen))(params)

    everything = ("hidden_t_all", "hidden_t_last", "readout_t_all", "state_t_all", "state_t_last")
    named = ("hidden_t_last", "readout_t_all")
    assert_close(gradient(everything, outputs_with_grads=named), gradient(named))
    assert_close(gradient(everything, outputs_with_grads=()), jax.tree.map(jnp.zeros_like, params))
    # Caffe2's positions: all and last of each link in turn, then other outputs.
    assert list(net(params, inputs, states)) == [
        "hidden_t_all", "hidden_t_last", "state_t_all", "state_t_last", "readout_t_all",
    ]  # fmt: skip
    assert_close(gradient(everything, outputs_with_grads=(1, 4)), gradient(named))


def test_forward_only_gives_the_same_values_and_no_gradient():
    given = random_arguments()
    assert_close(jax.jit(functools.partial(net, forward_only=True))(*given), net(*given))
    with pytest.raises(TypeError, match="`forward_only=True` must not be differentiated"):
        jax.eval_shape(lambda *given: gradients(functools.partial(net, forward_only=True), *given), *given)
    with pytest.raises(TypeError, match="forward_only=False"):
        jax.grad(jax.jit(lambda params: loss(net(params, *given[1:], forward_only=True))))(given[0])


def test_a_forward_only_net_may_stand_beside_what_is_differentiated():
    params, inputs, states = random_arguments()
    stopped = jax.grad(lambda scale: scale * loss(net(params, inputs, states, forward_only=True)))(2.0)
    np.testing.assert_allclose(stopped, loss(net(params, inputs, states)), rtol=1e-12)


def test_no_steps():
    params, inputs, states = random_arguments(length=0)
    results = net(params, inputs, states, aliases={"states": ("state_t_prev", 0), "after": ("state_t_prev", 1)})
    shapes = {name: value.shape for name, value in results.items()}
    assert shapes["readout_t_all"] == (0, BATCH, 2)
    assert shapes["after"] == (0, BATCH, HIDDEN)
    assert_close(results["state_t_last"], states["state_t_prev"])
    assert_close(results["states"], states["state_t_prev"][None])


@pytest.mark.parametrize(("length", "batch"), [(1, 3), (5, 1), (1, 1)])
def test_one_step_and_one_row(length, batch):
    given = random_arguments(length, batch)
    assert_close(net(*given), looped(*given))


def test_states_of_integers_and_more_axes():
    def counting(params, input_t, count_prev, grid_prev):
        return {"count": count_prev + 1, "grid": grid_prev + input_t[:, :, None]}

    results = rs.recurrent_net(
        counting,
        None,
        inputs={"input_t": jnp.ones((4, 3, 2))},
        initial_cell_inputs={"count_prev": jnp.zeros((3, 1), int), "grid_prev": jnp.zeros((3, 2, 5))},
        links={"count_prev": "count", "grid_prev": "grid"},
    )
    np.testing.assert_array_equal(results["count_last"], np.full((3, 1), 4))
    np.testing.assert_array_equal(results["grid_last"], np.full((3, 2, 5), 4.0))
