"""The uses of the benchmark: rnnscan and plain `lax.scan` agree in float64, in values and all gradients."""

import re
from functools import partial

import jax
import numpy as np
import pytest

import rnnscan as rs
from benchmarks.beyond.rows import SCANS
from benchmarks.beyond.use import Draw
from benchmarks.beyond.uses import USES
from jaxprs import running
from tiers import variants


# A matrix state with its chunkwise form, and a carry that changes in place.
QUICK = ("gla", "kv-cache")


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", variants(list(USES), QUICK))
def test_values_and_gradients_are_those_of_lax_scan(name):
    use = USES[name]
    problem = use.make(Draw(), **use.tiny)
    arguments = problem.split_arguments()
    wanted = jax.jit(jax.value_and_grad(problem.loss(SCANS["plain"])))(*arguments)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(wanted))
    for loss in filter(None, [problem.loss(SCANS["rnnscan"]), problem.chunkwise_loss()]):
        found = jax.jit(jax.value_and_grad(loss))(*arguments)
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-11), found, wanted)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", variants(list(USES), ["gla"]))
def test_without_names_both_memory_choices_are_one_program(name):
    use = USES[name]
    problem = use.make(Draw(), **use.tiny)

    def program(memory):
        loss = problem.loss(partial(rs.scan, memory=memory))
        jaxpr = running(jax.value_and_grad(loss))(*problem.split_arguments())
        return re.sub(r"0x[0-9a-f]+", "", str(jaxpr))

    assert program(rs.Memory()) == program(rs.Memory(recompute="all"))
