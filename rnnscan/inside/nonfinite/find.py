"""first_nonfinite(): the first value that is not finite, in a cell, a net or any function."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import Any
from weakref import WeakValueDictionary

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import keystr

from rnnscan import _checks as checks
from rnnscan._util.flax_modules import is_module_of
from rnnscan._util.messages import describe, describe_tree, in_words, is_array_like, is_float
from rnnscan.inside.cell_or_function import Attempt, is_cell, may_be_cell
from rnnscan.inside.nonfinite.bodies import Body, with_constants_as_inputs
from rnnscan.inside.nonfinite.calls import ARGUMENTS, scan_call
from rnnscan.inside.nonfinite.dependence import not_finite
from rnnscan.inside.nonfinite.describe import describe_argument, describe_operation, labels_of
from rnnscan.inside.nonfinite.labels import PlainScans
from rnnscan.inside.nonfinite.locate import blame
from rnnscan.inside.nonfinite.loops import open_jaxpr, walk_function
from rnnscan.inside.nonfinite.report import Nonfinite
from rnnscan.ir.jaxprs import all_equations
from rnnscan.ir.traits import SCANS, Kind, names_of
from rnnscan.nets.base import Net
from rnnscan.paths import paths_from
from rnnscan.scan_observer import observing_scans
from rnnscan.scan_runner import ScanRunner
from rnnscan.scanning import scan


def first_nonfinite(function: Any, *arguments: Any, loss: Any = None, **options: Any) -> Nonfinite | None:
    """Find the first value that is NaN or infinite and reaches the results: step, row, name, operation and line.

    It calls the function once, as it is, and looks at the results. Only if one of them is not finite, it runs the
    function again with each scan as a plain `lax.scan`, and follows the elements that are not finite back: through the
    operations, the loops step by step, and the arguments. A mask of -inf whose effect is finite is never reported.

    Args:
        function: a function of arrays, such as a jitted training step or `jax.value_and_grad(loss)`; or a cell or a
            net, which is run over time; or a module of Flax. A plain function with three arguments is a cell if `scan`
            takes it with them.
        arguments: those of the function, pytrees of arrays. For a cell they are `(params, carry, xs)`, for a net
            `(params, xs)`, for a module of Flax linen `(variables, *inputs)`.
        loss: for a cell or a net: a function of the results `(carry, ys)` that returns a scalar. Its gradients are
            looked at too.
        options: for a cell those of `scan`, for a net those of its call, for a module of Flax linen those of `apply`.

    Returns:
        The report, whose text is a sentence; None if all results are finite.

    Raises:
        TypeError: if an argument is no pytree of arrays, the function returns no floating-point array, or an option is
            unknown.
        ValueError: if the function donated its arguments, so that it cannot run again, or a plain function may be a
            cell, and may be a function that takes all steps at once.
        TypeError, ValueError: as the function raises for these arguments.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import rnnscan as rs
        >>> cell = rs.cells.GRU(4)
        >>> xs = jnp.ones((6, 2, 3))
        >>> params, carry = cell.init(jax.random.key(0), input_size=3), cell.initial_carry(xs[0])
        >>> rs.first_nonfinite(cell, params, carry, xs)
        >>> report = rs.first_nonfinite(cell, params, carry, xs.at[4, 1, 0].set(jnp.nan))
        >>> print(report)
        step 4, row 1, forward: xs holds nan at [4, 1, 0]
        >>> report.step, report.row
        (4, 1)
    """
    checks.check_has_values("first_nonfinite", arguments, options)
    target = _target(function, arguments, options, loss)
    results = _results(target)
    if bool(_all_finite(_floats(results))):
        return None
    _check_not_donated(target.arguments)
    return _search(target) or _search(target, plain=False) or _unknown(target, results)


@dataclass(frozen=True)
class _Target:
    """A function to search.

    Attributes:
        function: the function.
        arguments: its arguments.
        names: the names of its parameters, as far as they are known; None: those of its signature.
        result_places: from the results to the places of their leaves.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    names: Sequence[str] | None
    result_places: Callable[[Any], Sequence[str]]

    @property
    def places(self) -> list[str]:
        """The places of the arguments' leaves, in words. A run that is finite needs none."""
        names = _parameters(self.function) if self.names is None else self.names
        unnamed = (f"argument {number}" for number in range(len(names), len(self.arguments)))
        return [
            f"{root}{keystr(path)}" if root else keystr(path).strip("[]'")
            for root, argument in zip([*names[: len(self.arguments)], *unnamed], self.arguments, strict=True)
            for path, _ in jax.tree_util.tree_leaves_with_path(argument)
        ]


