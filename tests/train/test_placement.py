"""Training on a mesh, against training on one device. The tests have two devices."""

import shutil
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec

from rnnscan.train import RunDirectory, Text, TrainConfig, begin, make_mesh, place_rows, place_state
from rnnscan.train.language_training import begin_on_mesh, train_language_model
from tiers import variants


SMALL = TrainConfig(hidden=8, layers=2, embedding=4, batch=4, window=8, steps=5)


def assert_lies_as(state, other):
    def check(leaf, like):
        assert leaf.sharding.is_equivalent_to(like.sharding, leaf.ndim)

    jax.tree.map(check, state, other)


@pytest.mark.parametrize("axis", variants(["data", "model"], ["model"]))
def test_losses_and_parameters_are_those_of_one_device_and_the_state_stays_where_it_was_put(axis, tmp_path, text):
    runs = {name: RunDirectory(tmp_path / name) for name in ("one", "two")}
    mesh = make_mesh({axis: 2})
    one = train_language_model(SMALL, text, run=runs["one"])
    two = train_language_model(SMALL, text, run=runs["two"], mesh=mesh)

    losses = [[line["loss"] for line in run.read_metrics()] for run in runs.values()]
    assert len(losses[0]) == 5
    np.testing.assert_allclose(*losses, rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5), one.params, two.params)
    assert_lies_as(two, begin_on_mesh(SMALL, mesh))
    sharded = {"data": two.carry, "model": two.params}[axis]
    assert any(not leaf.sharding.is_fully_replicated for leaf in jax.tree.leaves(sharded))


def test_a_run_goes_on_from_a_checkpoint_on_another_mesh(tmp_path: Path, text: Text) -> None:
    config, run = replace(SMALL, checkpoint_every=3), RunDirectory(tmp_path)
    whole = train_language_model(config, text, run=run, mesh=make_mesh({"data": 2}))
    shutil.rmtree(run.checkpoints / "5")

    mesh = make_mesh({"model": 2})
    begun = begin_on_mesh(config, mesh)
    restored = run.restore(begun)
    assert int(restored.step) == 3
    assert_lies_as(restored, begun)
    resumed = train_language_model(config, text, state=restored, run=run, mesh=mesh)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5), resumed.params, whole.params)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"rows": 2}, r"an axis must be one of 'data', 'model'; got 'rows'"),
        ({"data": 0}, r"at least 1 device; got data=0"),
        ({"data": 64, "model": 2}, r"at most \d+, which are there; got 64 x 2 = 128"),
    ],
)
def test_a_mesh_that_cannot_be_made_is_an_error(sizes, message):
    with pytest.raises(ValueError, match=message):
        make_mesh(sizes)


@pytest.mark.parametrize(
    ("axis", "change", "message"),
    [
        ("data", {"batch": 3}, r"2 devices of the axis 'data' must divide the streams; got batch=3"),
        ("model", {"hidden": 7}, r"must divide the hidden units; got 7"),
    ],
)
def test_what_the_devices_do_not_divide_is_an_error_before_training(axis, change, message, text):
    with pytest.raises(ValueError, match=message):
        train_language_model(replace(SMALL, **change), text, mesh=make_mesh({axis: 2}))


def test_what_an_optimizer_keeps_of_a_parameter_lies_beside_it():
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))
    state = begin({"w": jnp.ones((4, 2)), "b": jnp.ones(3)}, optimizer, carry={"h": jnp.ones((2, 3)), "count": 0})
    specs = {"w": PartitionSpec("model", None), "b": PartitionSpec()}
    placed = place_state(state, optimizer, make_mesh({"data": 1, "model": 2}), specs)
    adam = placed.optimizer_state[1][0]
    assert adam.mu["w"].sharding.spec == adam.nu["w"].sharding.spec == PartitionSpec("model", None)
    assert placed.carry["h"].sharding.spec == PartitionSpec("data")
    assert placed.carry["count"].sharding.spec == adam.count.sharding.spec == PartitionSpec()
    jax.tree.map(np.testing.assert_array_equal, jax.tree.leaves(placed.params), jax.tree.leaves(state.params))


def test_each_device_reads_its_own_rows_of_a_batch():
    read = []

    class File(np.ndarray):
        def __getitem__(self, index):
            read.append(index[1].indices(4)[:2])
            return np.asarray(super().__getitem__(index))

    batch = np.arange(12).reshape(3, 4)
    placed = place_rows(batch.view(File), make_mesh({"data": 2}), PartitionSpec(None, "data"))
    assert sorted(read) == [(0, 2), (2, 4)]
    np.testing.assert_array_equal(placed, batch)
