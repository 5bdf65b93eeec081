"""Functions over named values, `function(params, **blobs) -> {name: value}`: the names that they take and write."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rnnscan._util.messages import describe, in_words, listing


# The attribute of a function made by `do_net` that has the names of its inputs. They need not be names of parameters.
BOUND = "_bound_names"


@dataclass(frozen=True)
class Inputs:
    """The names that a function takes.

    Attributes:
        of_params: the name of its first parameter, which gets the parameters.
        names: the names after it.
        required: those without a default.
        takes_any: whether it takes any other name too, by `**blobs`.
    """

    of_params: str
    names: tuple[str, ...]
    required: tuple[str, ...]
    takes_any: bool

    def among(self, names: Iterable[str]) -> list[str]:
        """The names, of the given ones, that the function takes."""
        return [name for name in names if self.takes_any or name in self.names]


def inputs_of(function: str, argument: str, net: Any) -> Inputs:
    """Read the names that a function takes off its signature.

    Args:
        function: the caller's name, for messages.
        argument: the name of the caller's argument that is the function.
        net: the function.

    Raises:
        TypeError: if it is not a function.
    """
    expected = f"{function}: `{argument}` must be a function, function(params, **blobs) -> {{name: value}}"
    if not callable(net):
        raise TypeError(f"{expected}; got {describe(net)}. Pass a function.")
    if hasattr(net, BOUND):
        return Inputs("", getattr(net, BOUND), getattr(net, BOUND), takes_any=False)
    try:
        parameters = list(inspect.signature(net).parameters.values())
    except (TypeError, ValueError):  # Some callables have no signature.
        return Inputs("params", (), (), takes_any=True)
    if not parameters or parameters[0].kind in (parameters[0].KEYWORD_ONLY, parameters[0].VAR_KEYWORD):
        raise TypeError(
            f"{expected}; got {in_words(net)}{inspect.signature(net)}, which does not take the parameters first. "
            "Add `params` in front."
        )
    unnamed = [each.name for each in parameters[1:] if each.kind is each.POSITIONAL_ONLY and each.default is each.empty]
    if unnamed:
        raise TypeError(
            f"{expected}; got {in_words(net)}{inspect.signature(net)}, which takes {listing(unnamed)} by place alone. "
            "Move the `/` behind the parameters."
        )
    named = [each for each in parameters[1:] if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]
    return Inputs(
        of_params=parameters[0].name if parameters[0].kind is parameters[0].POSITIONAL_OR_KEYWORD else "",
        names=tuple(each.name for each in named),
        required=tuple(each.name for each in named if each.default is each.empty),
        takes_any=any(each.kind is each.VAR_KEYWORD for each in parameters),
    )


def run(function: str, argument: str, net: Callable[..., Any], params: Any, blobs: Mapping[str, Any]) -> dict[str, Any]:
    """Run a function, and check that it returns a dictionary.

    Raises:
        TypeError: if it does not. Errors in the function get a note with the types of its inputs.
    """
    try:
        written = net(params, **blobs)
    except Exception as error:
        shown = ", ".join(f"{name} = {describe(value)}" for name, value in blobs.items())
        error.add_note(f"{function}: `{argument}` was called with {shown or 'no inputs'}.")
        raise
    if not isinstance(written, Mapping) or not all(isinstance(name, str) for name in written):
        got = f"the keys {listing(written)}" if isinstance(written, Mapping) else describe(written)
        raise TypeError(
            f"{function}: `{argument}` must return a dictionary {{name: value}}; got {got}. "
            "Return {} from a function that writes nothing."
        )
    return dict(written)
