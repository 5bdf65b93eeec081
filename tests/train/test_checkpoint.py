import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from rnnscan.train import RunDirectory, TrainState, begin, fit, make_step
from tiers import variants


def state_at(step: int, *, width: int = 3) -> TrainState:
    """A state of which no two leaves and no two steps are the same."""
    params = {"w": jnp.arange(float(width)) + step, "low": jnp.array([step + 0.5], jnp.bfloat16)}
    carry = (jnp.full((2, 3), 1 / 3 + step), jax.random.key(step))
    state = begin(params, optax.adam(1e-3), carry=carry, seed=step)
    return state._replace(step=jnp.int32(step), skipped=jnp.int32(step + 1), skipped_in_a_row=jnp.int32(step + 2))


def assert_same(actual: Any, expected: Any) -> None:
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert one.dtype == other.dtype
        if jnp.issubdtype(one.dtype, jax.dtypes.prng_key):
            one, other = jax.random.key_data(one), jax.random.key_data(other)
        np.testing.assert_array_equal(one, other)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoints of steps 3 and 7."""
    run = RunDirectory(tmp_path_factory.mktemp("run"))
    run.save(state_at(3))
    run.save(state_at(7))
    return run.checkpoints


@pytest.fixture
def run(written: Path, tmp_path: Path) -> RunDirectory:
    """A run with copies of these checkpoints."""
    run = RunDirectory(tmp_path / "run")
    copy(written, run.checkpoints)
    return run


def copy(source: Path, to: Path) -> None:
    for path in source.rglob("*"):
        if path.is_file():
            (to / path.relative_to(source)).parent.mkdir(parents=True, exist_ok=True)
            (to / path.relative_to(source)).write_bytes(path.read_bytes())


def test_a_state_is_restored_as_it_was_saved(run: RunDirectory) -> None:
    assert_same(run.restore(state_at(0)), state_at(7))


def test_empty_arrays_are_restored(tmp_path: Path) -> None:
    """QRNN(window=1) and Mamba2(window=1) have one in their carry."""
    run, state = RunDirectory(tmp_path), state_at(3)._replace(carry=(jnp.ones(2), jnp.ones((2, 0, 3))))
    run.save(state)
    assert_same(run.restore(state._replace(carry=(jnp.zeros(2), jnp.zeros((2, 0, 3))))), state)


def test_arrays_that_would_have_one_name_are_refused_before_a_step(tmp_path: Path) -> None:
    run, state = RunDirectory(tmp_path), state_at(0)._replace(params={"a": {"b": jnp.ones(2)}, "a.b": jnp.ones(3)})
    message = (
        r"save: the names of arrays must differ .*; got .*\['a'\]\['b'\] and .*\['a.b'\], which are both 'params.a.b'"
    )
    with pytest.raises(ValueError, match=message):
        run.save(state)
    with pytest.raises(ValueError, match=message):
        fit(lambda state, batch: pytest.fail("a step ran"), state, [None], steps=1, run=run, progress=False)
    assert not list(tmp_path.rglob("*state*"))


def test_a_state_like_that_saved_may_be_its_types(run: RunDirectory) -> None:
    types = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), state_at(0))
    assert_same(run.restore(types), state_at(7))


def test_the_last_two_checkpoints_are_kept(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    for step in (1, 2, 10):
        run.save(state_at(step))
    assert run.latest_step() == 10
    assert sorted(path.name for path in run.checkpoints.iterdir()) == ["10", "2"]


def test_a_checkpoint_of_the_same_step_is_replaced(run: RunDirectory) -> None:
    other = state_at(7)._replace(carry=state_at(5).carry)
    run.save(other)
    assert_same(run.restore(state_at(0)), other)
    assert sorted(path.name for path in run.checkpoints.iterdir()) == ["3", "7"]


def test_what_a_kill_left_of_a_checkpoint_is_not_read_and_is_removed(run: RunDirectory) -> None:
    for name in ("8.unfinished", "2.removed"):
        (run.checkpoints / name / "state").mkdir(parents=True)
        (run.checkpoints / name / "state" / "part").touch()
    assert run.latest_step() == 7
    assert int(run.restore(state_at(0)).step) == 7
    run.save(state_at(9))
    assert sorted(path.name for path in run.checkpoints.iterdir()) == ["7", "9"]


def test_without_a_checkpoint_the_initial_state_is_restored(tmp_path: Path) -> None:
    run, state = RunDirectory(str(tmp_path)), state_at(0)
    run.log(1, {"loss": 0.5})
    assert run.logged_step() == 1

    assert run.restore(state) is state
    assert run.read_metrics() == []


def damage(file: Path, how: str) -> None:
    content = file.read_bytes()
    if how == "truncated":
        file.write_bytes(content[:-1])
    elif how == "altered":
        middle = len(content) // 2
        file.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
    else:
        file.unlink()


@pytest.mark.parametrize("how", variants(["truncated", "altered", "missing"], ["altered"]))
def test_a_damaged_file_is_named_and_the_checkpoint_before_is_used(written: Path, tmp_path: Path, how: str) -> None:
    files = [path for path in (written / "7").rglob("*") if path.is_file()]
    assert len(files) > 8
    for number, original in enumerate(files):
        run = RunDirectory(tmp_path / str(number))
        copy(written, run.checkpoints)
        name = original.relative_to(written / "7").as_posix()
        damage(run.checkpoints / "7" / name, how)

        with pytest.warns(UserWarning, match=r"^the checkpoint .*/7 is damaged: its ") as caught:
            restored = run.restore(state_at(0))

        assert name in str(caught[0].message)
        assert f"Resuming from the one before it, {run.checkpoints / '3'}." in str(caught[0].message)
        assert_same(restored, state_at(3))
        assert run.latest_step() == 3
        assert (run.checkpoints / "7.refused").is_dir()


def test_every_file_of_a_checkpoint_is_in_its_manifest(written: Path) -> None:
    files = {path.relative_to(written / "7").as_posix() for path in (written / "7").rglob("*") if path.is_file()}
    manifest = json.loads((written / "7" / "manifest.json").read_text())
    assert set(manifest["files"]) == files - {"manifest.json"}
    assert len(files) > 8


@pytest.mark.parametrize("content", ["", "[]", "{}", "\xff", '{"step": 7, "arrays": {}, "files": {}}'])
def test_a_manifest_that_is_not_one_is_refused(run: RunDirectory, content: str) -> None:
    (run.checkpoints / "7" / "manifest.json").write_text(content, encoding="latin-1")
    with pytest.warns(UserWarning, match=r"7 is damaged: its manifest\.json "):
        assert_same(run.restore(state_at(0)), state_at(3))


def test_a_checkpoint_under_the_number_of_another_is_refused(run: RunDirectory) -> None:
    (run.checkpoints / "7").rename(run.checkpoints / "9")
    with pytest.warns(UserWarning, match=r"9 is damaged: its manifest\.json is that of step 7\."):
        assert_same(run.restore(state_at(0)), state_at(3))


def test_where_all_checkpoints_are_damaged_each_is_named_in_the_error(run: RunDirectory) -> None:
    (run.checkpoints / "3" / "state" / "_METADATA").unlink()
    damage(run.checkpoints / "7" / "state" / "manifest.ocdbt", "altered")
    with pytest.raises(
        ValueError,
        match=r"got none that is: .*/7 is damaged: its file state/manifest\.ocdbt has changed \(SHA-256\); "
        r".*/3 is damaged: its file state/_METADATA is missing\. Restore their files",
    ):
        run.restore(state_at(0))
    assert sorted(path.name for path in run.checkpoints.iterdir()) == ["3", "7"]


def test_going_on_after_a_refusal_writes_the_step_again(run: RunDirectory) -> None:
    for _ in range(2):
        damage(run.checkpoints / "7" / "state" / "_METADATA", "truncated")
        with pytest.warns(UserWarning, match=r"its file state/_METADATA has \d+ bytes of \d+\."):
            run.restore(state_at(0))
        run.save(state_at(7))
        assert sorted(path.name for path in run.checkpoints.iterdir()) == ["3", "7", "7.refused"]
    assert_same(run.restore(state_at(0)), state_at(7))


@pytest.mark.parametrize(
    ("changed", "difference"),
    [
        (
            lambda: state_at(0, width=4),
            r"\.params\['w'\] float32\[4\] for float32\[3\] in .*7, and 2 other differences",
        ),
        (
            lambda: state_at(0)._replace(skipped=jnp.float32(0)),
            r"\.skipped float32\[\] for int32\[\] in .*7, and 0 other differences",
        ),
        (
            lambda: state_at(0)._replace(carry=None),
            r"\.carry\[0\] missing for float32\[2, 3\] in .*7, and 1 other differences",
        ),
    ],
)
def test_a_checkpoint_of_another_model_is_an_error(
    run: RunDirectory, changed: Callable[[], TrainState], difference: str
) -> None:
    with pytest.raises(ValueError, match=r"must have the saved state's arrays; got " + difference):
        run.restore(changed())
    assert run.latest_step() == 7


def test_arrays_are_restored_where_those_given_are(tmp_path: Path) -> None:
    sharding = NamedSharding(jax.make_mesh((2,), ("rows",)), PartitionSpec("rows"))
    optimizer = optax.adam(0.1)
    initial = begin(jax.device_put(jnp.ones(4), sharding), optimizer, seed=1)
    step = make_step(lambda params, carry, batch, key: (jnp.sum(params * jax.random.uniform(key)), None), optimizer)
    state, _ = step(initial, None)
    run = RunDirectory(tmp_path)
    run.save(state)

    restored = run.restore(begin(jax.device_put(jnp.ones(4), sharding), optimizer))

    assert_same(restored, state)
    assert restored.params.sharding == restored.optimizer_state[0].mu.sharding == sharding
    # Would arrays on one device be committed to it, they could not be given beside those on two.
    assert_same(step(restored, None)[0].params, step(state, None)[0].params)


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Ctrl-C raises, also where the shell started the tests in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_waits_until_a_checkpoint_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, save = RunDirectory(tmp_path), ocp.Checkpointer.save

    def interrupt_and_save(*arguments: object, **options: object) -> None:
        signal.raise_signal(signal.SIGINT)
        save(*arguments, **options)

    monkeypatch.setattr(ocp.Checkpointer, "save", interrupt_and_save)
    with pytest.raises(KeyboardInterrupt):
        run.save(state_at(3))
    assert run.latest_step() == 3
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_metrics_are_cut_back_to_the_checkpoint(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    for step in range(1, 6):
        run.log(step, {"loss": step / 10})
        if step == 3:
            run.save(state_at(3))
    with run.metrics_file.open("a") as file:
        file.write('{"step": 6, "lo')  # as a kill leaves it
    assert run.logged_step() == 5

    run.restore(state_at(0))

    lines = [(line["step"], line["loss"]) for line in run.read_metrics()]
    assert lines == [(1, 0.1), (2, 0.2), (3, 0.3)]
    assert run.metrics_file.read_text().count("\n") == 3


def test_fewer_than_two_checkpoints_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"RunDirectory: `keep` must be at least 2, .*; got 1\."):
        RunDirectory(tmp_path, keep=1)
