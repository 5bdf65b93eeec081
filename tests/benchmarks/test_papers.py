"""The likelihoods and tasks of `make papers`, by references of their own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.papers import app, likelihoods
from benchmarks.papers.result import Figure
from benchmarks.papers.training import train


def test_training_finds_the_minimum_of_a_square():
    target = jnp.array([1.0, -2.0])
    params = train(
        lambda params, batch: ((params - target) ** 2).sum() + 0 * batch,
        jnp.zeros(2),
        lambda key: jax.random.normal(key),
        steps=400,
        rate=0.05,
    )
    np.testing.assert_allclose(params, target, atol=1e-2)


@pytest.mark.parametrize(("met", "shown"), [(True, "met"), (False, "**not met**")])
def test_the_table_says_what_is_not_met(met, shown):
    figure = Figure("task", "accuracy", "86 to 91 %", "90.5 %", met, 12.3, "paper")
    assert app.cells_of(figure) == ("task", "accuracy", "86 to 91 %", "90.5 %", shown, "12", "paper")


def test_the_kalman_filter_is_the_density_of_a_normal_vector():
    with jax.enable_x64(True):
        ours = likelihoods._kalman()
    ys = likelihoods._series()
    steps = np.arange(len(ys))
    covariance = (
        likelihoods.START + likelihoods.DRIFT * np.minimum(steps[:, None], steps) + likelihoods.NOISE * np.eye(len(ys))
    )
    _, log_determinant = np.linalg.slogdet(2 * np.pi * covariance)
    expected = -0.5 * (log_determinant + ys @ np.linalg.solve(covariance, ys))
    np.testing.assert_allclose(ours, expected, rtol=1e-6)
