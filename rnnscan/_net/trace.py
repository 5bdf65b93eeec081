"""Trace a recurrent_net's cell once for its shapes, to find a state that does not fit its link before scan()."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from rnnscan._net.wiring import Wiring
from rnnscan._util.messages import describe
from rnnscan._util.sources import named_after
from rnnscan._util.step_wrappers import type_of_step
from rnnscan.naming import unnamed


def trace_outputs(
    wires: Wiring, cell_net: Callable[..., Any], params: Any, states: Mapping[str, Any], xs: Mapping[str, Any]
) -> list[str]:
    """Trace one step without computing it, check its outputs, and return their names in order.

    Args:
        wires: the names of the net.
        cell_net: the cell.
        params: its parameters.
        states: the initial states, `(N, ...)`.
        xs: the inputs, `(T, N, ...)`.

    Raises:
        ValueError: if a state does not fit its linked output, even if the cell itself fails because of it.
    """
    x = {name: type_of_step(leaf) for name, leaf in xs.items()}
    returned: list[str] = []

    def step(states: Mapping[str, Any], x: Mapping[str, Any]) -> None:
        returned.clear()
        outputs = cell_net(params, **x, **states)
        returned.extend(outputs if isinstance(outputs, Mapping) else [""])
        wires.check_outputs(outputs, states)

    def run(states: Mapping[str, Any]) -> None:
        with unnamed():
            jax.eval_shape(named_after(step, cell_net), states, x)

    try:
        run(states)
    except Exception as error:
        if returned:  # The cell ran, and `check_outputs` raised.
            raise
        # A wrong shape or dtype raises one of these.
        fitting = _states_that_fit(run, states, (params, xs)) if isinstance(error, TypeError | ValueError) else {}
        if fitting:
            raise ValueError(
                "recurrent_net: a state and the output linked to it must have the same shape and dtype; got "
                + " and ".join(f"{describe(states[state])} for the state {state!r}" for state in fitting)
                + ", and the cell fits "
                + " and ".join(
                    f"{describe(leaf)} for the output {wires.links[state]!r}" for state, leaf in fitting.items()
                )
                + ". Check the initial state's shape and dtype. The cell failed with: "
                + str(error).strip().partition("\n")[0]
            ) from error
        error.add_note(_called_with(wires, states, x))
        raise
    return returned


def _states_that_fit(
    run: Callable[[Mapping[str, Any]], None], states: Mapping[str, Any], arguments: Any
) -> dict[str, Any]:
    """Other types of states with which a failing cell runs and returns states of these types."""
    for changed in _other_types(states, arguments):
        try:
            run({**states, **changed})
        except Exception:
            continue
        return changed
    return {}


def _other_types(states: Mapping[str, Any], arguments: Any) -> Iterator[dict[str, Any]]:
    """Candidate types for one state, and for all states of its type: the dtypes and last sizes of the arguments."""
    leaves = [
        leaf for leaf in jax.tree.leaves((states, arguments)) if hasattr(leaf, "shape") and hasattr(leaf, "dtype")
    ]
    sizes = sorted({size for leaf in leaves for size in leaf.shape if isinstance(size, int)})
    dtypes = sorted({leaf.dtype for leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.floating)}, key=str)
    for state, value in states.items():
        alike = [other for other, leaf in states.items() if (leaf.shape, leaf.dtype) == (value.shape, value.dtype)]
        types = [jax.ShapeDtypeStruct((*value.shape[:-1], size), value.dtype) for size in sizes if value.ndim > 1]
        types += [jax.ShapeDtypeStruct(value.shape, dtype) for dtype in dtypes]
        for each in types:
            yield {state: each}
            if alike[0] == state and len(alike) > 1:
                yield dict.fromkeys(alike, each)


def _called_with(wires: Wiring, states: Mapping[str, Any], x: Mapping[str, Any]) -> str:
    described = [", ".join(f"{name} = {describe(leaf)}" for name, leaf in blobs.items()) for blobs in (x, states)]
    links = ", ".join(f"{state} <- {output}" for state, output in wires.links.items())
    return (
        f"recurrent_net: the cell was called with the inputs of one step, {described[0]}, and the states "
        f"{described[1] or 'none'}; the links are {links or 'none'}. Inputs are time-major, (T, N, ...)."
    )
