"""Traces of nets, functions and Flax modules: paths, and values and cotangents as in a loop."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from rnnscan import cells
from traced_loop import loop, loss_of, normal, with_cotangents, with_noise


LENGTHS = jnp.array([6, 3])


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def assert_agrees(trace, values, cotangents):
    """The loop numbers all values; a trace those only that share a path."""

    def numbered(of):
        return {path if path.endswith("]") else f"{path}[0]": value for path, value in of.items()}

    ours, theirs = numbered(trace), numbered(trace.cotangents)
    assert sorted(ours) == sorted(theirs) == sorted(values)
    for path, value in values.items():
        np.testing.assert_allclose(ours[path], value, rtol=1e-12, atol=1e-12, err_msg=path)
        np.testing.assert_allclose(theirs[path], cotangents[path], rtol=1e-12, atol=1e-12, err_msg=path)


def zeros(cell, xs):
    return cell.initial_carry(xs[0])


@pytest.mark.parametrize(
    "options",
    [pytest.param({}, id="plain", marks=pytest.mark.slow), pytest.param({"seq_lengths": LENGTHS}, id="lengths")],
)
def test_a_chain_of_a_bidirectional_net(options):
    forward, backward, top = cells.LSTM(3), cells.GRU(4), cells.GRU(2)
    net, xs = rs.chain(rs.bidirectional(forward, backward), rs.layer(top)), normal(1, 6, 2, 3)
    params = with_noise(net.init(jax.random.key(0), 3))
    loops = {"lengths": options["seq_lengths"]} if options else {}

    def by_loop(added):
        both, carries, values = params["net_0"], [], {}
        outputs = []
        for name, cell in (("forward", forward), ("backward", backward)):
            carry, ys, more = loop(
                cell, both[name], zeros(cell, xs), xs, added, f"net_0/{name}/", reverse=name == "backward", **loops
            )
            outputs.append(ys)
            carries.append(carry)
            values |= more
        middle = jnp.concatenate(outputs, axis=-1)
        carry, ys, more = loop(top, params["net_1"], zeros(top, middle), middle, added, "net_1/", **loops)
        return (tuple(carries), carry), ys, values | more

    trace = rs.trace(net, params, xs, loss=loss_of, **options)
    assert_agrees(trace, *with_cotangents(by_loop, loss_of))
    assert trace["net_1/carry"].shape == (6, 2, 2)


def test_recurrent_net():
    kernel, recurrent, xs, start = normal(1, 3, 4), normal(2, 4, 4), normal(3, 6, 2, 3), normal(4, 2, 4)

    def cell_net(params, input_t, hidden_prev):
        return {"hidden": jnp.tanh(rs.name(input_t @ params["kernel"] + hidden_prev @ params["recurrent"], "pre"))}

    params = {"kernel": kernel, "recurrent": recurrent}

    def run(params, xs):
        return rs.recurrent_net(
            cell_net,
            params,
            inputs={"input_t": xs},
            initial_cell_inputs={"hidden_prev": start},
            links={"hidden_prev": "hidden"},
        )

    trace = rs.trace(run, params, xs, loss=lambda results: (results["hidden_all"] ** 3).sum())
    hidden, pre = [start], []
    for x in xs:
        pre.append(x @ kernel + hidden[-1] @ recurrent)
        hidden.append(jnp.tanh(pre[-1]))
    back, cotangent = [], jnp.zeros((2, 4))
    for h in hidden[:0:-1]:  # By hand: dL/dpre = (1 - h^2) (3 h^2 + dL/dh from the next step).
        back.append((1 - h**2) * (3 * h**2 + cotangent))
        cotangent = back[-1] @ recurrent.T
    np.testing.assert_allclose(trace["pre"], jnp.stack(pre), rtol=1e-12)
    np.testing.assert_allclose(trace.cotangents["pre"], jnp.stack(back[::-1]), rtol=1e-12, atol=1e-12)


def test_windows_with_the_carry_handed_on():
    cell, xs = cells.GRU(4), normal(1, 7, 2, 3)
    params = with_noise(cell.init(jax.random.key(0), 3))

    def run(params, xs):
        carry, first = rs.scan(cell, params, zeros(cell, xs), xs[:3])
        carry, second = rs.scan(cell, params, carry, xs[3:])
        return carry, jnp.concatenate([first, second])

    windows = rs.trace(run, params, xs, loss=loss_of)
    whole = rs.trace(cell, params, zeros(cell, xs), xs, loss=loss_of)
    for path in whole:
        for ours, theirs in ((windows, whole), (windows.cotangents, whole.cotangents)):
            pieces = jnp.concatenate([ours[f"scan_0/{path}"], ours[f"scan_1/{path}"]])
            np.testing.assert_allclose(pieces, theirs[path], rtol=1e-12, atol=1e-12)


def test_windows_of_truncated_backpropagation_have_their_axis():
    cell, xs = cells.GRU(4), normal(1, 8, 2, 3)
    params = with_noise(cell.init(jax.random.key(0), 3))
    carry = zeros(cell, xs)
    trace = rs.trace(lambda xs: rs.truncated.by_window(cell, params, carry, xs, every=2, back=2), xs, names="carry")
    whole = rs.trace(cell, params, carry, xs, names="carry")["carry"]
    *_, windows = trace.values()
    np.testing.assert_allclose(windows.reshape(-1, 2, 4), whole[2:], rtol=1e-12)


def test_vmap_and_jit_around_scans_and_around_trace():
    cell, xs = cells.LSTM(4), normal(1, 6, 2, 3)
    params = with_noise(cell.init(jax.random.key(0), 3))
    options = {"loss": loss_of, "steps": [1, 4]}

    def one(xs):
        return rs.trace(cell, params, zeros(cell, xs), xs, **options)

    def weighted(results):
        return sum(loss_of(jax.tree.map(lambda leaf, i=i: leaf[i], results)) for i in range(3))

    batch = jnp.stack([xs, 2 * xs, -xs])
    apart = [one(each) for each in batch]
    around = jax.jit(jax.vmap(one))(batch)
    within = rs.trace(
        jax.vmap(jax.jit(lambda xs: rs.scan(cell, params, zeros(cell, xs), xs))), batch, loss=weighted, steps=[1, 4]
    )
    for path in apart[0]:
        for of in (lambda trace: trace, lambda trace: trace.cotangents):
            expected = jnp.stack([of(each)[path] for each in apart])
            np.testing.assert_allclose(of(around)[path], expected, rtol=1e-12, atol=1e-12)
            np.testing.assert_allclose(of(within)[path], expected, rtol=1e-12, atol=1e-12)
    assert around.steps == (1, 4)


def test_scans_within_a_step():
    def cell(params, carry, x):
        inner, ys = rs.scan(lambda _, c, u: (rs.name(jnp.tanh(c + u), "inner"),) * 2, None, carry, x)
        return inner, ys.sum(0)

    xs, carry = normal(1, 5, 3, 2), normal(2, 2)
    trace = rs.trace(lambda: rs.scan(cell, None, carry, xs), loss=loss_of)
    assert list(trace) == ["scan/inner", "scan/carry", "scan/y", "carry", "y"]

    def run(added):
        c, values, ys = carry, [], []
        for t in range(5):
            row = []
            for s in range(3):
                c = jnp.tanh(c + xs[t, s]) + added[t, s]
                row.append(c)
            values.append(jnp.stack(row))
            ys.append(sum(row))
        return loss_of((c, jnp.stack(ys))), jnp.stack(values)

    cotangents, values = jax.grad(run, has_aux=True)(jnp.zeros((5, 3, 2)))
    np.testing.assert_allclose(trace["scan/inner"], values, rtol=1e-12)
    np.testing.assert_allclose(trace.cotangents["scan/inner"], cotangents, rtol=1e-12, atol=1e-12)


def test_a_name_under_vmap_checkpoint_and_jit_in_the_step():
    def plain(kernel, hidden, x):
        return jnp.tanh(rs.name(x @ kernel + hidden, "pre"))

    def cell(params, carry, x):
        hidden = jax.vmap(jax.checkpoint(jax.jit(plain)), in_axes=(None, 0, 1))(params, carry, x)
        return hidden, hidden

    kernel, xs, carry = normal(1, 3, 4), normal(2, 5, 3, 2), normal(3, 2, 4)
    trace = rs.trace(cell, kernel, carry, xs, names="pre", loss=loss_of)

    def by_rows(params, carry, x):
        hidden = plain(params, carry, x.T)
        return hidden, hidden

    values, cotangents = with_cotangents(lambda added: loop(by_rows, kernel, carry, xs, added), loss_of)
    np.testing.assert_allclose(trace["pre"], values["pre[0]"], rtol=1e-12)
    np.testing.assert_allclose(trace.cotangents["pre"], cotangents["pre[0]"], rtol=1e-12, atol=1e-12)


def test_a_decoder_and_dropout_with_a_key():
    decoder = rs.attention.decoder(rs.dropout(cells.GRU(4), 0.5), rs.attention.Dot(4))
    encoded, xs = normal(1, 5, 2, 4), normal(2, 6, 2, 3)
    params = with_noise(decoder.init(jax.random.key(0), 3))
    cell = decoder.over(params, encoded)
    key = jax.random.key(3)
    trace = rs.trace(cell, params, cell.initial_carry(xs[0]), xs, key=key)
    (carry, *_), (ys, *_) = rs.scan(cell, params, cell.initial_carry(xs[0]), xs, key=key)
    np.testing.assert_allclose(trace["y[0]"], ys, rtol=1e-12)
    np.testing.assert_allclose(trace["carry[0][0]"][-1], jax.tree.leaves(carry)[0], rtol=1e-12)
    assert "cell/gates[0]" in trace


def test_flax_linen():
    from flax import linen as nn

    class Model(nn.Module):
        @nn.compact
        def __call__(self, inputs):
            hidden = rs.linen.RNN(cells.LSTM(4))(inputs)
            return rs.linen.RNN(cells.GRU(3), name="top")(hidden)

    model, xs = Model(), normal(1, 6, 2, 3)
    variables = with_noise(model.init(jax.random.key(0), xs.swapaxes(0, 1)))
    params = variables["params"]
    trace = rs.trace(model.apply, variables, xs.swapaxes(0, 1), loss=loss_of, names=["gates", "top/y"])

    unbound = rs.trace(model, variables, xs.swapaxes(0, 1), loss=loss_of, names=["gates", "top/y"])
    assert unbound.subject == "Model"
    for path in trace:
        np.testing.assert_array_equal(unbound[path], trace[path])

    def by_loop(added):
        _, ys, values = loop(cells.LSTM(4), params["RNN_0"]["cell"], zeros(cells.LSTM(4), xs), xs, added, "RNN_0/cell/")
        _, ys, more = loop(cells.GRU(3), params["top"]["cell"], zeros(cells.GRU(3), ys), ys, added, "top/cell/")
        return None, ys, values | more

    values, cotangents = with_cotangents(by_loop, lambda results: loss_of(results[1].swapaxes(0, 1)))
    for path in ("RNN_0/cell/gates", "top/cell/gates[0]", "top/cell/gates[1]", "top/cell/gates[2]"):
        name = path if path.endswith("]") else f"{path}[0]"
        np.testing.assert_allclose(trace[path], values[name], rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(trace.cotangents[path], cotangents[name], rtol=1e-12, atol=1e-12)
    assert trace["top/y"].shape == (6, 2, 3)


def test_flax_nnx():
    from flax import nnx

    cell, xs = cells.LSTM(4), normal(1, 6, 2, 3)
    model = rs.nnx.RNN(cell, in_features=3, rngs=nnx.Rngs(0))
    params = with_noise({name: param[...] for name, param in model.cell.params.items()})
    nnx.update(model.cell.params, params)
    trace = rs.trace(model, xs.swapaxes(0, 1), loss=loss_of, names="gates")
    values, cotangents = with_cotangents(
        lambda added: loop(cell, params, zeros(cell, xs), xs, added),
        lambda results: loss_of(results[1].swapaxes(0, 1)),
    )
    np.testing.assert_allclose(trace["gates"], values["gates[0]"], rtol=1e-12)
    np.testing.assert_allclose(trace.cotangents["gates"], cotangents["gates[0]"], rtol=1e-12, atol=1e-12)


def test_a_function_of_nnx_jit_leaves_its_module_whole():
    from flax import nnx

    module, xs = nnx.GRUCell(3, 4, rngs=nnx.Rngs(0)), jnp.ones((6, 2, 3))
    step = lambda module: lambda _, carry, x: module(carry, x)  # noqa: E731
    run = nnx.jit(lambda module, xs: rs.scan(step(module), None, jnp.zeros((2, 4)), xs)[1])
    expected = run(module, xs)
    np.testing.assert_allclose(rs.trace(run, module, xs)["y"], expected, rtol=1e-6)
    np.testing.assert_allclose(run(module, xs), expected, rtol=1e-6)
