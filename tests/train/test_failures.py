"""Training that stops at the first step that is not finite, and keeps what reproduces it."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import rnnscan as rs
from rnnscan import cells
from rnnscan.train import RunDirectory, TrainState, begin, fit, make_step
from tiers import variants


pytestmark = pytest.mark.typed  # `make test` runs these with the run-time type checks.

CELL = cells.GRU(4)
BAD = 3


def loss(params: Any, carry: Any, batch: Any, key: Any) -> Any:
    def cell(params: Any, carry: Any, x: Any) -> Any:
        carry, y = CELL(params, carry, x)
        return carry, rs.name(jnp.log(y + 1 + x[:, :1]), "logarithm")

    carry, ys = rs.scan(cell, params, carry, batch, memory=rs.Memory(segment=2))
    return (ys**2).mean(), carry


def batch_at(step: int) -> np.ndarray:
    """Positive inputs, but at one step of one batch, where the logarithm has none."""
    batch = np.random.default_rng(step).uniform(0.5, 1, size=(6, 3, 2)).astype(np.float32)
    if step == BAD:
        batch[4, 1] = -5
    return batch


def initial(optimizer: Any) -> TrainState:
    params = CELL.init(jax.random.key(0), 2)
    return begin(params, optimizer, carry=CELL.initial_carry(jnp.zeros((3, 2))), seed=5)


def assert_same(actual: TrainState, expected: TrainState) -> None:
    for one, other in zip(*(jax.tree.leaves(each) for each in (actual, expected)), strict=True):
        if jnp.issubdtype(one.dtype, jax.dtypes.prng_key):
            one, other = jax.random.key_data(one), jax.random.key_data(other)
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("clip_norm", variants([None, 1.0], [1.0]))
def test_training_stops_with_the_sentence_and_keeps_what_reproduces_it(tmp_path: Path, clip_norm: float | None) -> None:
    optimizer, run = optax.adam(0.01), RunDirectory(tmp_path)
    step = make_step(loss, optimizer, clip_norm=clip_norm)
    before = fit(step, initial(optimizer), batch_at, steps=BAD, progress=False)
    with pytest.raises(
        FloatingPointError, match=r"fit: update 3 of the training is not finite\. step 4, row 1, `logar"
    ):
        fit(step, initial(optimizer), batch_at, steps=9, run=run, check_finite=True, progress=False)
    state, batch = RunDirectory(tmp_path).load_failure(initial(optimizer), batch_at(0))
    np.testing.assert_array_equal(batch, batch_at(BAD))
    assert jax.tree.structure(state) == jax.tree.structure(before)
    assert_same(state, before)
    report = step.first_nonfinite(state, batch)  # type: ignore[attr-defined]
    assert (report.step, report.row, report.name, report.direction) == (4, 1, "logarithm", "forward")
    assert report.primitive == "log"
    text = (run.failure / "report.txt").read_text()
    assert str(report) in text
    assert f"RunDirectory({str(tmp_path)!r}).load_failure(state, batch)" in text
    assert len(run.read_metrics()) == BAD + 1
    run.clear()
    assert not run.failure.exists()


def test_steps_that_are_finite_are_the_same_with_and_without() -> None:
    optimizer = optax.adam(0.01)
    step = make_step(loss, optimizer)
    states = [
        fit(step, initial(optimizer), batch_at, steps=BAD, check_finite=check, progress=False)
        for check in (False, True)
    ]
    assert_same(*states)
    assert step.first_nonfinite(states[0], batch_at(0)) is None  # type: ignore[attr-defined]


def test_without_a_run_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    optimizer = optax.sgd(0.01)
    with pytest.raises(FloatingPointError, match=r"`logarithm`") as error:
        fit(make_step(loss, optimizer), initial(optimizer), batch_at, steps=9, check_finite=True, progress=False)
    assert "reproduces" not in str(error.value)
    assert not list(tmp_path.iterdir())


def test_an_infinity_in_the_carry_is_allowed_and_an_update_that_overflows_is_found() -> None:
    def infinite(params: Any, carry: Any, batch: Any, key: Any) -> Any:
        return params["w"].sum() * 3e38, jnp.full_like(carry, jnp.inf)

    optimizer = optax.sgd(10.0)
    step = make_step(infinite, optimizer)
    state = begin({"w": jnp.full(2, 1e-3)}, optimizer, carry=jnp.zeros(3))
    report = step.first_nonfinite(state, jnp.zeros(1))  # type: ignore[attr-defined]
    assert report.primitive in ("mul", "integer_pow", "square")
    assert "norm" in report.name or "updates" in report.name


@pytest.mark.bad_input
def test_a_step_that_cannot_search_is_an_error() -> None:
    optimizer = optax.sgd(0.01)
    with pytest.raises(TypeError, match=r"`check_finite` needs a step with a method `first_nonfinite"):
        fit(lambda state, batch: (state, {}), initial(optimizer), batch_at, steps=2, check_finite=True, progress=False)


def test_a_run_without_a_failure_has_none_to_load(tmp_path: Path) -> None:
    state = initial(optax.sgd(0.01))
    with pytest.raises(FileNotFoundError, match=r"must have a step that was not finite; got no .*failure"):
        RunDirectory(tmp_path).load_failure(state, batch_at(0))
