"""Any function as a graph of ONNX, operation by operation, by the package jax2onnx."""

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import jaxpr_as_fun

from rnnscan._util.messages import listing
from rnnscan.export.common.effects import side_effects
from rnnscan.export.common.extras import import_extra
from rnnscan.export.onnx.builder import Port, value_info
from rnnscan.export.onnx.forward_scans import with_forward_scans


def find_jax2onnx() -> ModuleType | None:
    """The package jax2onnx, or None if it is not installed."""
    try:
        return importlib.import_module("jax2onnx")
    except ModuleNotFoundError as error:
        if error.name != "jax2onnx":
            raise
        return None


def function_model(
    jax2onnx: Any,
    called: Callable[..., Any],
    params: Any,
    arguments: list[Any],
    inputs: list[Port],
    outputs: list[Port],
    opset: int,
) -> Any:
    """The model of `called(params, *arguments)`, with the parameters as constants.

    Args:
        jax2onnx: the package.
        called: the function.
        params: its parameters.
        arguments: the types of its other arguments.
        inputs: the graph's inputs, one for each leaf of the arguments.
        outputs: the graph's outputs, one for each leaf of the result.
        opset: the version of ONNX's operators.

    Raises:
        ValueError: if the function has side effects, or jax2onnx has no operator for an operation.
    """
    leaves, structure = jax.tree.flatten(arguments)
    params = jax.tree.map(jnp.asarray, params)

    def of_leaves(*leaves: Any) -> list[Any]:
        return jax.tree.leaves(called(params, *jax.tree.unflatten(structure, leaves)))

    jaxpr = jax.jit(of_leaves).trace(*leaves).jaxpr
    effects = side_effects(jaxpr)
    if effects:
        raise ValueError(
            "export.to_onnx: the function must have no side effects, because a file of ONNX runs no Python; got "
            f"{listing(effects)}. Remove callbacks and prints."
        )
    jaxpr = jax.jit(with_forward_scans(jaxpr)).trace(*leaves).jaxpr
    try:
        # Of the jaxpr, because jax2onnx replaces functions of jnp while it traces, and `jnp.shape` then fails.
        model = jax2onnx.to_onnx(
            jaxpr_as_fun(jaxpr),
            inputs=leaves,
            model_name="rnnscan",
            opset=opset,
            enable_double_precision=any(np.dtype(port.spec.dtype) == np.float64 for port in inputs),
            input_names=[port.name for port in inputs],
            output_names=[port.name for port in outputs],
        )
    except Exception as error:  # It raises many kinds.
        raise ValueError(
            f"export.to_onnx: ONNX must have every operation of the function; jax2onnx says: {error} Write the "
            "function with other operations, or use rnnscan.export.save."
        ) from error
    return _with_outputs(model, outputs)


def _with_outputs(model: Any, outputs: list[Port]) -> Any:
    """The model with our names of the outputs' sizes: jax2onnx leaves that of a loop's steps open."""
    onnx = import_extra("onnx", "onnx")
    del model.graph.output[:]
    model.graph.output.extend(value_info(onnx, port) for port in outputs)
    return model
