"""The names of a recurrent_net: its inputs, states, outputs and links."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from rnnscan._util.messages import (
    describe,
    is_array_like,
    is_count,
    is_key,
    is_weak,
    leaves_with_places,
    listing,
    nearest,
)
from rnnscan._util.ranks import over_rows
from rnnscan._util.zeros import zeros_of_step, zeros_sharded_like


@dataclass(frozen=True)
class Wiring:
    """The arguments of recurrent_net that hold names, and their checks."""

    inputs: Mapping[str, Any]
    states: Mapping[str, Any]
    links: Mapping[str, str]
    aliases: Mapping[str, tuple[str, int]]
    timestep: str | None
    outputs_with_grads: tuple[str, ...] | tuple[int, ...] | None

    def check(self) -> None:
        """Reject missing, unknown and duplicate names before the cell is traced."""
        for argument, value in (
            ("inputs", self.inputs),
            ("initial_cell_inputs", self.states),
            ("links", self.links),
            ("aliases", self.aliases),
        ):
            if not isinstance(value, Mapping):
                raise TypeError(
                    f"recurrent_net: `{argument}` must be a dictionary keyed by name; got {type(value).__name__}. "
                    f"Write {argument}={{<name>: <value>}}."
                )
        self._check_names()
        if not self.inputs:
            raise ValueError(
                "recurrent_net: `inputs` must have at least one input; got none. For a function without inputs use "
                "rnnscan.scan with xs=None and `length`."
            )
        self._check_outputs_with_grads()
        self._check_unique()
        self._check_links()
        self._check_aliases()

    def _check_names(self) -> None:
        if self.timestep is not None and not isinstance(self.timestep, str):
            raise TypeError(
                "recurrent_net: `timestep` must be the name under which the cell receives the number of the step, or "
                f'None; got {self.timestep!r}. Write timestep="timestep".'
            )
        names = {
            "inputs": self.inputs,
            "initial_cell_inputs": self.states,
            "links": [*self.links, *self.links.values()],
            "aliases": self.aliases,
        }
        for argument, listed in names.items():
            wrong = [name for name in listed if not isinstance(name, str)]
            if wrong:
                raise TypeError(
                    f"recurrent_net: the names in `{argument}` must be strings; got {wrong[0]!r}. The cell receives "
                    "and returns values by name."
                )

    def _check_outputs_with_grads(self) -> None:
        chosen = self.outputs_with_grads
        if isinstance(chosen, str) or is_count(chosen, least=0):
            raise TypeError(
                "recurrent_net: `outputs_with_grads` must be a tuple of names or positions; got "
                f"{chosen!r}. Write outputs_with_grads=({chosen!r},)."
            )
        if chosen is None:
            return
        names = isinstance(chosen, tuple | list) and all(isinstance(name, str) for name in chosen)
        positions = isinstance(chosen, tuple | list) and all(is_count(position, least=0) for position in chosen)
        if not names and not positions:
            linked = [f"{output}_{part}" for output in self.links.values() for part in ("all", "last")]
            raise TypeError(
                "recurrent_net: `outputs_with_grads` must be a tuple of names, or one of positions from 0 on; got "
                f"{chosen!r}. The results begin with {listing(linked)}."
            )

    def _check_unique(self) -> None:
        received = ["params", *self.inputs, *self.states, *([] if self.timestep is None else [self.timestep])]
        twice = sorted({name for name in received if received.count(name) > 1})
        if twice:
            raise ValueError(
                "recurrent_net: inputs, states and timestep must have different names, other than 'params'; got "
                f"{listing(twice)} more than once. Rename one of each."
            )

    def _check_links(self) -> None:
        for state in self.states:
            if state not in self.links:
                raise ValueError(
                    f"recurrent_net: every state in `initial_cell_inputs` must be linked to an output; got no link "
                    f"for {state!r}, and links for {listing(self.links)}. Write links={{{state!r}: <output>, ...}}, or "
                    "move a constant to `params`."
                )
        for state, output in self.links.items():
            if state not in self.states:
                raise ValueError(
                    f"recurrent_net: every link must start at a state in `initial_cell_inputs`; got a link of "
                    f"{state!r} to {output!r}, and the states {listing(self.states)}.{nearest(state, self.states)} "
                    "Write links as {state: output}."
                )
        linked = list(self.links.values())
        for output in linked:
            if linked.count(output) > 1:
                raise ValueError(
                    f"recurrent_net: every state must have its own output; got {output!r} linked to "
                    f"{listing(state for state in self.links if self.links[state] == output)}. "
                    "Return the value under two names."
                )

    def _check_aliases(self) -> None:
        for alias, target in self.aliases.items():
            if not (isinstance(target, tuple) and len(target) == 2 and isinstance(target[1], int)):
                raise TypeError(
                    f"recurrent_net: an alias must be a pair (state, offset); got {target!r} for {alias!r}. "
                    'Write aliases={"hidden_t_states": ("hidden_t_prev", 0)}.'
                )
            state = target[0]
            if state not in self.states:
                raise ValueError(
                    f"recurrent_net: an alias must be of a state in `initial_cell_inputs`; got {alias!r} of {state!r}, "
                    f"and the states {listing(self.states)}.{nearest(state, self.states)}"
                )

    def check_signature(self, cell_net: Callable[..., Any]) -> None:
        """Reject a cell that does not take the inputs and states by name."""
        try:
            signature = inspect.signature(cell_net)
        except (TypeError, ValueError):  # Some callables have no signature.
            return
        names = [*self.inputs, *self.states, *([] if self.timestep is None else [self.timestep])]
        try:
            signature.bind(None, **dict.fromkeys(names))
        except TypeError as error:
            parameters = list(signature.parameters.values())[1:]
            named = [each for each in parameters if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)]
            taken = [each.name for each in named]
            missing = [each.name for each in named if each.default is each.empty and each.name not in names]
            message = (
                "recurrent_net: the cell must take params, then every input and state by name; got a cell that takes "
                f"{listing(taken)}, and the names {listing(names)} ({error})."
            )
            if "timestep" in missing and self.timestep is None:
                message += ' Pass timestep="timestep" to give it the index of the step.'
            elif missing:
                message += f" Add {listing(missing)} to `inputs` or `initial_cell_inputs`.{nearest(missing[0], names)}"
            else:
                message += " Remove the others from `inputs` and `initial_cell_inputs`."
            raise ValueError(message) from None

    def check_reset(self, reset: Any, reset_to: Any) -> None:
        """Reject `reset` without `reset_to`, the reverse, and a `reset_to` without every state."""
        if reset_to is None and reset is None:
            return
        example = f"reset_to={{{next(iter(self.states), 'hidden_t_prev')!r}: <its value at an episode's start>, ...}}"
        if reset is None or reset_to is None:
            missing = "reset" if reset is None else "reset_to"
            raise ValueError(
                f"recurrent_net: `reset` and `reset_to` must be given together; got no `{missing}`. Write {example}."
            )
        if not isinstance(reset_to, Mapping) or sorted(reset_to) != sorted(self.states):
            got = listing(reset_to) if isinstance(reset_to, Mapping) else type(reset_to).__name__
            raise ValueError(
                f"recurrent_net: `reset_to` must be a dictionary with every state, {listing(self.states)}; got {got}. "
                f"Write {example}."
            )

    def check_outputs(self, outputs: Any, states: Mapping[str, Any]) -> None:
        """Reject outputs of the cell that do not fit a link or an alias. Called while the cell is traced."""
        if not isinstance(outputs, Mapping):
            raise TypeError(
                f"recurrent_net: the cell must return a dictionary {{output name: value}}; got {describe(outputs)}."
            )
        for state, output in self.links.items():
            if output not in outputs:
                raise ValueError(
                    f"recurrent_net: every link must end at an output of the cell; got a link of {state!r} to "
                    f"{output!r}, and the cell returned {listing(outputs)}.{nearest(output, outputs)}"
                )
            self._check_link(state, states[state], output, outputs[output])
        results = self.result_names(outputs)
        twice = sorted({result for result in results if results.count(result) > 1})
        if twice:
            raise ValueError(
                f"recurrent_net: every result must have its own name; got {listing(twice)} more than once among the "
                "outputs and the aliases. Rename the output or the alias."
            )
        self.results_with_grads(outputs)

    def results_with_grads(self, outputs: Iterable[str]) -> list[str]:
        """The names of the results that pass gradients on, if the cell returns these outputs."""
        results = self.result_names(outputs)
        chosen: list[Any] = list(results if self.outputs_with_grads is None else self.outputs_with_grads)
        for name in chosen:
            if not isinstance(name, str) and name >= len(results):
                raise ValueError(
                    f"recurrent_net: a position in `outputs_with_grads` must be from 0 to {len(results) - 1}; got "
                    f"{name}. The results are {listing(results)}, in this order."
                )
            if isinstance(name, str) and name not in results:
                raise ValueError(
                    f"recurrent_net: every name in `outputs_with_grads` must be a result; got {name!r}, and the "
                    f"results are {listing(results)}.{nearest(name, results)}"
                )
        return [name if isinstance(name, str) else results[name] for name in chosen]

    def _check_link(self, state: str, value: Any, output: str, returned: Any) -> None:
        if not is_array_like(returned):
            raise TypeError(
                f"recurrent_net: an output that is linked to a state must be an array; got {type(returned).__name__} "
                f"for {output!r}, linked to {state!r}. Give each of its arrays a name and a link."
            )
        # A weakly typed state, such as a Python number, takes the dtype of its output.
        same_shape = jnp.shape(returned) == value.shape
        if not same_shape or (jnp.result_type(returned) != value.dtype and not is_weak(value)):
            shared = jnp.ndim(self.states[state]) != value.ndim
            raise (TypeError if same_shape else ValueError)(
                f"recurrent_net: a state and the output linked to it must have the same shape and dtype; got "
                f"{describe(value)} for the state {state!r}"
                + (f", which is {describe(jnp.asarray(self.states[state]))} shared by all rows," if shared else "")
                + f" and {describe(returned)} for the output {output!r}. "
                "Check the initial state's shape and dtype, or cast the output in the cell."
            )

    def result_names(self, outputs: Iterable[str]) -> list[str]:
        """The names of the results in order: all and last of each link, all of each other output, the aliases."""
        linked = list(self.links.values())
        names = [f"{output}_{part}" for output in linked for part in ("all", "last")]
        names += [f"{output}_all" for output in outputs if output not in linked]
        return [*names, *self.aliases]


def length_and_step(inputs: Any) -> tuple[int, Array]:
    """T, and zeros like one step `(N, ...)` of an input. `scan` checks that all inputs have this T."""
    places = leaves_with_places(inputs, "inputs")
    for where, leaf in places:
        if leaf.ndim < 2:
            raise ValueError(
                f"recurrent_net: every input must be (T, N, ...), time first, then batch; got {describe(leaf)} at "
                f"{where}. Add an axis of size 1 for a batch of one."
            )
    batches = {where: leaf.shape[1] for where, leaf in places}
    if len(set(batches.values())) > 1:
        raise ValueError(
            "recurrent_net: all inputs must have the same number of rows, on their second axis; got "
            + ", ".join(f"{batch} at {where}" for where, batch in batches.items())
            + "."
        )
    first = next((leaf for _, leaf in places if not is_key(leaf)), places[0][1])
    return first.shape[0], jnp.zeros(first.shape[1:]) if is_key(first) else zeros_of_step(first)


def shared(argument: str, state: str, value: Any, x: Array) -> Array:
    """A state with the rows of one step's input `x`; rank 0 or 1 is broadcast. Keys do not change."""
    batch = x.shape[0]
    if not is_array_like(value):
        raise TypeError(
            f"recurrent_net: a state in `{argument}` must be an array or a number; got {type(value).__name__} for "
            f"{state!r}. Give each of its arrays a name and a link."
        )
    value = jnp.asarray(value)
    if is_key(value):
        return value
    if value.ndim < 2 and is_weak(value):  # A number, which takes the dtype of its output.
        return jnp.broadcast_to(value, (batch, *value.shape))
    if value.ndim < 2:
        # Added to zeros, to get the sharding of x over the rows, and its varying axes under shard_map.
        zeros = zeros_sharded_like(x.reshape(batch, prod(x.shape[1:])), (batch, *value.shape), value.dtype)
        return zeros + over_rows(value, zeros)
    if value.shape[0] != batch:
        raise ValueError(
            f"recurrent_net: a state in `{argument}` must be (N, ...) with N = {batch}, as in the inputs, or (H,), "
            f"shared by the rows; got {describe(value)} for {state!r}."
        )
    return value


def check_offset(alias: str, offset: int, length: int) -> None:
    """Reject an offset outside of the T + 1 states."""
    if not -(length + 1) <= offset <= max(length, 1):
        raise ValueError(
            f"recurrent_net: an alias's offset for T = {length} steps must be from {-(length + 1)} to "
            f"{max(length, 1)}; got {offset} for {alias!r}."
        )
