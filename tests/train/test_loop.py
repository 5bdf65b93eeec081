import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rnnscan.train import RunDirectory, Stopped, TrainState, begin, fit, make_step
from rnnscan.train.metrics import Metrics


OPTIMIZER = optax.adam(0.05)


def loss(params: Any, carry: Any, batch: Any, key: Any) -> Any:
    """It depends on all that a step is given."""
    noise = 0.1 * jax.random.normal(key, carry.shape)
    carry = jnp.tanh(carry @ params["u"] + batch @ params["w"] + noise)
    return jnp.mean((carry - 0.5) ** 2), carry


STEP = make_step(loss, OPTIMIZER, clip_norm=1.0)


def batch_at(step: int) -> np.ndarray:
    return np.random.default_rng(step).normal(size=(3, 2)).astype(np.float32)


def initial() -> TrainState:
    keys = jax.random.split(jax.random.key(3), 2)
    params = {"w": jax.random.normal(keys[0], (2, 4)), "u": jax.random.normal(keys[1], (4, 4))}
    return begin(params, OPTIMIZER, carry=jnp.zeros((3, 4)), seed=5)


def train(state: TrainState, steps: int, *, batches: Any = batch_at, **options: Any) -> TrainState:
    return fit(STEP, state, batches, steps=steps, progress=False, **options)


def assert_same(actual: Any, expected: Any) -> None:
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        if jnp.issubdtype(one.dtype, jax.dtypes.prng_key):
            one, other = jax.random.key_data(one), jax.random.key_data(other)
        np.testing.assert_array_equal(one, other)


class Interrupted(RunDirectory):
    """A run that ends abruptly while the metrics of step 8 are written."""

    def log(self, step: int, metrics: Metrics) -> None:
        super().log(step, metrics)
        if step == 8:
            raise InterruptedError


def restart_every(steps: int) -> Callable[[int, Any], Any]:
    return lambda step, carry: jnp.zeros((3, 4)) if step % steps == 0 else carry


@pytest.mark.parametrize(
    "batches",
    [batch_at, [batch_at(step) for step in range(7)], lambda: (batch_at(step) for step in range(12))],
    ids=["function", "list", "iterable"],
)
def test_a_run_that_goes_on_ends_as_an_undisturbed_one_bit_for_bit(tmp_path: Path, batches: Any) -> None:
    def given() -> Any:
        return batches() if batches is not batch_at and callable(batches) else batches

    options = {"carry_at": restart_every(6), "checkpoint_every": 3}
    whole = RunDirectory(tmp_path / "whole")
    expected = train(initial(), 12, batches=given(), run=whole, **options)

    with pytest.raises(InterruptedError):
        train(initial(), 12, batches=given(), run=Interrupted(tmp_path / "parts"), **options)
    parts = RunDirectory(tmp_path / "parts")
    assert parts.logged_step() == 8
    state = parts.restore(initial())
    assert int(state.step) == 6
    assert_same(train(state, 12, batches=given(), run=parts, **options), expected)

    assert parts.metrics_file.read_text() == whole.metrics_file.read_text()
    assert whole.logged_step() == whole.latest_step() == 12
    assert sorted(int(path.name) for path in whole.checkpoints.iterdir()) == [9, 12]


def test_a_longer_run_goes_on_where_a_shorter_one_ended() -> None:
    assert_same(train(train(initial(), 5), 9), train(initial(), 9))
    done = train(initial(), 5)
    assert train(done, 5) is done


def test_the_state_that_is_given_stays_as_it_is() -> None:
    state = initial()
    first = train(state, 4)
    assert_same(state, initial())
    assert_same(train(state, 4), first)


def test_the_carry_goes_from_step_to_step_and_begins_anew_where_asked_for() -> None:
    """With parameters that stay, so that each carry follows from the batches alone."""
    optimizer = optax.sgd(0.0)
    state = initial()
    state = state._replace(optimizer_state=optimizer.init(state.params))
    step = make_step(lambda params, carry, batch, key: (jnp.sum(params["w"]), carry + batch.sum()), optimizer)
    seen: list[tuple[int, float]] = []

    def carry_at(number: int, carry: Any) -> Any:
        seen.append((number, float(carry[0, 0])))
        return jnp.zeros((3, 4)) if number % 3 == 0 else carry

    given: dict[str, Any] = {"steps": 7, "progress": False}
    reset = fit(step, state, batch_at, carry_at=carry_at, **given)
    carried = fit(step, state, batch_at, **given)

    sums = [float(batch_at(number).sum()) for number in range(7)]
    np.testing.assert_allclose(carried.carry, sum(sums), rtol=1e-5)
    np.testing.assert_allclose(reset.carry, sums[6], rtol=1e-5)
    assert [number for number, _ in seen] == list(range(7))
    np.testing.assert_allclose([value for _, value in seen[3:]], [sum(sums[:3]), *np.cumsum(sums[3:6])], rtol=1e-5)