def _target(function: Any, arguments: tuple[Any, ...], options: dict[str, Any], loss: Any) -> _Target:
    names = None
    if loss is None and is_module_of(function, "linen") and function.scope is None:
        function, names, options = partial(function.apply, **options), ["variables", *_parameters(function)], {}
    if loss is not None or options or _is_cell(function, arguments):
        call, arguments = scan_call(function, arguments, options, loss)
        target = _Target(call, arguments, ARGUMENTS, call.result_places)
    else:
        if not callable(function):
            raise TypeError(
                "first_nonfinite: the first argument must be a function of arrays, a cell or a net; got "
                f"{describe(function)}. Write first_nonfinite(function, *arguments)."
            )
        target = _Target(function, arguments, names, _places_of_results)
    leaves = jax.tree.leaves(target.arguments)
    if not all(map(is_array_like, leaves)):
        place, leaf = next(pair for pair in zip(target.places, leaves, strict=True) if not is_array_like(pair[1]))
        raise TypeError(
            f"first_nonfinite: arguments must be pytrees of arrays; got {describe(leaf)} at {place}. Bind other "
            "arguments with functools.partial."
        )
    return target


def _is_cell(function: Any, arguments: tuple[Any, ...]) -> bool:
    """Whether a call without options is that of a cell or net."""
    if isinstance(function, Net | ScanRunner) or hasattr(function, "initial_carry"):
        return True
    if len(arguments) != 3 or not callable(function) or not may_be_cell(function):
        return False
    if not all(is_array_like(leaf) for leaf in jax.tree.leaves(arguments)):
        return False
    as_cell = Attempt.at(partial(scan, function), *arguments)
    if as_cell.failure is not None:
        return False
    as_function = Attempt.at(function, *arguments)
    words = in_words(function)
    if as_function.failure is None and not _may_be_whole(as_function, arguments[1]):
        return True
    message = (
        f"first_nonfinite: `{words}` must be a cell or a function of arrays; got a function that can be both. Write "
        "rs.first_nonfinite(lambda arguments: function(*arguments), (params, carry, xs)) for the function, and "
        "rs.first_nonfinite(functools.partial(rs.scan, cell), params, carry, xs) for the cell."
    )
    return is_cell(as_cell, as_function, message)


def _may_be_whole(as_function: Attempt, carry: Any) -> bool:
    """Whether a call that works may be what is meant, though a scan works too.

    A step that takes all inputs at once has no loop, and broadcasts the carry.
    """
    if as_function.scans or any(each.primitive.name in _LOOPS for each in all_equations(as_function.closed.jaxpr)):
        return True
    returned, _ = as_function.types  # A cell returns a pair.
    return _shapes(returned) == _shapes(jax.tree.map(jnp.asarray, carry))


def _shapes(tree: Any) -> tuple[Any, list[Any]]:
    return jax.tree.structure(tree), [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(tree)]


_LOOPS = SCANS.union(names_of(Kind.LOOP))


def _parameters(function: Any) -> list[str]:
    """The names of a function's parameters, as far as they are known."""
    try:
        parameters = signature(function).parameters.values()
    except (TypeError, ValueError):  # Some callables have no signature.
        return []
    return [each.name for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]


def _places_of_results(results: Any) -> list[str]:
    return [f"result{keystr(path)}" for path, _ in jax.tree_util.tree_leaves_with_path(results)]


