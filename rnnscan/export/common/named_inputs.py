"""The inputs of an exported function, by the names of its arguments."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from rnnscan._util.messages import describe


def by_name(fn: Any, inputs: Any, function: str = "export.save") -> tuple[dict[str, Any], Callable[..., Any]]:
    """Name the inputs.

    Args:
        fn: the function of parameters and inputs.
        inputs: an example of each input, in order or by name.
        function: the function that is called, for messages.

    Returns:
        The inputs by name, and the function of the parameters and the inputs in this order.

    Raises:
        TypeError: if they are no list, tuple or dictionary.
        ValueError: if there are none.
    """
    if isinstance(inputs, Mapping):
        names = list(inputs)
        if not names:
            raise ValueError(f"{function}: there must be an input; got an empty dictionary.")
        return dict(inputs), lambda params, *values: fn(params, **dict(zip(names, values, strict=True)))
    if not isinstance(inputs, list | tuple) or not inputs:
        raise TypeError(
            f"{function}: `inputs` must be a list, tuple or dictionary with an example of each input; got "
            f"{describe(inputs)}. Write [xs] for a function of one input."
        )
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    known = [name for name, parameter in inspect.signature(fn).parameters.items() if parameter.kind in kinds][1:]
    names = [known[number] if number < len(known) else f"input_{number}" for number in range(len(inputs))]
    return dict(zip(names, inputs, strict=True)), fn
