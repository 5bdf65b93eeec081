"""What newcomers type wrong: each mistake is an error that says what must be, what was given, and how to mend it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs


KEY = jax.random.key(0)
CELL = rs.cells.LSTM(8)
XS = jnp.ones((5, 2, 3))
PARAMS = CELL.init(KEY, 3)
CARRY = CELL.initial_carry(XS[0])
NET = rs.layer(CELL)
NETS = {"layer": NET, "bidirectional": rs.bidirectional(CELL), "chain": rs.chain(NET, rs.layer(rs.cells.GRU(4)))}
CELLS = {
    "LSTM": CELL,
    "stack": rs.stack(CELL, rs.cells.GRU(4)),
    "windowed": rs.windowed(CELL, 2),
    "adaptive_computation": rs.adaptive_computation(CELL, max_ponder=3),
    "dropout": rs.dropout(CELL, 0.5),
    "mLSTM": rs.cells.MLSTM(8, heads=2),
    "ConvLSTM": rs.cells.ConvLSTM(4, kernel_size=(3,)),
}


class Tensor:
    """An array of another library: JAX converts it, and does not know its dtype."""

    def __init__(self, array):
        self._array = np.asarray(array)
        self.shape, self.ndim, self.dtype = self._array.shape, self._array.ndim, object()

    def __array__(self, dtype=None, copy=None):
        return self._array


@pytest.mark.parametrize("arguments", [(PARAMS, XS), (CARRY, XS), (0.0, XS)], ids=["params", "carry", "number"])
def test_the_order_of_lax_scan(arguments):
    with pytest.raises(ValueError, match=r"The order is \(cell, params, carry, xs\): for jax\.lax\.scan\(f, init,"):
        rs.scan(CELL, *arguments)


def test_a_step_of_lax_scan_runs_as_the_error_says():
    def add(carry, x):
        return carry + x.sum(), carry

    carry, ys = rs.scan(lambda _, carry, x: add(carry, x), None, 0.0, XS)
    expected, expected_ys = jax.lax.scan(add, 0.0, XS)
    assert carry == expected
    assert np.array_equal(ys, expected_ys)


@pytest.mark.parametrize(
    ("carry", "shown"),
    [
        (CARRY, r"\(float32\[2,8\], float32\[2,8\]\)"),
        (CARRY[0], r"float32\[2,8\]"),
        ([CARRY, (jnp.zeros((2, 4)),)], r"\[\(float32\[2,8\], float32\[2,8\]\), \(float32\[2,4\],\)\]"),
    ],
    ids=["of one net", "an array", "a list"],
)
def test_the_carry_of_a_chain_is_shown(carry, shown):
    expected = r"\(\(float32\[2,8\], float32\[2,8\]\), \(float32\[2,4\],\)\)"
    message = (
        rf"^chain: the carry must be a tuple with one carry for each of its 2 nets, in their order: {expected}; "
        rf"got {shown}\. Start from net\.initial_carry\(xs\)\."
    )
    net = NETS["chain"]
    with pytest.raises(TypeError, match=message):
        net(net.init(KEY, 3), XS, carry=carry)


def wrong_carries():
    """For each net, a carry that fits only its structure, and the part that rejects it."""
    lstm, gru = (rs.layer(cell) for cell in (rs.cells.LSTM(4), rs.cells.GRU(4)))
    of_lstms = rs.chain(NET, lstm)
    large, small, hidden = ((jnp.zeros((2, size)),) * parts for size, parts in ((8, 2), (4, 2), (4, 1)))
    return {
        "exchanged": (of_lstms, (small, large), "net_0"),
        "of another cell": (rs.chain(lstm, gru), (small, small), "net_1"),
        "of a chain within": (rs.chain(gru, of_lstms), (hidden, (large, large)), "net_1.net_1"),
        "of a stack within": (rs.chain(gru, rs.layer(rs.stack(CELL, CELL))), (hidden, (large, small)), "net_1.layer_1"),
        "of a direction": (NETS["bidirectional"], (large, small), "backward"),
    }


@pytest.mark.parametrize("kind", wrong_carries())
def test_an_error_within_a_net_tells_the_part(kind):
    net, carry, part = wrong_carries()[kind]
    params = net.init(KEY, 3)
    for run in (net, jax.jit(net), lambda *arguments, **options: rs.explain(net, *arguments, **options)):
        with pytest.raises((TypeError, ValueError), match=r"the carry must be|in the carry must be") as caught:
            run(params, XS, carry=carry)
        told = [note for note in caught.value.__notes__ if note.startswith("rnnscan: ")]
        assert [note.partition(",")[0] for note in told] == [f"rnnscan: the error is in {part}"]


@pytest.mark.parametrize("kind", ["chain", "bidirectional"])
@pytest.mark.parametrize("argument", ["carry", "reset_to"])
def test_a_string_in_a_carry_of_nets(kind, argument):
    net = NETS[kind]
    first, second = net.initial_carry(XS)
    wrong = (first, (*second[:-1], "zeros"))
    options = {argument: wrong} | ({"reset": jnp.zeros((5, 2), bool)} if argument == "reset_to" else {})
    message = rf"^{kind}: every leaf must be an array or a number; got str at `{argument}\[1\]\[{len(second) - 1}\]`\."
    with pytest.raises(TypeError, match=message):
        net(net.init(KEY, 3), XS, **options)


@pytest.mark.parametrize("kind", NETS)
@pytest.mark.parametrize(
    ("wrong", "nearest"),
    [("initial_carry", "carry"), ("hx", "carry"), ("lengths", "seq_lengths"), ("rest", "reset"), ("rngs", "key")],
)
def test_an_option_that_nets_do_not_have(kind, wrong, nearest):
    net = NETS[kind]
    params = net.init(KEY, 3)
    message = rf"^{kind}: the options of a net's call must be .*; got '{wrong}'\. Did you mean '{nearest}'\?"
    for run in (net, lambda *arguments, **options: rs.explain(net, *arguments, **options)):
        with pytest.raises(TypeError, match=message):
            run(params, XS, **{wrong: None})


def test_a_chain_of_cells_whose_carry_is_an_array():
    class Sum:
        names, output_size = (), 3

        def init(self, key, input_size):
            return {}

        def initial_carry(self, x):
            return jnp.zeros_like(x)

        def __call__(self, params, carry, x):
            return carry + x, carry + x

    net = rs.chain(rs.layer(Sum()), rs.layer(Sum()))
    (first, _), _ = net(net.init(KEY, 3), XS, carry=(XS[0], XS[0]))
    np.testing.assert_array_equal(first, XS[0] + XS.sum(0))


@pytest.mark.parametrize("mask", [jnp.ones((5, 2), bool), jnp.ones((2, 5), bool), jnp.ones(2, bool)], ids=str)
def test_a_mask_as_lengths(mask):
    message = r"`seq_lengths` must be integers .*got the mask bool\[.*\]\. Pass a mask .* as `mask`, bool\[5,N\], time"
    with pytest.raises(ValueError, match=message):
        rs.scan(CELL, PARAMS, CARRY, XS, seq_lengths=mask)


def test_a_cell_with_a_long_repr_is_shown_in_one_line():
    class Long:
        def __repr__(self):
            return "Long(\n" + 40 * "  option,\n" + ")"

        def __call__(self, carry, x):
            return carry, x

    with pytest.raises(TypeError, match=r"got Long\(carry, x\), which takes two arguments, as the function"):
        rs.scan(Long(), PARAMS, CARRY, XS)


def test_a_flax_module_as_a_cell():
    linen, nnx = pytest.importorskip("flax.linen"), pytest.importorskip("flax.nnx")
    modules = {"linen": [linen.LSTMCell(8), linen.Dense(8)], "nnx": [nnx.LSTMCell(3, 8, rngs=nnx.Rngs(0))]}
    for package, module in [(package, module) for package, those in modules.items() for module in those]:
        name = f"{type(module).__name__} of flax\\.{package}"
        with pytest.raises(TypeError, match=rf"got the Flax module {name}, .* by rnnscan\.{package}\.RNN") as caught:
            rs.scan(module, PARAMS, CARRY, XS)
        assert {"linen": "rnnscan.nnx", "nnx": "rnnscan.linen"}[package] not in str(caught.value)


# What takes a cell, and nothing of Flax.
OF_CELLS = {"chain": rs.chain, "layer": rs.layer, "stack": rs.stack, "bidirectional": rs.bidirectional}


@pytest.mark.parametrize("function", OF_CELLS)
@pytest.mark.parametrize("package", ["linen", "nnx"])
@pytest.mark.bad_input  # For the annotations, which say a cell.
def test_a_flax_module_in_a_net(function, package):
    module = pytest.importorskip(f"flax.{package}")
    options = {"linen": (8,), "nnx": (3, 8)}[package], {} if package == "linen" else {"rngs": module.Rngs(0)}
    run_by = f"rnnscan.{package}.RNN"
    for cell, parts in (
        (module.LSTMCell(*options[0], **options[1]), (f"LSTMCell of flax.{package}, without", f"goes into {run_by}")),
        (module.LSTMCell, (f"the class LSTMCell of flax.{package}. Pass an object of it, LSTMCell(...), to {run_by}",)),
    ):
        with pytest.raises(TypeError, match=f"^{function}: ") as caught:
            OF_CELLS[function](cell)
        message = str(caught.value)
        assert all(part in message for part in parts), message
        assert "\n" not in message
        assert "layer(cell)" not in message


@pytest.mark.bad_input
def test_what_is_no_net_in_a_chain():
    for given, got in (
        (rs.cells.LSTM(8), r"LSTM\(hidden_size=8\)\. Make a net of a cell with layer\(cell\)\."),
        (rs.cells.LSTM, r"the class LSTM\. Pass an object of it, LSTM\(\.\.\.\)\."),
        ([NET], r"list, without "),
        (lambda params, carry, x: (carry, x), r"function, without .* A plain function goes into scan, "),
    ):
        with pytest.raises(TypeError, match=rf"^chain: every argument must be a net; got {got}"):
            rs.chain(given)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"timestep": True}, r'^recurrent_net: `timestep` must be the name .*; got True\. Write timestep="timestep"\.'),
        ({"links": {"hidden_t_prev": 3}}, r"^recurrent_net: the names in `links` must be strings; got 3\."),
        ({"inputs": {0: XS}}, r"^recurrent_net: the names in `inputs` must be strings; got 0\."),
    ],
    ids=["timestep", "links", "inputs"],
)
def test_names_that_are_no_strings(change, message):
    def cell_net(params, input_t, hidden_t_prev):
        return {"hidden_t": jnp.tanh(input_t + hidden_t_prev)}

    arguments = {
        "inputs": {"input_t": XS},
        "initial_cell_inputs": {"hidden_t_prev": jnp.zeros(3)},
        "links": {"hidden_t_prev": "hidden_t"},
    }
    with pytest.raises(TypeError, match=message):
        rs.recurrent_net(cell_net, {}, **(arguments | change))


def test_carry_and_inputs_exchanged():
    with pytest.raises(TypeError, match=r"LSTM: one step's input must be one array, \(N, 3\); got \(float32\[8\], "):
        rs.scan(CELL, PARAMS, XS, CARRY)
    with pytest.raises(ValueError, match=r"got the scalar float32\[\] at `xs`.* The order is \(cell, params, carry, "):
        rs.scan(lambda _, carry, x: (carry, x), None, XS, 0.0)


@pytest.mark.parametrize("kind", NETS)
def test_a_net_takes_its_carry_by_name(kind):
    net = NETS[kind]
    params = net.init(KEY, 3)
    carry = net.initial_carry(XS)
    message = rf"{kind}: a net takes its carry by name, net\(params, xs, carry=carry\).*got a third positional argument"
    for third in (XS, carry):
        with pytest.raises(TypeError, match=message):
            net(params, carry, third)
    with pytest.raises(TypeError, match=r"explain: a net takes its carry by name, explain\(net, params, xs, carry="):
        rs.explain(net, params, carry, XS)
    if net.runs_in_pieces:
        with pytest.raises(TypeError, match=r"step: a net takes its carry by name, net\.step\(params, x, carry="):
            net.step(params, carry, XS[0])


@pytest.mark.parametrize("kind", NETS)
def test_a_list_of_steps(kind):
    net = NETS[kind]
    params = net.init(KEY, 3)
    for xs in (list(XS), np.ones((5, 2, 3)).tolist()):
        with pytest.raises(TypeError, match=rf"{kind}: `xs` must be one array, \(T, N, D\), .* with jnp\.stack\."):
            net(params, xs)


def test_a_list_of_steps_in_scan():
    with pytest.raises(TypeError, match=r"LSTM: one step's input must be one array.* Stack a list of arrays with jnp"):
        rs.scan(CELL, PARAMS, CARRY, list(XS))
    with pytest.raises(AttributeError) as caught:
        rs.scan(lambda _, carry, x: (carry + x.sum(), x), None, 0.0, list(XS))
    assert "A list is a pytree, not an array of steps: stack it with jnp.stack." in caught.value.__notes__[0]


@pytest.mark.parametrize("kind", CELLS)
@pytest.mark.parametrize("wrong", [32, (32, 3), "float32", None], ids=repr)
def test_the_initial_carry_of_a_batch_size(kind, wrong):
    with pytest.raises(TypeError, match=r": `initial_carry` takes one step's input .* Write cell\.initial_carry\(xs"):
        CELLS[kind].initial_carry(wrong)


@pytest.mark.parametrize("kind", NETS)
def test_the_initial_carry_of_a_net_for_a_batch_size(kind):
    with pytest.raises(TypeError, match=r"initial_carry: a net takes a sequence \(T, N, D\).* got int\. Write net\."):
        NETS[kind].initial_carry(32)


@pytest.mark.parametrize("kind", [*CELLS, *NETS])
@pytest.mark.parametrize(
    ("key", "fix"), [(0, 0), (42, 42), (None, 0), (jnp.ones(3), 0)], ids=["0", "42", "no", "array"]
)
def test_a_seed_for_a_key(kind, key, fix):
    with pytest.raises(TypeError, match=rf": `key` must be a PRNG key; got .*\. Write jax\.random\.key\({fix}\)\."):
        {**CELLS, **NETS}[kind].init(key, 4)


@pytest.mark.parametrize(
    "key", [KEY, jax.random.PRNGKey(0), jax.random.key(0, impl="rbg")], ids=["typed", "raw", "rbg"]
)
def test_keys_of_every_kind(key):
    assert CELL.init(key, 3)["kernel"].shape == (3, 32)
    assert jax.vmap(lambda key: CELL.init(key, 3))(jax.random.split(key, 2))["kernel"].shape == (2, 3, 32)


def test_inputs_for_their_size():
    with pytest.raises(ValueError, match=r"LSTM: `input_size` must be an int of at least 1; got float32\[5,2,3\]\."):
        CELL.init(KEY, XS)


@pytest.mark.parametrize("kind", NETS)
def test_tensors_of_another_library(kind):
    net = NETS[kind]
    params = net.init(KEY, 3)
    expected, actual = net(params, XS), net(params, Tensor(XS))
    assert all(np.array_equal(*pair) for pair in zip(*map(jax.tree.leaves, (expected, actual)), strict=True))
    with pytest.raises(
        TypeError, match=rf"{kind}: parameters must be arrays of JAX or numpy; got .*test_mistakes\.Tensor"
    ):
        net(jax.tree.map(Tensor, params), XS)
    with pytest.raises(TypeError, match=r"initial_carry: a net takes a sequence"):
        net.initial_carry(Tensor(XS))


def test_a_module_of_torch_and_the_names_of_one_within_another():
    class Module:
        def state_dict(self):
            return state_dict

    state_dict = rs.interop.to_torch(NET, PARAMS)
    with pytest.raises(TypeError, match=r"from_torch: .* got the module Module\. Pass module\.state_dict\(\)\."):
        rs.interop.from_torch(Module())
    prefixed = {f"encoder.rnn.{name}": tensor for name, tensor in state_dict.items()} | {"head.weight": np.ones((2, 8))}
    with pytest.raises(ValueError, match=r"The names begin with 'encoder\.rnn\.'.*Pass (\{.*\})\.") as caught:
        rs.interop.from_torch(prefixed)
    fix = str(caught.value).partition(" Pass ")[2].removesuffix(".")
    net, params = rs.interop.from_torch(eval(fix, {"tensors": prefixed}))
    assert net == NET
    assert np.array_equal(params["kernel"], PARAMS["kernel"])


def test_lengths_outside_of_the_sequence():
    for lengths, wrong in (([-1, 4], -1), ([9, 4], 9)):
        for run in (
            lambda lengths: rs.scan(CELL, PARAMS, CARRY, XS, seq_lengths=lengths),
            lambda lengths: NET(PARAMS, XS, seq_lengths=lengths),
            lambda lengths: rs.truncated.by_window(NET, PARAMS, XS, every=2, back=2, seq_lengths=lengths),
        ):
            message = rf"`seq_lengths` must be from 0 to the number of steps, 5, .*got {wrong}\. xs is time-major"
            with pytest.raises(ValueError, match=message):
                run(jnp.array(lengths))


def test_a_batch_major_input_with_lengths():
    with pytest.raises(ValueError, match=r"must be from 0 to the number of steps, 2, .*transpose a batch-major input"):
        NET(PARAMS, XS.swapaxes(0, 1), seq_lengths=jnp.array([5, 4]))


@pytest.mark.parametrize("reverse", ["yes", 1, None], ids=repr)
@pytest.mark.bad_input  # For the annotations, which say bool.
def test_reverse_is_a_bool(reverse):
    with pytest.raises(TypeError, match=r"scan: `reverse` must be True or False; got"):
        rs.scan(CELL, PARAMS, CARRY, XS, reverse=reverse)
    with pytest.raises(TypeError, match=r"layer: `reverse` must be True or False; got"):
        rs.layer(CELL, reverse=reverse)


def with_leaf(leaf):
    return {**PARAMS, "layers": [{"act": leaf}]}


def hidden_only(params, carry, x):
    return carry * params["bias"][0], carry


WITH_PARAMS = {
    "scan": lambda params, **options: rs.scan(hidden_only, params, jnp.ones(3), XS[:, 0], **options),
    "explain": lambda params: rs.explain(hidden_only, params, jnp.ones(3), XS[:, 0]),
    "memory_report": lambda params: rs.memory_report(hidden_only, params, jnp.ones(3), XS[:, 0]),
    "while_net": lambda params: rs.while_net(lambda _, c: c.sum() > 0, lambda _, c: c, XS, params=params, max_steps=2),
    "scan_until": lambda params: rs.scan_until(
        hidden_only, params, jnp.ones(3), XS[:, 0], lambda _, carry, y: carry.sum() > 0, max_steps=5
    ),
    "recurrent_net": lambda params: rs.recurrent_net(
        lambda params, x_t, h_prev: {"h_t": x_t + h_prev},
        params,
        inputs={"x_t": XS},
        initial_cell_inputs={"h_prev": jnp.ones((2, 3))},
        links={"h_prev": "h_t"},
    ),
    "layer": lambda params: NET(params, XS),
    "chain": lambda params: NETS["chain"]({"net_0": params, "net_1": {}}, XS),
    "bidirectional": lambda params: NETS["bidirectional"]({"forward": {}, "backward": params}, XS),
}
NO_ARRAYS = {"function tanh": jnp.tanh, "string 'relu'": "relu", "object": object()}


@pytest.mark.parametrize("kind", WITH_PARAMS)
@pytest.mark.parametrize("shown", NO_ARRAYS)
def test_a_leaf_of_the_parameters_that_is_no_array(kind, shown):
    with pytest.raises(TypeError, match=rf"got .*{shown} at `params.*\['layers'\]\[0\]\['act'\]`") as caught:
        WITH_PARAMS[kind](with_leaf(NO_ARRAYS[shown]))
    assert str(caught.value).startswith(f"{'scan' if kind == 'explain' else kind}: every leaf of the parameters")
    assert "equinox.partition" in str(caught.value)


@pytest.mark.parametrize("leaf", [2, 0.5, True, np.float32(1), np.ones(3), KEY], ids=repr)
def test_numbers_and_keys_among_the_parameters(leaf):
    WITH_PARAMS["scan"](with_leaf(leaf))
