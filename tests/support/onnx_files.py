"""Nets written as ONNX files, run by onnxruntime and compared with the nets."""

from pathlib import Path
from typing import Any

import jax
import numpy as np

import rnnscan as rs


SIZE = 3
LENGTHS = np.array([7, 0, 3, 9], np.int32)  # of 7 steps: all of them, none, some, and more than there are.


def random_tree(types: Any, seed: int = 0, scale: float = 0.7) -> Any:
    """Random numbers in place of the leaves of a pytree; no zeros."""
    random = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: random.normal(size=leaf.shape, scale=scale).astype(leaf.dtype), types)


def random_params(net: Any, seed: int = 0, scale: float = 0.7) -> Any:
    return random_tree(jax.eval_shape(lambda: net.init(jax.random.key(0), SIZE)), seed, scale)


def arguments(
    net: Any, *, lengths: bool, initial: bool, steps: int = 7, seed: int = 0, dtype: Any = np.float32
) -> dict[str, Any]:
    """Random inputs of a net by name. Padding is NaN."""
    rows = len(LENGTHS)
    found: dict[str, Any] = {"xs": random_tree(jax.ShapeDtypeStruct((steps, rows, SIZE), dtype), seed)}
    if lengths:
        found["seq_lengths"] = LENGTHS
        for row, length in enumerate(LENGTHS):
            found["xs"][length:, row] = np.nan
    if initial:
        found["carry"] = random_tree(jax.eval_shape(net.initial_carry, found["xs"]), seed + 1)
    return found


def run(path: Path, inputs: dict[str, Any]) -> dict[str, np.ndarray]:
    """The outputs of a file by name, for inputs in the structure that they had when it was written."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options)
    names = [one.name for one in session.get_inputs()]
    outputs = [one.name for one in session.get_outputs()]
    leaves = [np.asarray(leaf) for tree in inputs.values() for leaf in jax.tree.leaves(tree)]
    return dict(zip(outputs, session.run(outputs, dict(zip(names, leaves, strict=True))), strict=True))


def run_net(net: Any, params: Any, inputs: dict[str, Any]) -> list[np.ndarray]:
    """The outputs of a net and the leaves of its last carry."""
    carry, ys = jax.jit(net)(params, **inputs)
    return [np.asarray(leaf) for leaf in (ys, *jax.tree.leaves(carry))]


def one_row(net: Any, inputs: dict[str, Any], row: int) -> dict[str, Any]:
    """The inputs of one row, without its padding."""
    steps = len(inputs["xs"])
    length = min(int(inputs["seq_lengths"][row]), steps) if "seq_lengths" in inputs else steps
    chosen = {"xs": inputs["xs"][:length, row : row + 1]}
    for name in set(inputs) - {"xs"}:
        chosen[name] = jax.tree.map(lambda leaf: leaf[row : row + 1], inputs[name])
    return {name: chosen[name] for name in inputs}


def check(
    path: Path, net: Any, inputs: dict[str, Any], *, seed: int = 0, scale: float = 0.7, tolerance: float = 1e-5
) -> dict[str, Any]:
    """Write a net, and compare the file with the net, and with itself for single rows of other lengths."""
    params = random_params(net, seed, scale)
    rs.export.to_onnx(path, net, params, inputs)
    found, expected = run(path, inputs), run_net(net, params, inputs)
    assert next(iter(found)) == "ys"
    for (name, one), other in zip(found.items(), expected, strict=True):
        assert one.dtype == other.dtype, name
        assert_near(one, other, name, tolerance)
    for row in range(len(LENGTHS)):
        alone = one_row(net, inputs, row)
        if len(alone["xs"]):
            for name, part in run(path, alone).items():
                whole = found[name]
                whole = whole[: len(alone["xs"]), row : row + 1] if name == "ys" else whole[row : row + 1]
                assert_near(part, whole, f"{name}, row {row}", tolerance)
    return found


def assert_near(one: np.ndarray, other: np.ndarray, name: str, tolerance: float) -> None:
    # Unbounded activations make large values, whose rounding errors spread to small ones.
    scale = tolerance * max(1.0, float(np.abs(other).max(initial=0)))
    np.testing.assert_allclose(one, other, rtol=tolerance, atol=scale, err_msg=name)
