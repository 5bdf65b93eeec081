"""Make a `Model` of what a user passes: a cell, a net or a function."""

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from rnnscan._util.flax_modules import is_module_of
from rnnscan._util.messages import describe, in_words, listing
from rnnscan.checking.arguments import check_takes
from rnnscan.checking.flax_modules import of_module
from rnnscan.checking.model import Model
from rnnscan.nets.base import Net, run_net
from rnnscan.protocols import Cell, check_cell
from rnnscan.scanning import scan


_OF_SCAN = ("reset", "seq_lengths", "memory", "engine", "parallel", "key", "first_step", "carry")
_OF_CELLS = frozenset((*_OF_SCAN, "reverse"))

# The names under which a function may take the packed documents of its inputs, and the valid steps.
_DOCUMENTS: dict[str, Callable[[Any], Any]] = {
    "reset": lambda reset: reset,
    "document_ids": lambda reset: jnp.cumsum(reset, axis=0, dtype=jnp.int32),
    "segment_ids": lambda reset: jnp.cumsum(reset, axis=0, dtype=jnp.int32),
}
_PADDING: dict[str, Callable[[Any, int], Any]] = {
    "seq_lengths": lambda lengths, steps: lengths,
    "mask": lambda lengths, steps: jnp.arange(steps)[:, None] < lengths,
}


def as_model(
    model: Any, arguments: tuple[Any, ...], carry: Any, time_major: bool | None
) -> tuple[Model, tuple[Any, Any, Any]]:
    """A model and its arguments.

    Args:
        model: what the user passes.
        arguments: the positional arguments after it.
        carry: the carry, if it is passed by name.
        time_major: whether the inputs of a Flax module are time-major; None: as the module says.

    Returns:
        The model, and the tuple (params, carry, xs).

    Raises:
        TypeError: if it is nothing of the kind, or the arguments do not fit it.
    """
    if is_module_of(model, "linen", "nnx"):
        return of_module(model, arguments, carry, time_major)
    if time_major is not None:
        raise TypeError(
            f"check: `time_major` is for modules of Flax; got time_major={time_major} and {in_words(model)}. Leave it "
            "out, and pass xs time-major."
        )
    if isinstance(model, Net):
        params, xs = _unpack(model, arguments, "check(net, params, xs, carry=carry)", 2)
        return _of_net(model), (params, carry, xs)
    if len(arguments) == 3:
        check_cell("check", model, Cell)
        if carry is not None:
            raise TypeError("check: the carry of a cell is its third argument; got it by name too. Pass it once.")
        params, carry, xs = arguments
        return _of_cell(model), (params, carry, xs)
    if hasattr(model, "initial_carry") or hasattr(model, "init"):
        _unpack(model, arguments, "check(cell, params, carry, xs)", 3)
    params, xs = _unpack(model, arguments, "check(cell, params, carry, xs), or check(function, params, xs)", 2)
    if carry is not None:
        raise TypeError("check: a function (params, xs) -> ys takes no carry; got one. Pass a cell with a carry.")
    return _of_function(model), (params, (), xs)


def _unpack(model: Any, arguments: tuple[Any, ...], call: str, count: int) -> tuple[Any, ...]:
    if not callable(model):
        raise TypeError(f"check: a cell, net, function or module comes first; got {describe(model)}. Write {call}.")
    if len(arguments) != count:
        raise TypeError(f"check: {in_words(model)} takes {call}; got {len(arguments)} arguments after the first.")
    return arguments


def _of_cell(cell: Any) -> Model:
    axes = getattr(cell, "input_axes", None)
    start = getattr(cell, "initial_carry", None)
    return Model(
        title=in_words(cell),
        kind="cell",
        run=partial(_run_cell, cell),
        options=_OF_CELLS,
        start=None if start is None else lambda params, xs: start(_first(xs)),
        step=cell,
        cell=cell,
        says_rows=None if axes is None else lambda ndim: ndim == len(axes) + 3,
        init=_init_of(cell),
    )


def _init_of(model: Any) -> Callable[[int], Any] | None:
    return (lambda features: model.init(jax.random.key(0), features)) if hasattr(model, "init") else None


def _run_cell(cell: Any, params: Any, carry: Any, xs: Any, **options: Any) -> tuple[Any, Any]:
    return scan(cell, params, cell.initial_carry(_first(xs)) if carry is None else carry, xs, **options)


def _first(xs: Any) -> Any:
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape[1:], leaf.dtype), xs)


def _of_net(net: Net) -> Model:
    of_net: Any = net
    axes = net.input_axes
    return Model(
        title=in_words(net),
        kind="net",
        run=partial(run_net, net),
        options=frozenset(_OF_SCAN),
        start=lambda params, xs: of_net.initial_carry(xs),
        backward=net.needs_whole,
        cell=net,
        says_rows=None if axes is None else lambda ndim: ndim == len(axes) + 3,
        init=_init_of(net),
    )


def _of_function(function: Any, what: str = "the model") -> Model:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    named = {each.name for each in parameters[2:] if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)}
    needed = [each.name for each in parameters[2:] if each.default is each.empty and each.name in named]
    documents = next((name for name in _DOCUMENTS if name in named), None)
    padding = next((name for name in _PADDING if name in named), None)
    unknown = set(needed) - {documents, padding, "key"}
    if unknown:
        raise TypeError(
            f"check: a function must be (params, xs[, reset][, seq_lengths]) -> ys, with {listing(_DOCUMENTS)} for "
            f"packed documents and {listing(_PADDING)} for padding; got {in_words(function)}, which needs "
            f"{listing(sorted(unknown))}. Bind other arguments by functools.partial. A cell takes three arguments "
            "after it: check(cell, params, carry, xs)."
        )

    check_takes(what, function, 2, "(params, xs) -> ys", needed)

    def run(params: Any, carry: Any, xs: Any, *, reset: Any = None, seq_lengths: Any = None) -> tuple[Any, Any]:
        steps, rows = jax.tree.leaves(xs)[0].shape[:2]
        options = {}
        if documents is not None and (reset is not None or documents in needed):
            options[documents] = _DOCUMENTS[documents](jnp.zeros((steps, rows), bool) if reset is None else reset)
        if padding is not None and (seq_lengths is not None or padding in needed):
            lengths = jnp.full(rows, steps, jnp.int32) if seq_lengths is None else seq_lengths
            options[padding] = _PADDING[padding](lengths, steps)
        if "key" in needed:
            options["key"] = None
        return (), function(params, xs, **options)

    options = {"reset": documents, "seq_lengths": padding}
    return Model(
        title=in_words(function),
        kind="function",
        run=run,
        options=frozenset(name for name, found in options.items() if found is not None),
        cell=function,
    )


def form_of(model: Model, name: str, form: Callable[..., Any]) -> Model:
    """Another form of a model: a function of the same arguments.

    Raises:
        TypeError: if it takes others.
    """
    if model.kind == "function":
        return replace(model, run=_of_function(form, f"the form {name!r}").run)
    check_takes(f"the form {name!r}", form, 3, "(params, carry, xs) -> (carry, ys)")
    return replace(model, run=lambda params, carry, xs: form(params, carry, xs))
