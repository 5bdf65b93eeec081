"""do_net(): a function under other names."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from rnnscan._util.messages import describe, in_words, listing, nearest
from rnnscan.control._named_nets import BOUND, Inputs, inputs_of, run


def do_net(net: Callable[..., Mapping[str, Any]], bindings: Mapping[str, str | None]) -> Callable[..., dict[str, Any]]:
    """Bind the names of a function to outer names.

    The result is a function too, over the outer names. Call it with names, and it returns the outputs:

        outer_net(params, **values) -> {outer name: value}

    Call it with a dictionary, and it returns the dictionary, updated by the outputs. So it is a body of
    `rnnscan.while_net`, whose carry is a dictionary:

        outer_net(params, values) -> {**values, outer name: value, ...}

    One dictionary binds inputs and outputs, so that each inner name stands for one outer name, as in Caffe2's `Do`. The
    function says which are which: it takes its inputs by name, and returns its outputs. An outer name may be bound to
    several inputs, and its gradient is the sum over them. It may be bound to inputs and one output; the function then
    replaces its value.

    The function sees only its bound inputs, so names inside and outside of it cannot collide. Everything is a pure
    function call, so gradients need no saved workspaces.

    Args:
        net: a pure function `function(params, **blobs) -> {name: value}`. Its signature names its inputs. A function
            that `do_net` made may be bound again.
        bindings: `{inner name: outer name}` for every input without a default, and for every output. An output that is
            bound to None is dropped.

    Returns:
        The function over the outer names, for `cond_net`, `while_net`, `recurrent_net` and `do_net`.

    Raises:
        TypeError: if `net` is not a function that names its inputs, or `bindings` is not a dictionary of names.
        ValueError: if an input has no binding, or a binding to None; in a call, if an outer name has no value, a value
            is not bound, an output has no binding, two outputs have the same outer name, or the function neither takes
            nor returns a bound name. The message lists the names.

    Example:
        >>> import jax.numpy as jnp
        >>> import rnnscan as rs
        >>> def multiply_add(params, left, right, sum_prev):
        ...     return {"sum": sum_prev + left * right}
        >>> square = {"left": "x", "right": "x", "sum_prev": "total", "sum": "total"}
        >>> add_square = rs.do_net(multiply_add, square)
        >>> add_square(None, x=jnp.array(3), total=jnp.array(1))
        {'total': Array(10, dtype=int32, weak_type=True)}
        >>> list(add_square(None, {"x": jnp.array(3), "total": jnp.array(1), "other": jnp.array(7)}))
        ['x', 'total', 'other']

    Source: Caffe2's `Do` operator, `CreateScope` and `gen_do_gradient`.
    """
    inputs = _check(net, bindings)
    outer_of = {inner: outer for inner in inputs.names if (outer := bindings.get(inner)) is not None}

    def outer_net(params: Any, dictionary: Mapping[str, Any] | None = None, /, **named: Any) -> dict[str, Any]:
        """Call the function with values by their outer names."""
        outer_values = _outer_values(dictionary, named, outer_of)
        written = run("do_net", "net", net, params, {inner: outer_values[outer] for inner, outer in outer_of.items()})
        _check_written(written, inputs, bindings)
        outputs = {outer: value for inner, value in written.items() if (outer := bindings[inner]) is not None}
        return outputs if dictionary is None else {**dictionary, **outputs}

    vars(outer_net)[BOUND] = tuple(dict.fromkeys(outer_of.values()))
    vars(outer_net)["__signature__"] = _signature(outer_net)
    vars(outer_net)["__wrapped__"] = net  # JAX's messages name it.
    return outer_net


def _signature(outer_net: Callable[..., Any]) -> inspect.Signature:
    """The signature, with the outer names, which a call may have in a dictionary instead."""
    natural = inspect.signature(outer_net)
    try:
        named = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in vars(outer_net)[BOUND]
        ]
        return inspect.Signature([*list(natural.parameters.values())[:2], *named])
    except ValueError:  # Some names are none of parameters, such as "scope/x".
        return natural


def _check(net: Any, bindings: Any) -> Inputs:
    inputs = inputs_of("do_net", "net", net)
    if inputs.takes_any:
        raise TypeError(
            f"do_net: `net` must name its inputs; got {in_words(net)} with **blobs, which does not say which bound "
            "names are inputs. Write a function that names them around it."
        )
    if not isinstance(bindings, Mapping) or not all(
        isinstance(inner, str) and isinstance(outer, str | None) for inner, outer in bindings.items()
    ):
        got = dict(bindings) if isinstance(bindings, Mapping) else describe(bindings)
        raise TypeError(f"do_net: `bindings` must be a dictionary {{inner name: outer name}}; got {got}.")
    unbound = [name for name in inputs.required if bindings.get(name) is None]
    if unbound:
        raise ValueError(
            f"do_net: every input of the function must be bound; got no outer name for {listing(unbound)} in the "
            f"bindings of {listing(bindings)}.{nearest(unbound[0], bindings)}"
        )
    return inputs


def _outer_values(values: Any, named: Mapping[str, Any], outer_of: Mapping[str, str]) -> Mapping[str, Any]:
    """The values by outer name, each input among them."""
    if values is not None and (named or not isinstance(values, Mapping)):
        got = f"names, {listing(named)}, and a dictionary" if named else describe(values)
        raise TypeError(f"do_net: a call must have its values by name, or in one dictionary; got {got}.")
    outer_values = named if values is None else values
    outer_names = dict.fromkeys(outer_of.values())
    missing = [name for name in outer_names if name not in outer_values]
    if missing:
        raise ValueError(
            f"do_net: every outer name that is bound to an input must have a value; got no {listing(missing)} among "
            f"{listing(outer_values)}.{nearest(missing[0], outer_values)}"
        )
    unbound = [name for name in named if name not in outer_names]
    if unbound:
        raise ValueError(
            f"do_net: every value must be bound to an input; got {listing(unbound)}, and the bound names are "
            f"{listing(outer_names)}.{nearest(unbound[0], outer_names)} A dictionary of values may hold other names."
        )
    return outer_values


def _check_written(written: Mapping[str, Any], inputs: Inputs, bindings: Mapping[str, str | None]) -> None:
    unbound = [name for name in written if name not in bindings]
    if unbound:
        raise ValueError(
            f"do_net: every output of the function must be bound; got no outer name for {listing(unbound)} in the "
            f"bindings of {listing(bindings)}.{nearest(unbound[0], bindings)} Bind an output to None to drop it."
        )
    unused = [name for name in bindings if name not in written and name not in inputs.names]
    if unused:
        raise ValueError(
            f"do_net: every bound name must be an input or an output of the function; got {listing(unused)}. The "
            f"function takes {listing(inputs.names)} and returns {listing(written)}."
            f"{nearest(unused[0], [*inputs.names, *written])}"
        )
    inner_of: dict[str, list[str]] = {}
    for inner in written:
        if (outer := bindings[inner]) is not None:
            inner_of.setdefault(outer, []).append(inner)
    twice = [f"{listing(inners)} to {outer!r}" for outer, inners in inner_of.items() if len(inners) > 1]
    if twice:
        raise ValueError(
            f"do_net: every output must have its own outer name; got {' and '.join(twice)}. Give each another name."
        )