# The functions that returned floating-point arrays, by identity. To trace one takes longer than to look at its results.
_known: WeakValueDictionary[int, Any] = WeakValueDictionary()


def _results(target: _Target) -> Any:
    """The results of the function, once it is known that it returns floating-point arrays."""
    function, arguments = target.function, target.arguments
    is_known = _known.get(id(function)) is function
    if not is_known:
        _check_results(jax.eval_shape(function, *arguments))
    results = function(*arguments)
    if is_known:  # With other arguments.
        _check_results(results)
    else:
        with suppress(TypeError):  # A builtin has no weak reference.
            _known[id(function)] = function
    return results


def _check_results(types: Any) -> None:
    if not _floats(types):
        raise TypeError(
            "first_nonfinite: the function must return floating-point arrays; got "
            f"{describe_tree(types)}. Return the values to look at, such as the loss and its gradients."
        )


def _check_not_donated(arguments: Any) -> None:
    if any(isinstance(leaf, jax.Array) and leaf.is_deleted() for leaf in jax.tree.leaves(arguments)):
        raise ValueError(
            "first_nonfinite: a result is not finite, and the function must run again on its arguments; got one that "
            "donates them. Jit it without `donate_argnums` and `donate_argnames`."
        )


def _floats(tree: Any) -> list[Any]:
    return [leaf for leaf in jax.tree.leaves(tree) if is_array_like(leaf) and is_float(jax.typeof(leaf))]


@jax.jit
def _all_finite(leaves: list[Any]) -> Any:
    return jnp.array([jnp.isfinite(leaf).all() for leaf in leaves]).all()


def _search(target: _Target, *, plain: bool = True) -> Nonfinite | None:
    """Search a function; None: its results are finite, or constants.

    Args:
        target: the function.
        plain: whether its scans run as plain ones. Else they run as they would.
    """
    places: list[str] = []
    leaves, structure = jax.tree.flatten(target.arguments)

    def flat(*leaves: Any) -> list[Any]:
        results = target.function(*jax.tree.unflatten(structure, leaves))
        places[:] = target.result_places(results)
        return jax.tree.leaves(results)

    with observing_scans(PlainScans() if plain else None), paths_from(()):
        body, constants = with_constants_as_inputs(open_jaxpr(jax.make_jaxpr(flat)(*leaves)))
    leaves = [jnp.asarray(leaf) for leaf in (*leaves, *constants)]
    walk = walk_function(body, leaves)
    inputs = [*target.places, *(f"a {describe(each)} that the function closes over" for each in constants)]
    arguments = [*zip(inputs, leaves, walk.inputs, strict=True)]

    def held(is_to_blame: Callable[[Any], Any]) -> Nonfinite | None:
        for place, leaf, mask in arguments:
            if mask is not None and (where := mask & is_to_blame(np.asarray(leaf))).any():
                return describe_argument(place, leaf, where, _sizes(body, place, leaf))
        return None

    report = held(lambda leaf: np.isnan(leaf) | (leaf.real == np.inf))
    if report is None and (blamed := blame(walk)) is not None:
        report = describe_operation(blamed, inputs, places)
    return report or held(lambda leaf: True)


def _sizes(body: Body, place: str, leaf: Any) -> tuple[int | None, int | None]:
    """The numbers of steps and rows, for an argument that has these axes first."""
    for label in labels_of(body):
        if label.rows is not None and leaf.shape[:2] == (label.steps, label.rows):
            return label.steps, label.rows
        if label.rows is not None and place.startswith("carry") and leaf.shape[:1] == (label.rows,):
            return None, label.rows
    return None, None


def _unknown(target: _Target, results: Any) -> Nonfinite:
    """The report of results that are finite where the operations run one by one."""
    for place, leaf in zip(target.result_places(results), jax.tree.leaves(results), strict=True):
        if is_array_like(leaf) and is_float(leaf) and (mask := not_finite(leaf)) is not None:
            origin = f"{place}, which is finite where the operations run one by one,"
            return describe_argument(origin, leaf, mask, (None, None))
    raise AssertionError("a result is not finite")
