"""An export in other processes: loaded in one that has not the model's code, and saved in one that is killed."""

import random
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

import rnnscan as rs


pytest.importorskip("flatbuffers")
pytest.importorskip("safetensors")

HERE = Path(__file__).parent


def in_a_fresh_process(folder, inputs):
    given, results = folder.with_suffix(".npz"), folder.with_suffix(".results.npz")
    np.savez(given, **inputs)
    command = [sys.executable, str(HERE / "fresh_process.py"), str(folder), str(given), str(results)]
    subprocess.run(command, check=True, cwd=HERE.parents[1], timeout=300)
    with np.load(results) as outputs:
        return dict(outputs)


@pytest.mark.parametrize("dynamic", [("T", "N"), (None, "N")])
def test_a_trained_model_in_a_process_without_its_code(tmp_path, dynamic):
    model = runpy.run_path(str(HERE / "own_model.py"))
    params, lengths = model["trained"](), (1, 6, 20) if dynamic[0] else (9,)
    folder = tmp_path / "model"
    example = jax.ShapeDtypeStruct((9, 2, 3), np.float32)
    rs.export.save(folder, model["run"], params, [example], dynamic=dynamic, cell=model["CELL"])
    inputs = {f"{steps}x{rows}": model["sequence"](steps, rows) for steps in lengths for rows in (1, 2, 33)}
    outputs = in_a_fresh_process(folder, inputs)
    # With a dynamic length the exported program is the lax engine's.
    exactly = model["by_lax"] if dynamic[0] else model["run"]
    for name, xs in inputs.items():
        expected = jax.jit(exactly)(params, xs)
        np.testing.assert_array_equal(outputs[f"{name}/ys"], expected["ys"])
        np.testing.assert_array_equal(outputs[f"{name}/hidden"], expected["carry"]["hidden"])
        live = jax.jit(model["run"])(params, xs)["ys"]
        np.testing.assert_allclose(outputs[f"{name}/ys"], live, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(outputs[f"{name}/last"], live[-1], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(outputs[f"{name}/streamed"], live[-1], rtol=1e-5, atol=1e-6)


def saved_number(folder):
    number, again = rs.export.load(folder).predict(np.ones(2, np.float32))
    np.testing.assert_array_equal(number, again)
    return int(number[0])


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_a_save_that_is_killed_leaves_the_old_export_or_the_new_one(tmp_path, kills):
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    generator = random.Random(seed)
    folder = tmp_path / "export"
    save = runpy.run_path(str(HERE / "killed_saves.py"))["save"]
    save(folder, 1)
    numbers = [1]
    for _ in range(kills):
        before = (folder / "manifest.json").read_bytes()
        command = [sys.executable, str(HERE / "killed_saves.py"), str(folder), str(numbers[-1] + 1)]
        with subprocess.Popen(command, cwd=HERE.parents[1]) as process:
            while process.poll() is None and (folder / "manifest.json").read_bytes() == before:
                time.sleep(0.01)
            time.sleep(generator.uniform(0, 1))
            process.send_signal(signal.SIGKILL)
            assert process.wait() == -signal.SIGKILL, "it ended before it was killed"
        numbers.append(saved_number(folder))
        print(f"{numbers[-1] - numbers[-2]} saves; in the folder: {sorted(path.name for path in folder.iterdir())}")
        assert numbers[-1] > numbers[-2]
    save(folder, 0)
    assert saved_number(folder) == 0
    assert len(list(folder.iterdir())) == 3
