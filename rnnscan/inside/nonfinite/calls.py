"""A scan of a cell, or a call of a net, as a function of arrays; with a loss, its gradients too."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.tree_util import keystr

from rnnscan._util.messages import describe_tree, is_float
from rnnscan.inside.options import check_options
from rnnscan.nets.base import Net
from rnnscan.nets.calls import run
from rnnscan.protocols import Cell, check_cell


# The options that hold arrays.
_ARRAYS = ("seq_lengths", "mask", "reset", "reset_to", "key", "first_step")
_FUNCTION = "first_nonfinite"


class ScanCall:
    """A scan of a cell, or a call of a net: `(params, carry, xs, arrays) -> results`.

    Its results are the carry and the outputs; with a loss, the loss and its gradients in all that has any.
    """

    def __init__(self, cell: Any, options: Mapping[str, Any], loss: Callable[..., Any] | None) -> None:
        self._cell, self._loss = cell, loss
        self._options = {name: value for name, value in options.items() if name not in _ARRAYS}
        self.arrays = {name: value for name, value in options.items() if name in _ARRAYS and value is not None}
        check_options(_FUNCTION, cell, options)
        if loss is not None and not callable(loss):
            raise TypeError(
                f"{_FUNCTION}: `loss` must be a function of the results, loss((carry, ys)); got {loss!r}. "
                "Leave it out for the values of the forward pass alone."
            )

    def __call__(self, params: Any, carry: Any, xs: Any, arrays: dict[str, Any]) -> Any:
        """Run it."""
        if self._loss is None:
            return run(self._cell, params, carry, xs, **self._options, **arrays)
        leaves, structure = jax.tree.flatten((params, carry, xs))
        floats = [place for place, leaf in enumerate(leaves) if is_float(jnp.asarray(leaf))]

        def loss_of(some: list[Any]) -> Any:
            every = [*leaves]
            for place, leaf in zip(floats, some, strict=True):
                every[place] = leaf
            params, carry, xs = jax.tree.unflatten(structure, every)
            assert self._loss is not None
            return self._loss(run(self._cell, params, carry, xs, **self._options, **arrays))

        loss = jax.eval_shape(loss_of, [leaves[place] for place in floats])
        if getattr(loss, "shape", None) != () or not is_float(loss):
            raise TypeError(
                f"{_FUNCTION}: `loss` must return a floating-point scalar; got {describe_tree(loss)}. Sum it or take "
                "its mean."
            )
        value, gradients = jax.value_and_grad(loss_of)([leaves[place] for place in floats])
        of_leaves: list[Any] = [None] * len(leaves)
        for place, gradient in zip(floats, gradients, strict=True):
            of_leaves[place] = gradient
        return value, jax.tree.unflatten(structure, of_leaves)

    def result_places(self, results: Any) -> list[str]:
        """The places of the leaves of the results."""
        if self._loss is None:
            roots, parts = ["carry", "ys"], results
        else:
            roots, parts = ["loss", *(f"gradient of {name}" for name in ARGUMENTS[:3])], (results[0], *results[1])
        return [
            f"{root}{keystr(path)}"
            for root, part in zip(roots, parts, strict=True)
            for path, _ in jax.tree_util.tree_leaves_with_path(part)
        ]


ARGUMENTS = ("params", "carry", "xs", "")


def scan_call(
    cell: Any, arguments: tuple[Any, ...], options: dict[str, Any], loss: Any
) -> tuple[ScanCall, tuple[Any, ...]]:
    """A call of a cell `(params, carry, xs)` or of a net `(params, xs)`, and its arguments."""
    order = ("params", "xs") if isinstance(cell, Net) else ("params", "carry", "xs")
    names = dict(zip(order, arguments, strict=False))
    named = {name: options.pop(name) for name in ("params", "carry", "xs") if name in options}
    twice = names.keys() & named.keys()
    given = names | named
    missing = [name for name in order if name not in given and not (name == "xs" and "length" in options)]
    if len(arguments) > len(order) or twice or missing:
        kind = (
            "a net takes (net, params, xs, *, carry=None)"
            if isinstance(cell, Net)
            else "a cell takes (cell, params, carry, xs)"
        )
        got = f"{len(arguments)} arguments" if not twice else f"{min(twice)} twice"
        raise TypeError(f"{_FUNCTION}: {kind}, and options by name; got {got}. Pass each once.")
    if not isinstance(cell, Net):
        check_cell(_FUNCTION, cell, Cell)
    call = ScanCall(cell, options, loss)
    return call, (given["params"], given.get("carry"), given.get("xs"), call.arrays)
