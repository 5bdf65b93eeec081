"""Modules of Flax are checked as they are called."""

import jax
import jax.numpy as jnp
import pytest
from flax import linen as nn
from flax import nnx

import rnnscan as rs
from rnnscan import linen
from rnnscan.nnx import RNN


INPUTS = jax.random.normal(jax.random.key(0), (3, 8, 3))
FEW = ("rows", "documents", "padding", "windows")


def test_a_module_of_linen_holds():
    module = linen.RNN(nn.GRUCell(4))
    report = rs.check(module, module.init(jax.random.key(0), INPUTS), INPUTS, only=FEW)
    assert [outcome.result for outcome in report.outcomes] == ["holds"] * 4
    assert "modules of Flax run padded steps" in report["padding"].detail


@pytest.mark.typed
def test_a_module_of_nnx_holds():
    report = rs.check(RNN(rs.cells.GRU(4), in_features=3, rngs=nnx.Rngs(0)), INPUTS, only=FEW)
    assert [outcome.result for outcome in report.outcomes] == ["holds"] * 4


@pytest.mark.slow
@pytest.mark.parametrize("cell", [rs.cells.LSTM(4), nn.LSTMCell(4)])
def test_linen_holds_in_all_checks(cell):
    module = linen.RNN(cell)
    rs.check(module, module.init(jax.random.key(0), INPUTS), INPUTS).raise_if_failed()


@pytest.mark.slow
@pytest.mark.parametrize("time_major", [False, True])
def test_nnx_holds_in_all_checks(time_major):
    module = RNN(nnx.LSTMCell(3, 4, rngs=nnx.Rngs(0)), time_major=time_major)
    inputs = jnp.swapaxes(INPUTS, 0, 1) if time_major else INPUTS
    rs.check(module, inputs).raise_if_failed()


@pytest.mark.slow
def test_a_bidirectional_module_runs_backward():
    module = linen.Bidirectional(linen.RNN(nn.GRUCell(4)), linen.RNN(nn.GRUCell(4)))
    report = rs.check(module, module.init(jax.random.key(0), INPUTS), INPUTS)
    assert report.ok
    assert report["future"].result == "does not apply"
    assert report["reverse"].result == "holds"


class Normalized(nn.Module):
    """A module without a carry that normalizes over the batch."""

    @nn.compact
    def __call__(self, inputs):
        return nn.BatchNorm(use_running_average=False)(nn.Dense(4)(inputs))


def test_a_batch_norm_mixes_rows_and_reads_the_future():
    variables = Normalized().init(jax.random.key(0), INPUTS)

    class Applied(Normalized):
        @nn.compact
        def __call__(self, inputs):
            hidden = nn.Dense(4, name="Dense_0")(inputs)
            return (hidden - hidden.mean((0, 1))) / (1e-3 + hidden.std((0, 1)))

    report = rs.check(Applied(), variables, INPUTS, only=["future", "rows"])
    assert report.failed == ("future", "rows")
