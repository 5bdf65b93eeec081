"""rnnscan.nnx.RNN works under the transformations of JAX and of flax.nnx, and where Flax's own cannot."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import errors, nnx
from jax.sharding import PartitionSpec

import rnnscan.nnx
from nnx_pairs import BATCH, FEATURES, TIME, UNITS, call, make_cell, random_inputs
from tiers import variants
from zoo.case import assert_trees_close


pytestmark = pytest.mark.usefixtures("x64")


def loss(model, inputs):
    return (model(inputs) ** 2).sum()


def jit_over_a_closure(model, inputs):
    return jax.jit(lambda inputs: loss(model, inputs))(inputs)


def grad_over_a_closure(model, inputs):
    return jax.grad(lambda inputs: loss(model, inputs))(inputs)


def merge_in_grad(model, inputs):
    graphdef, params, rest = nnx.split(model, nnx.Param, ...)
    return nnx.to_pure_dict(jax.grad(lambda params: loss(nnx.merge(graphdef, params, rest), inputs))(params))


def merge_in_jit_of_grad(model, inputs):
    graphdef, params, rest = nnx.split(model, nnx.Param, ...)

    def gradients(params, rest, inputs):
        return jax.grad(lambda params: loss(nnx.merge(graphdef, params, rest), inputs))(params)

    return nnx.to_pure_dict(jax.jit(gradients)(params, rest, inputs))


def nnx_jit_over_a_closure(model, inputs):
    return nnx.jit(lambda inputs: loss(model, inputs))(inputs)


def nnx_grad_over_a_closure(model, inputs):
    return nnx.grad(lambda inputs: loss(model, inputs))(inputs)


def vmap_over_a_closure(model, inputs):
    return jax.vmap(lambda inputs: loss(model, inputs[None]))(inputs)


def checkpoint_over_a_closure(model, inputs):
    return jax.grad(jax.checkpoint(lambda inputs: loss(model, inputs)))(inputs)


def scan_over_a_closure(model, inputs):
    return jax.lax.scan(lambda total, inputs: (total + loss(model, inputs), None), 0.0, inputs[None])[0]


WHERE_FLAX_FAILS = [jit_over_a_closure, grad_over_a_closure, merge_in_grad, merge_in_jit_of_grad, vmap_over_a_closure]
# One more of a kind, each.
LIKEWISE = [nnx_jit_over_a_closure, nnx_grad_over_a_closure, checkpoint_over_a_closure, scan_over_a_closure]


class Loop(nnx.Module):
    """The cell in a Python loop: no RNN, so nothing that could fail."""

    def __init__(self, cell):
        self.cell = cell

    def __call__(self, inputs):
        carry, outputs = jnp.zeros((*inputs.shape[:-2], UNITS)), []
        for step in range(TIME):
            carry, y = self.cell(carry, inputs[..., step, :])
            outputs.append(y)
        return jnp.stack(outputs, axis=-2)


def flax_fails(transformed):
    try:
        transformed(nnx.RNN(make_cell("SimpleCell")), random_inputs())
    except errors.TraceContextError as error:
        return "Cannot mutate RngCount" in str(error)
    return False


@pytest.mark.parametrize(
    "transformed",
    variants([*WHERE_FLAX_FAILS, *LIKEWISE], [grad_over_a_closure, vmap_over_a_closure]),
    ids=lambda transformed: transformed.__name__,
)
def test_it_works_where_flax_fails(transformed):
    """Flax's RNN draws keys for a carry of zeros, and so changes its state, which these transformations forbid."""
    actual, expected = (transformed(kind(make_cell("SimpleCell")), random_inputs()) for kind in (rnnscan.nnx.RNN, Loop))
    assert_trees_close(actual, expected, tolerance=1e-9)
    if not flax_fails(transformed):
        pytest.skip("flax.nnx.RNN works here now: its failure need not be spoken of any longer")


def nnx_jit(model, inputs):
    return nnx.jit(loss)(model, inputs)


def nnx_value_and_grad(model, inputs):
    value, gradients = nnx.value_and_grad(loss)(model, inputs)
    return value, nnx.to_pure_dict(gradients)


def nnx_remat(model, inputs):
    return nnx.to_pure_dict(nnx.jit(nnx.grad(nnx.remat(loss)))(model, inputs))


def nnx_vmap(model, inputs):
    return nnx.vmap(loss, in_axes=(None, 0))(model, inputs[:, None])


def merge_in_jit(model, inputs):
    graphdef, state = nnx.split(model)
    return jax.jit(lambda state, inputs: loss(nnx.merge(graphdef, state), inputs))(state, inputs)


@pytest.mark.parametrize(
    "transformed",
    [nnx_jit, nnx_value_and_grad, nnx_remat, nnx_vmap, merge_in_jit],
    ids=lambda function: function.__name__,
)
def test_it_works_where_flax_does(transformed):
    actual, expected = (
        transformed(kind(make_cell("SimpleCell")), random_inputs()) for kind in (rnnscan.nnx.RNN, nnx.RNN)
    )
    assert_trees_close(actual, expected, tolerance=1e-9)


def test_an_ensemble():
    """Made and run by nnx.vmap, which gives each member its own state."""

    def outputs(kind):
        @nnx.split_rngs(splits=3)
        @nnx.vmap
        def make(rngs):
            return kind(nnx.SimpleCell(FEATURES, UNITS, dtype=jnp.float64, param_dtype=jnp.float64, rngs=rngs))

        return nnx.vmap(lambda model, inputs: model(inputs), in_axes=(0, None))(make(nnx.Rngs(0)), random_inputs())

    ours = outputs(rnnscan.nnx.RNN)
    assert ours.shape == (3, BATCH, TIME, UNITS)
    assert_trees_close(ours, outputs(nnx.RNN), tolerance=1e-9)
    assert np.abs(ours[0] - ours[1]).max() > 0.1


@pytest.mark.skipif(jax.device_count() < 2, reason="needs two devices")
def test_shard_map_over_the_batch():
    """Zeros vary over the mesh as the inputs do. Flax's own do not, and the loop refuses them."""
    mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    inputs, rows = random_inputs(4, TIME, FEATURES), PartitionSpec("data")

    def sharded(function):
        return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=rows, out_specs=rows))

    model = rnnscan.nnx.RNN(make_cell("LSTMCell"))
    np.testing.assert_allclose(sharded(lambda inputs: model(inputs))(inputs), call(model, inputs), rtol=1e-9)
    plain = rnnscan.nnx.RNN(make_cell("LSTMCell"), engine="lax", memory=None)
    gradient = jax.grad(lambda inputs: loss(plain, inputs))
    np.testing.assert_allclose(sharded(gradient)(inputs), gradient(inputs), rtol=1e-9)


def test_forward_mode():
    model = rnnscan.nnx.RNN(make_cell("SimpleCell"), engine="lax")
    inputs = random_inputs()
    direction = jnp.cos(inputs)
    _, tangent = jax.jvp(lambda inputs: loss(model, inputs), (inputs,), (direction,))
    gradient = jax.grad(lambda inputs: loss(model, inputs))(inputs)
    np.testing.assert_allclose(tangent, (gradient * direction).sum(), rtol=1e-9)


def test_it_is_traced_once():
    model, traces = rnnscan.nnx.RNN(make_cell("SimpleCell")), []

    @nnx.jit
    def apply(model, inputs):
        traces.append(None)
        return model(inputs)

    for seed in range(3):
        apply(model, random_inputs(seed=seed))
    assert len(traces) == 1
