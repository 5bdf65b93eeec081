"""The uses of the benchmark: rnnscan and plain `lax.scan` agree in float64, in values and all gradients."""

from functools import partial

import jax
import numpy as np
import pytest

from benchmarks.beyond.rows import SCANS
from benchmarks.beyond.use import Draw
from benchmarks.beyond.uses import USES
from tiers import variants


# A solver of linear systems, a matrix state with its chunkwise form, and a carry that changes in place.
QUICK = ("kalman-filter", "gla", "kv-cache")


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", variants(list(USES), QUICK))
def test_values_and_gradients_are_those_of_lax_scan(name):
    use = USES[name]
    problem = use.make(Draw(), **use.tiny)
    arguments = problem.split_arguments()
    losses = {row: problem.loss(scan) for row, scan in SCANS.items()}
    wanted = jax.jit(jax.value_and_grad(losses.pop("plain")))(*arguments)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(wanted))
    losses = {"rnnscan": losses["rnnscan"], "chunkwise": problem.chunkwise_loss()}
    for loss in filter(None, losses.values()):
        found = jax.jit(jax.value_and_grad(loss))(*arguments)
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-11), found, wanted)
