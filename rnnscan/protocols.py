"""Three protocols of cells, each with more members than the one before, and their check.

Cell                cell(params, carry, x) -> (carry, y)    scan, explain, memory_report, plan
InitializableCell   ... with `init` and `initial_carry`     the modules of linen and nnx
ComposableCell      ... with `names` and `output_size`      stack, residual, dropout, layer, decoders
"""

import inspect
from typing import Any, Protocol, runtime_checkable

import jax
from jaxtyping import Array

from rnnscan._util.flax_modules import flax_package, is_flax_cell
from rnnscan._util.messages import describe, in_words, listing


@runtime_checkable
class Cell(Protocol):
    """Any callable `cell(params, carry, x) -> (carry, y)`: a function, a `functools.partial`, an object.

    Calling it has no effect besides its result. The new carry has the structure, shapes and dtypes of the old one.

    Example:
        >>> import rnnscan as rs
        >>> def decay(params, carry, x):
        ...     carry = params * carry + x
        ...     return carry, carry
        >>> cell: rs.Cell = decay
    """

    def __call__(self, params: Any, carry: Any, x: Any, /) -> tuple[Any, Any]:
        """One step.

        Args:
            params: the parameters, any pytree.
            carry: the carry, any pytree.
            x: one step's input, any pytree.

        Returns:
            The new carry, and the output y, which may be None.
        """
        ...


@runtime_checkable
class InitializableCell(Cell, Protocol):
    """A cell that makes its own parameters and initial carry.

    Example:
        >>> import rnnscan as rs
        >>> cell: rs.InitializableCell = rs.cells.LSTM(4)
    """

    def init(self, key: Array, input_size: int, /) -> Any:
        """Make parameters.

        Args:
            key: a PRNG key.
            input_size: D, the size of the input's last axis.

        Returns:
            A pytree of arrays.
        """
        ...

    def initial_carry(self, x: Any, /) -> Any:
        """Make the carry before the first step.

        Args:
            x: one step's input, `(N, D)` or `(D,)`. Only its types matter.

        Returns:
            A pytree of arrays `(N, ...)`.
        """
        ...


@runtime_checkable
class ComposableCell(InitializableCell, Protocol):
    """A cell for use in other cells and in nets. All cells of the library are composable.

    Attributes:
        names: the names of the intermediates that a memory choice may list.
        output_size: the size of the output's last axis.

    Example:
        >>> import rnnscan as rs
        >>> cell: rs.ComposableCell = rs.stack(rs.cells.LSTM(4), rs.cells.GRU(4))
    """

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the intermediates that a memory choice may list."""
        ...

    @property
    def output_size(self) -> int:
        """The size of the output's last axis."""
        ...


_MEMBERS: dict[type, tuple[str, ...]] = {
    Cell: (),
    InitializableCell: ("init", "initial_carry"),
    ComposableCell: ("init", "initial_carry", "names", "output_size"),
}


def check_cell(function: str, cell: Any, protocol: type = ComposableCell) -> None:
    """Reject a value that is not a cell.

    Args:
        function: the caller's name, for the message.
        cell: the value.
        protocol: the protocol that the caller needs.

    Raises:
        TypeError: if it lacks a member, or is not callable with three arguments.
    """
    problem = problem_of(cell, protocol)
    if problem is not None:
        members = _MEMBERS[protocol]
        form = "cell(params, carry, x)" + (f" with {_in_words(members)}" if members else "")
        raise TypeError(f"{function}: a cell must be callable as {form}; got {problem}")


def problem_of(cell: Any, protocol: type = ComposableCell) -> str | None:
    """What is no cell, for the message of an error: the value in a line, and how to fix it. None for a cell."""
    members = _MEMBERS[protocol]
    if isinstance(cell, type):
        to = f", to rnnscan.{flax_package(cell)}.RNN" if is_flax_cell(cell) else ""
        return f"the class {_with_package(cell)}. Pass an object of it, {cell.__name__}(...){to}."
    if isinstance(cell, jax.core.Tracer):
        return (
            f"the traced value {describe(cell)}. A cell of your own must be a static argument of jax.jit: name it in "
            "static_argnums, or close over it."
        )
    if hasattr(cell, "runs_in_pieces"):
        return f"the net {cell!r}. A net runs whole sequences, net(params, xs). Pass its cell."
    lacking = [member for member in members if not hasattr(cell, member)]
    if lacking or not callable(cell):
        kind = describe(cell) if flax_package(cell) is None else _with_package(type(cell))
        return f"{kind}{f', without {listing(lacking)}' if lacking else ''}. {_fix(cell, members)}"
    return _signature_problem(cell)


def _with_package(kind: type) -> str:
    """A class by its name, with its package if it is one of Flax, which has two of most names."""
    package = flax_package(kind)
    return kind.__name__ + (f" of flax.{package}" if package and kind.__module__.startswith("flax.") else "")


def _fix(cell: Any, members: tuple[str, ...]) -> str:
    if not members:
        return "The cell comes first: scan(cell, params, carry, xs)."
    if hasattr(cell, "over"):
        return "An attention decoder is a cell once it has an encoder: decoder.over(params, encoder_outputs)."
    package = flax_package(cell)
    if package is not None:
        return f"A cell of flax.{package}, derived from RNNCellBase, goes into rnnscan.{package}.RNN as it is."
    if callable(cell):
        return "A plain function goes into scan, explain, memory_report and plan; this needs an object."
    return "Pass cells one by one, such as rnnscan.cells.LSTM(256)."


def _signature_problem(cell: Any) -> str | None:
    try:
        signature, outer = inspect.signature(cell), inspect.signature(cell, follow_wrapped=False)
    except (TypeError, ValueError):  # Some callables of C extensions have no signature.
        return None
    # A wrapper may add the parameters. One that passes on all arguments takes as many as the function that it wraps.
    passes_on = any(parameter.kind is parameter.VAR_POSITIONAL for parameter in outer.parameters.values())
    if _takes(signature if passes_on else outer, 3):
        return None
    package = flax_package(cell)
    if package is not None:
        applied = " A function may call any module: lambda params, carry, x: module.apply(params, carry, x)."
        return (
            f"the Flax module {_with_package(type(cell))}, which "
            f"{'holds its parameters itself' if package == 'nnx' else 'takes its parameters by `apply`'}. Run a cell "
            f"by rnnscan.{package}.RNN(cell).{applied if package == 'linen' else ''}"
        )
    if _takes(signature, 2):
        return (
            f"{in_words(cell)}{signature}, which takes two arguments, as the function of jax.lax.scan does. Add the "
            "parameters in front, or pass `lambda params, carry, x: function(carry, x)` with params=None."
        )
    return f"{in_words(cell)}{signature}. Bind further arguments by functools.partial, or close over them."


def _takes(signature: inspect.Signature, count: int) -> bool:
    try:
        signature.bind(*[None] * count)
    except TypeError:
        return False
    return True


def _in_words(members: tuple[str, ...]) -> str:
    *first, last = (f"`{member}`" for member in members)
    return f"{', '.join(first)} and {last}"