def test_a_step_skipped_where_the_carry_begins_anew_leaves_it_new() -> None:
    bad = [batch_at(0), np.full((3, 2), np.nan, np.float32)]
    state = train(initial(), 2, batches=bad, carry_at=restart_every(1))
    np.testing.assert_array_equal(state.carry, 0)
    assert int(state.skipped) == 1


def test_metrics_are_a_line_of_json_for_each_step(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "deep" / "run")
    bad = [batch_at(0), np.full((3, 2), np.inf, np.float32), batch_at(2)]
    train(initial(), 3, batches=bad, run=run)

    def no_constant(name: str) -> None:
        raise AssertionError(name)

    lines = [json.loads(line, parse_constant=no_constant) for line in run.metrics_file.read_text().splitlines()]
    assert lines == run.read_metrics()
    assert all(list(line) == ["step", "loss", "gradient_norm", "skipped"] for line in lines)
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert [line["skipped"] for line in lines] == [0, 1, 1]
    assert lines[1]["loss"] is lines[1]["gradient_norm"] is None or lines[1]["gradient_norm"] is None
    assert lines[0]["loss"] > 0
    assert lines[0]["gradient_norm"] > 0


def test_evaluations_are_written_beside_the_metrics_of_their_step(tmp_path: Path) -> None:
    run, seen = RunDirectory(tmp_path), []

    def evaluate(state: TrainState) -> dict[str, Any]:
        seen.append(int(state.step))
        return {"held_out": jnp.sum(state.params["w"]), "rows": 3}

    final = train(initial(), 7, run=run, evaluate=evaluate, evaluate_every=3)

    assert seen == [3, 6, 7]
    lines = run.read_metrics()
    assert [line["step"] for line in lines if "held_out" in line] == seen
    assert lines[-1]["held_out"] == float(jnp.sum(final.params["w"]))
    assert lines[-1]["rows"] == 3
    assert_same(final, train(initial(), 7))

    train(initial(), 2, evaluate=evaluate)
    assert seen[3:] == [2]
    with pytest.raises(ValueError, match=r"names other than the step's metrics; got 'loss'\. Rename it"):
        train(initial(), 1, evaluate=lambda state: {"loss": 0.0})


