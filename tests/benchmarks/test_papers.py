"""The likelihoods and tasks of `make papers`, by references of their own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.papers import app, garch, likelihoods
from benchmarks.papers.result import Figure, likelihood_figure
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


@pytest.mark.parametrize(("met", "shown"), [(True, "met"), (False, "**not met**"), (None, "")])
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


def test_the_markov_model_is_the_forward_algorithm():
    with jax.enable_x64(True):
        ours = likelihoods._markov()
    probability, expected = likelihoods._stationary(), 0.0
    for y in likelihoods._series():
        density = np.exp(-0.5 * (y - likelihoods.MEANS) ** 2 / likelihoods.VARIANCE)
        density /= np.sqrt(2 * np.pi * likelihoods.VARIANCE)
        joint = likelihoods.SWITCH @ probability * density
        expected += np.log(joint.sum())
        probability = joint / joint.sum()
    np.testing.assert_allclose(ours, expected, rtol=1e-12)


def _garch_by_loop(params):
    omega, alpha, beta = params
    ys, weights = garch._series(), 0.94 ** np.arange(75)
    variance = omega + (alpha + beta) * np.average(ys[:75] ** 2, weights=weights)
    total = 0.0
    for y in ys:
        total -= 0.5 * (np.log(2 * np.pi * variance) + y**2 / variance)
        variance = omega + alpha * y**2 + beta * variance
    return total


def test_garch_is_a_loop_over_steps():
    with jax.enable_x64(True):
        ours = float(garch._garch(garch.TRUE))
    np.testing.assert_allclose(ours, _garch_by_loop(garch.TRUE), rtol=1e-12)


def test_the_gradient_of_garch_is_that_of_differences():
    with jax.enable_x64(True):
        ours = jax.grad(garch._garch)(garch.TRUE)
    steps = np.diag(1e-5 * garch.TRUE)
    expected = [
        (_garch_by_loop(garch.TRUE + step) - _garch_by_loop(garch.TRUE - step)) / (2 * step.sum()) for step in steps
    ]
    np.testing.assert_allclose(ours, expected, rtol=1e-6)


@pytest.mark.parametrize(("reference", "met"), [(-100.00000001, True), (-100.000001, False)])
def test_a_likelihood_is_met_within_1e_9(reference, met):
    figure = likelihood_figure("task", lambda: -100.0, "jax", lambda: reference)
    assert figure.met is met
    assert figure.source == f"jax {jax.__version__}"


def test_a_likelihood_without_its_package_says_so():
    figure = likelihood_figure("task", lambda: -100.0, "no_such_package", pytest.fail)
    assert (figure.met, figure.published) == (None, "no_such_package is not installed")
