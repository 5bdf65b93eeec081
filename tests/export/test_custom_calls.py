"""A program may call libraries that JAX guarantees, and no others: a forged one is refused, with the target's name."""

import dataclasses
from importlib import import_module

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from exports import forge_program, save_small, saved_scale


pytest.importorskip("flatbuffers")
pytest.importorskip("safetensors")

custom_calls = import_module("rnnscan.export.custom_calls")

(ROWS,) = jax.export.symbolic_shape("N")
TYPES = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((3, 4), (), (ROWS, 3))]


def program(function, target="none"):
    """A program of the types of `save_small`, which does not tell that JAX's check of the target was off."""
    disabled = [jax.export.DisabledSafetyCheck.custom_call(target)]
    lowered = jax.export.export(jax.jit(function), platforms=["cpu"], disabled_checks=disabled)(*TYPES)
    return dataclasses.replace(lowered, disabled_safety_checks=())


def calling(target):
    def function(kernel, scale, x):
        shape = jax.ShapeDtypeStruct((x.shape[0], 4), jnp.float32)
        call = jax.ffi.ffi_call(target, shape)
        # In the body of a loop, in a function that the program calls.
        return [jax.lax.fori_loop(0, 2, lambda _, ys: jax.jit(call)(ys), scale * x @ kernel)]

    return function


@pytest.mark.parametrize("target", ["foreign", "xla_ffi_python_cpu_callback", "tf.call_tf_function", "mosaic_gpu_v2"])
def test_a_forged_program_with_a_foreign_custom_call(tmp_path, target):
    folder = tmp_path / "saved"
    save_small(folder, 2.0)
    forge_program(folder, "cpu", program(lambda kernel, scale, x: [3 * x @ kernel]))
    assert saved_scale(folder) == 3.0  # the forgery itself is read, so only the call is refused
    for file in folder.glob("*jax_export"):
        file.unlink()
    forge_program(folder, "cpu", program(calling(target), target))
    with pytest.raises(ValueError, match=rf"a program calls '{target}'.*JAX guarantees.*Save or copy it again"):
        rs.export.load(folder)


def test_each_allowed_target_is_one_that_jax_guarantees():
    """JAX refuses to export other targets."""

    def calling_all(x):
        return [jax.ffi.ffi_call(target, x)(x) for target in sorted(custom_calls.ALLOWED)]

    x = jax.ShapeDtypeStruct((2,), jnp.float32)
    exported = jax.export.export(jax.jit(calling_all), platforms=["cpu"])(x)
    assert custom_calls.foreign_calls(exported.mlir_module_serialized) == []
    with pytest.raises(ValueError, match="no compatibility guarantees"):
        jax.export.export(jax.jit(jax.ffi.ffi_call("foreign", x)), platforms=["cpu"])(x)


def test_functions_of_lapack_are_saved_and_loaded(tmp_path):
    def fn(params, x):
        return jnp.linalg.svd(x @ params, compute_uv=False), jnp.linalg.solve(params, params)

    params = np.random.default_rng(0).normal(size=(3, 3)).astype(np.float32)
    x = np.ones((2, 3), np.float32)
    rs.export.save(tmp_path / "saved", fn, params, [x], ["cpu"], ())
    loaded = rs.export.load(tmp_path / "saved")
    jax.tree.map(np.testing.assert_array_equal, loaded.predict(x), jax.jit(fn)(params, x))


def test_a_function_that_could_not_be_loaded_is_not_saved(tmp_path):
    def fn(params, x):
        return jax.ffi.ffi_call("mosaic_gpu_v2", x)(x)

    with pytest.raises(ValueError, match="no custom calls but those that `load` allows; got 'mosaic_gpu_v2' on 'cpu'"):
        rs.export.save(tmp_path / "saved", fn, {}, [jax.ShapeDtypeStruct((2,), jnp.float32)], ["cpu"], ())
    assert not (tmp_path / "saved").exists()


def test_what_is_no_module_is_an_error():
    with pytest.raises(ValueError, match="deserialize"):
        custom_calls.foreign_calls(b"no module")
