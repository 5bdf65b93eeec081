"""Calls that cannot fit this machine, or their budget, are refused before they are tried."""

from collections.abc import Mapping
from math import prod
from typing import Any

import jax

import rnnscan as rs
from rnnscan._util.byte_sizes import budget_bytes, readable_bytes
from rnnscan._util.machine_memory import machine_bytes
from rnnscan.cli.cells import Example
from rnnscan.nets.calls import run
from rnnscan.planning.arguments import Arguments
from rnnscan.planning.choose import check_holds_outputs
from rnnscan.planning.lower_bound import recurrent_output_bytes
from rnnscan.train import TrainConfig, begin_language_model


def check_fits(example: Example, *, last_only: bool, budget: int = 0) -> None:
    """Reject a call whose arguments and results alone exceed the memory of this machine. Nothing is computed.

    Args:
        example: the cell and the shapes of its arguments.
        last_only: whether the loss depends on the last carry alone, so that the other outputs need no memory.
        budget: the budget to plan for. One above the memory of this machine is for another machine.

    Raises:
        ValueError: if the call cannot fit.
    """
    arguments = (example.params, example.carry, example.xs)
    carry, ys = jax.eval_shape(lambda *arrays: rs.scan(example.cell, *arrays), *arguments)
    parts = {
        "inputs": _bytes((example.carry, example.xs)),
        "outputs": _bytes(carry if last_only else (carry, ys)),
        "parameters": _bytes(example.params),
    }
    _check(parts, "--batch, --length, --inputs or --hidden", at_most=budget)


def check_budget(example: Example, budget: str) -> None:
    """Reject a budget below the bytes of the outputs of recurrent work, which every memory choice needs.

    The loss reads the outputs, and so do its cotangents. Nothing is compiled.

    Args:
        example: the cell and the shapes of its arguments. The loss reads every output.
        budget: the bytes of a training step besides arguments and results.

    Raises:
        ValueError: if nothing can fit.
    """
    arguments = Arguments(run, example.cell, example.params, example.carry, example.xs, {})
    check_holds_outputs(budget_bytes(budget), recurrent_output_bytes(arguments), only_last="--last-only")


def check_model_fits(config: TrainConfig) -> None:
    """Reject a model whose parameters and optimizer state exceed the memory of this machine. Nothing is computed.

    Raises:
        ValueError: if the model cannot fit.
    """
    state = jax.eval_shape(lambda: begin_language_model(config))
    parts = {
        "carry": _bytes(state.carry),
        "parameters": _bytes(state.params),
        "optimizer state": _bytes(state.optimizer_state),
    }
    _check(parts, "--hidden, --layers, --embedding or --batch")


def _check(parts: Mapping[str, int], options: str, *, at_most: int = 0) -> None:
    available, needed = machine_bytes(), sum(parts.values())
    if available is None or needed <= max(available, at_most):
        return
    listed = ", ".join(f"{name} {readable_bytes(nbytes)}" for name, nbytes in parts.items())
    raise ValueError(
        f"rnnscan: the call must fit the memory of this machine, {readable_bytes(available)}; got one that needs at "
        f"least {readable_bytes(needed)}: {listed}. Lower {options}."
    )


def _bytes(tree: Any) -> int:
    return sum(prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
