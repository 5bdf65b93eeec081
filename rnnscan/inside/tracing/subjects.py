"""What trace() takes: a cell, a net, a Flax module, or a function that runs scans, as a function without arguments."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from rnnscan._util.flax_modules import is_module_of
from rnnscan._util.messages import in_words, listing
from rnnscan.inside.cell_or_function import Attempt, is_cell, may_be_cell
from rnnscan.inside.options import ARGUMENTS, SCAN_OPTIONS, check_options
from rnnscan.inside.tracing.recorder import STOPS_BY_A_CONDITION
from rnnscan.nets.axes import check_positional
from rnnscan.nets.base import Net
from rnnscan.scan_runner import ScanRunner
from rnnscan.scanning import scan


@dataclass(frozen=True)
class Subject:
    """A function with its arguments.

    Attributes:
        function: the function.
        arguments: its arguments.
        options: its keyword arguments.
        words: what it is, for titles.
    """

    function: Callable[..., Any]
    arguments: Sequence[Any]
    options: Mapping[str, Any]
    words: str

    def arrays(self) -> list[Any]:
        """The arrays among the arguments. Numbers are no arrays: the function may branch on them."""
        return [leaf for leaf in jax.tree.leaves((self.arguments, self.options)) if _is_array(leaf)]

    def of_arrays(self, *arrays: Any) -> Any:
        """Call the function with other arrays. `nnx.jit` may not change modules that are constants of a trace."""
        leaves, structure = jax.tree.flatten((self.arguments, self.options))
        others = iter(arrays)
        leaves = [next(others) if _is_array(leaf) else leaf for leaf in leaves]
        arguments, options = jax.tree.unflatten(structure, leaves)
        return self.function(*arguments, **options)


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray)


def subject_of(function: Any, arguments: Sequence[Any], options: Mapping[str, Any]) -> Subject:
    """The call that a user means.

    Raises:
        TypeError: if the arguments fit neither.
        ValueError: if a function may be a cell, and may be a function that runs scans.
    """
    if isinstance(function, Net):
        return _net(function, arguments, options)
    if is_module_of(function, "linen") and function.scope is None:
        return Subject(function.apply, arguments, options, type(function).__name__)
    module = _nnx_module(function, arguments, options)
    if module is not None:
        return module
    if not callable(function):
        raise TypeError(
            "trace: the first argument must be a cell, a net, a Flax module or a function that runs scans; got "
            f"{in_words(function)}."
        )
    as_function = Subject(function, arguments, options, in_words(function))
    if isinstance(function, ScanRunner) or hasattr(function, "initial_carry"):
        return _cell(function, arguments, options)
    named = [option for option in options if option not in SCAN_OPTIONS]
    if not may_be_cell(function):
        return as_function
    if len(arguments) + len({*named} & {*ARGUMENTS}) not in (2, 3) or not {*named} <= {*ARGUMENTS}:
        return as_function
    return _cell_or_function(as_function)


def _cell(cell: Any, arguments: Sequence[Any], options: Mapping[str, Any]) -> Subject:
    check_options("trace", cell, options)
    _check_count(cell, arguments, options, ("params", "carry"), "trace(cell, params, carry, xs)")
    return _scan_of(cell, arguments, options)


def _scan_of(cell: Any, arguments: Sequence[Any], options: Mapping[str, Any]) -> Subject:
    return Subject(lambda *arguments, **options: scan(cell, *arguments, **options), arguments, options, in_words(cell))


def _check_count(
    cell: Any, arguments: Sequence[Any], options: Mapping[str, Any], needed: Sequence[str], call: str
) -> None:
    """Reject a call with too few or too many arguments."""
    missing = [name for name in needed[len(arguments) :] if name not in options]
    if missing or len(arguments) > len(ARGUMENTS):
        raise TypeError(
            f"trace: {in_words(cell)} takes {call}; got {len(arguments)} positional arguments after it"
            f"{f', and no {listing(missing)}' if missing else ''}."
        )


def _net(net: Any, arguments: Sequence[Any], options: Mapping[str, Any]) -> Subject:
    check_positional("trace", arguments[2:], call="trace(net, params, xs, carry=carry)")
    check_options("trace", net, options)
    _check_count(net, arguments, options, ("params", "xs"), "trace(net, params, xs, carry=carry)")
    return Subject(net, arguments, options, in_words(net))


def _nnx_module(module: Any, arguments: Sequence[Any], options: Mapping[str, Any]) -> Subject | None:
    """A module of `flax.nnx`, split into its graph and its state: what a call changes of it is dropped."""
    if not is_module_of(module, "nnx"):
        return None
    from flax import nnx

    graph, state = nnx.split(module)
    return Subject(
        lambda state, *arguments, **options: nnx.merge(graph, state)(*arguments, **options),
        (state, *arguments),
        options,
        type(module).__name__,
    )


def _cell_or_function(subject: Subject) -> Subject:
    """A function of three arguments: a cell if `scan` takes it with them, or one that runs scans of its own."""
    cell = _scan_of(subject.function, subject.arguments, subject.options)
    as_cell, as_function = (Attempt.at(each.of_arrays, *each.arrays()) for each in (cell, subject))
    if as_function.failure is None and not as_function.scans:
        as_function = Attempt(no_scan(subject.words))
    message = (
        f"trace: `{subject.words}` must be a cell or a function that runs scans; got a function that can be both. "
        "Write rs.trace(lambda: function(...)) for the function, and rs.trace(lambda: rs.scan(cell, params, carry, "
        "xs)) for the cell."
    )
    if is_cell(as_cell, as_function, message):
        return cell
    if as_function.failure is None:
        return subject
    assert as_cell.failure is not None
    is_no_scan = isinstance(as_function.failure, NoScanError)
    raise as_cell.failure if is_no_scan and len(subject.arguments) == 3 else as_function.failure


class NoScanError(ValueError):
    """Raised where a function runs no scan."""


def no_scan(words: str) -> NoScanError:
    """The error of a function that runs no scan."""
    return NoScanError(
        f"trace: the function must run a scan of rnnscan: `rs.scan`, a net, `rs.recurrent_net` or an RNN of rs.linen "
        f"or rs.nnx; got `{words}`, which runs none. For jax.lax.scan(f, init, xs) write rs.scan(lambda _, carry, x: "
        f"f(carry, x), None, init, xs). {STOPS_BY_A_CONDITION}: they cannot be traced. A cell comes with its "
        "arguments: rs.trace(cell, params, carry, xs)."
    )