def test_steps_that_are_not_finite_in_a_row_end_the_training_at_last(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    bad = [batch_at(0), *[np.full((3, 2), np.nan, np.float32)] * 4]
    assert int(train(initial(), 10, batches=bad, most_skipped=4).skipped) == 8
    with pytest.raises(
        FloatingPointError,
        match=r"no more than 3 steps in a row may be skipped .*; got 4, the last of them step 5 with the loss nan and ",
    ):
        train(initial(), 10, batches=bad, most_skipped=3, run=run, checkpoint_every=2)
    assert [line["loss"] is None for line in run.read_metrics()] == [False, True, True, True, True]
    # Those before a kill are counted.
    with pytest.raises(FloatingPointError, match=r"got 4, the last of them step 5"):
        train(run.restore(initial()), 10, batches=bad, most_skipped=3, run=run)


def send_at(number: int, sent: signal.Signals) -> Callable[[int], np.ndarray]:
    """Batches, and a signal when that of a step is asked for."""

    def batch(step: int) -> np.ndarray:
        if step == number:
            os.kill(os.getpid(), sent)
        return batch_at(step)

    return batch


def test_sigterm_ends_after_the_step_and_saves_first(tmp_path: Path) -> None:
    run, handler = RunDirectory(tmp_path), signal.getsignal(signal.SIGTERM)

    with pytest.raises(Stopped) as stopped:
        train(initial(), 9, batches=send_at(4, signal.SIGTERM), run=run, checkpoint_every=3)

    assert stopped.value.code == 143
    assert int(stopped.value.state.step) == run.latest_step() == run.logged_step() == 5
    assert signal.getsignal(signal.SIGTERM) is handler
    assert_same(run.restore(initial()), stopped.value.state)
    assert_same(train(run.restore(initial()), 9, run=run), train(initial(), 9))


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Ctrl-C raises, also where the shell started the tests in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("last", [False, True])
def test_ctrl_c_ends_after_the_step_and_saves_first(tmp_path: Path, last: bool) -> None:
    run, handler = RunDirectory(tmp_path), signal.getsignal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(initial(), 5 if last else 9, batches=send_at(4, signal.SIGINT), run=run, checkpoint_every=3)

    assert run.latest_step() == run.logged_step() == 5
    assert signal.getsignal(signal.SIGINT) is handler
    assert_same(train(run.restore(initial()), 9, run=run), train(initial(), 9))


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_while_the_last_checkpoint_is_written_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, save = RunDirectory(tmp_path), RunDirectory.save

    def save_and_interrupt(run: RunDirectory, state: TrainState) -> None:
        save(run, state)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(RunDirectory, "save", save_and_interrupt)
    with pytest.raises(KeyboardInterrupt):
        train(initial(), 3, run=run)
    assert run.latest_step() == 3


def test_without_a_directory_sigterm_is_left_as_it_was() -> None:
    came: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: came.append(number))
    try:
        train(initial(), 3, batches=send_at(1, signal.SIGTERM))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert came == [signal.SIGTERM]


def test_training_in_another_thread_leaves_signals_alone(tmp_path: Path) -> None:
    states: list[TrainState] = []
    handler = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=lambda: states.append(train(initial(), 3, run=RunDirectory(tmp_path))))
    thread.start()
    thread.join()
    assert_same(states[0], train(initial(), 3))
    assert signal.getsignal(signal.SIGTERM) is handler


def test_a_directory_that_is_ahead_of_the_state_is_refused(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    train(initial(), 4, run=run)
    with pytest.raises(ValueError, match=r"got a state after 0 steps, and 4 steps there\. .* `state = run\.restore\("):
        train(initial(), 6, run=run)
    run.clear()
    train(initial(), 2, run=run)
    assert run.logged_step() == 2


def test_the_progress_shows_the_loss_and_what_was_skipped(capsys: pytest.CaptureFixture[str]) -> None:
    bad = [batch_at(0), np.full((3, 2), np.nan, np.float32), batch_at(2)]
    state = fit(STEP, initial(), bad, steps=3)
    error = capsys.readouterr().err
    assert "100%|" in error
    assert "3/3, loss 1.005, 1 skipped [" in error

    fit(STEP, state, batch_at, steps=4, describe=lambda metrics, speed: f"{metrics['loss']:.1f} {speed > 0}")
    assert "4/4, 0.9 True, 1 skipped [" in capsys.readouterr().err
    train(state, 4)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, r"fit: `steps` must be a whole number of at least 1; got 0\."),
        ({"evaluate_every": 0}, r"fit: `evaluate_every` must be a whole number of at least 1; got 0\."),
        ({"checkpoint_every": 0}, r"fit: `checkpoint_every` must be a whole number of at least 1; got 0\."),
        ({"steps": 2.5}, r"fit: `steps` must be a whole number of at least 1; got 2\.5\."),
        ({"evaluate_every": 2}, r"fit: `evaluate_every` must be given with a function; got no `evaluate`\."),
        ({"evaluate": lambda state: {"step": 7}}, r"fit: `evaluate` must return names .*; got 'step'\."),
        ({"most_skipped": -1}, r"fit: `most_skipped` must be at least 0; got -1\."),
        ({"checkpoint_every": 2}, r"fit: `checkpoint_every` must be given with a directory; got no `run`\."),
    ],
)
def test_numbers_that_cannot_be_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fit(STEP, initial(), batch_at, **{"steps": 3, "progress": False, **options})


@pytest.mark.bad_input
def test_a_path_is_no_run() -> None:
    with pytest.raises(
        TypeError, match=r"^fit: `run` must be a RunDirectory, .* Write run=RunDirectory\('runs/mine'\)"
    ):
        train(initial(), 1, run="runs/mine")
