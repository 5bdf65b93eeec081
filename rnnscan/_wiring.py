"""The names of a recurrent_net: which value is an input, a state, an output, and how they are tied together."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from rnnscan._messages import describe, is_array_like, is_count, is_key, is_weak, leaves_with_places, listing, nearest
from rnnscan._zeros import zeros_beside, zeros_of_step


@dataclass(frozen=True)
class Wiring:
    """The names that a user gave to recurrent_net, and the checks that they fit together.

    Attributes:
        inputs: the sequences, by the name under which the cell receives one step of each.
        states: the initial states, by the name under which the cell receives them.
        links: state -> the output that it is at the next step.
        aliases: result -> (state, offset).
        timestep: the name under which the cell receives the step's index.
        outputs_with_grads: the results through which gradients flow, by name or position; None: all.
    """

    inputs: Mapping[str, Any]
    states: Mapping[str, Any]
    links: Mapping[str, str]
    aliases: Mapping[str, tuple[str, int]]
    timestep: str | None
    outputs_with_grads: tuple[str, ...] | tuple[int, ...] | None

    def check(self) -> None:
        """Refuse names that are missing, unknown or used twice, before the cell is traced."""
        for argument, value in (
            ("inputs", self.inputs),
            ("initial_cell_inputs", self.states),
            ("links", self.links),
            ("aliases", self.aliases),
        ):
            if not isinstance(value, Mapping):
                raise TypeError(
                    f"recurrent_net: `{argument}` must be a dictionary keyed by name; got {type(value).__name__}."
                )
        if not self.inputs:
            raise ValueError(
                "recurrent_net: there must be at least one input, which gives the number of steps; got none. "
                "Use rnnscan.scan with xs=None and `length` for a net without inputs."
            )
        self._check_outputs_with_grads()
        self._check_unique()
        self._check_links()
        self._check_aliases()

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
                "recurrent_net: inputs, states and timestep must have different names, and none may be 'params', "
                f"because the cell receives them by name; got {listing(twice)} more than once. Rename one of each."
            )

    def _check_links(self) -> None:
        for state in self.states:
            if state not in self.links:
                raise ValueError(
                    f"recurrent_net: every state in `initial_cell_inputs` must be linked to an output; got no link "
                    f"for {state!r}, and links for {listing(self.links)}. Write links={{{state!r}: <output>, ...}}; "
                    "what is the same at every step belongs into `params`."
                )
        for state, output in self.links.items():
            if state not in self.states:
                raise ValueError(
                    f"recurrent_net: every link must start at a state in `initial_cell_inputs`; got a link of "
                    f"{state!r} to {output!r}, and the states {listing(self.states)}.{nearest(state, self.states)} "
                    "Links are written {state: output}, the cell's input first."
                )
        linked = list(self.links.values())
        for output in linked:
            if linked.count(output) > 1:
                raise ValueError(
                    f"recurrent_net: every state must be linked to an output of its own; got {output!r} linked to "
                    f"{listing(state for state in self.links if self.links[state] == output)}. "
                    "Return the value under two names."
                )

    def _check_aliases(self) -> None:
        for alias, target in self.aliases.items():
            if not (isinstance(target, tuple) and len(target) == 2 and isinstance(target[1], int)):
                raise TypeError(
                    f"recurrent_net: an alias must be a pair (state, offset); got {target!r} for {alias!r}. "
                    'Write aliases={"hidden_t_states": ("hidden_t_prev", 0)}, say.'
                )
            state = target[0]
            if state not in self.states:
                raise ValueError(
                    f"recurrent_net: an alias must be of a state in `initial_cell_inputs`; got {alias!r} of {state!r}, "
                    f"and the states {listing(self.states)}.{nearest(state, self.states)}"
                )

    def check_signature(self, cell_net: Callable[..., Any]) -> None:
        """Refuse a cell that does not take the inputs and states by their names."""
        try:
            signature = inspect.signature(cell_net)
        except (TypeError, ValueError):  # Of a callable that Python cannot look into.
            return
        given = [*self.inputs, *self.states, *([] if self.timestep is None else [self.timestep])]
        try:
            signature.bind(None, **dict.fromkeys(given))
        except TypeError as error:
            parameters = list(signature.parameters.values())[1:]
            named = [each for each in parameters if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)]
            taken = [each.name for each in named]
            missing = [each.name for each in named if each.default is each.empty and each.name not in given]
            message = (
                "recurrent_net: the cell must take params first, and then every input and state by its name; got a "
                f"cell that takes {listing(taken)}, and the names {listing(given)} ({error})."
            )
            if "timestep" in missing and self.timestep is None:
                message += ' Write timestep="timestep" in the call to pass it the index of the step.'
            elif missing:
                message += f" Add {listing(missing)} to `inputs` or `initial_cell_inputs`.{nearest(missing[0], given)}"
            else:
                message += " Take what the cell does not take out of `inputs` and `initial_cell_inputs`."
            raise ValueError(message) from None

    def check_reset(self, reset: Any, reset_to: Any) -> None:
        """Refuse resets without a state to go back to, and states that are not those of the net."""
        if reset_to is None and reset is None:
            return
        example = f"reset_to={{{next(iter(self.states), 'hidden_t_prev')!r}: <the state an episode starts with>, ...}}"
        if reset is None or reset_to is None:
            missing = "reset" if reset is None else "reset_to"
            raise ValueError(
                "recurrent_net: `reset` says where the states go back to `reset_to`, so both must be given; got no "
                f"`{missing}`. A net has no initial state of its own: write {example}."
            )
        if not isinstance(reset_to, Mapping) or sorted(reset_to) != sorted(self.states):
            got = listing(reset_to) if isinstance(reset_to, Mapping) else type(reset_to).__name__
            raise ValueError(
                f"recurrent_net: `reset_to` must be a dictionary with every state, {listing(self.states)}; got {got}. "
                f"Write {example}."
            )

    def check_outputs(self, outputs: Any, states: Mapping[str, Any]) -> None:
        """Refuse what the cell returned, if a link or an alias does not fit it. Called while the cell is traced."""
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
                f"recurrent_net: every result must have a name of its own; got {listing(twice)} more than once among "
                f"the results of the outputs and the aliases. Rename the output or the alias."
            )
        self.results_with_grads(outputs)

    def results_with_grads(self, outputs: Iterable[str]) -> list[str]:
        """The names of the results through which gradients flow, where the cell returns these outputs."""
        results = self.result_names(outputs)
        chosen: list[Any] = list(results if self.outputs_with_grads is None else self.outputs_with_grads)
        for name in chosen:
            if not isinstance(name, str) and name >= len(results):
                raise ValueError(
                    f"recurrent_net: a position in `outputs_with_grads` must be one of the {len(results)} results, "
                    f"from 0 to {len(results) - 1}; got {name}. The results are {listing(results)}, in this order."
                )
            if isinstance(name, str) and name not in results:
                raise ValueError(
                    f"recurrent_net: every name in `outputs_with_grads` must be a result; got {name!r}, and the "
                    f"results are {listing(results)}.{nearest(name, results)}"
                )
        return [name if isinstance(name, str) else results[name] for name in chosen]

    def _check_link(self, state: str, given: Any, output: str, returned: Any) -> None:
        if not is_array_like(returned):
            raise TypeError(
                f"recurrent_net: an output that is linked to a state must be an array; got {type(returned).__name__} "
                f"for {output!r}, linked to {state!r}. Link each array of it by a name of its own."
            )
        # A weakly typed state, such as a Python number, takes the dtype of its output, so only its shape is fixed.
        same_shape = jnp.shape(returned) == given.shape
        if not same_shape or (jnp.result_type(returned) != given.dtype and not is_weak(given)):
            shared = jnp.ndim(self.states[state]) != given.ndim
            raise (TypeError if same_shape else ValueError)(
                f"recurrent_net: a state and the output linked to it must have the same shape and dtype; got "
                f"{describe(given)} for the state {state!r}"
                + (f", which is {describe(jnp.asarray(self.states[state]))} shared by all rows," if shared else "")
                + f" and {describe(returned)} for the output {output!r}. "
                "Check the initial state's shape and dtype, or cast the output in the cell."
            )

    def result_names(self, outputs: Iterable[str]) -> list[str]:
        """The results in their order: all and last of each link, all of each other output, the aliases."""
        linked = list(self.links.values())
        names = [f"{output}_{part}" for output in linked for part in ("all", "last")]
        names += [f"{output}_all" for output in outputs if output not in linked]
        return [*names, *self.aliases]


def length_and_step(inputs: Any) -> tuple[int, Array]:
    """T, and zeros like one step `(N, ...)` of an input; that all agree on T is `scan`'s check."""
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
    """A state for every row of one step's input `x`; one of rank 0 or 1 is shared by them. Keys stay as they are."""
    batch = x.shape[0]
    if not is_array_like(value):
        raise TypeError(
            f"recurrent_net: a state in `{argument}` must be an array or a number; got {type(value).__name__} for "
            f"{state!r}. Give each array a name and a link of its own."
        )
    value = jnp.asarray(value)
    if is_key(value):
        return value
    if value.ndim < 2 and is_weak(value):  # A number, whose dtype is still open.
        return jnp.broadcast_to(value, (batch, *value.shape))
    if value.ndim < 2:
        # Added to zeros that are sharded over the rows as x is, and vary over the mesh as x does under shard_map.
        return zeros_beside(x.reshape(batch, -1), (batch, *value.shape), value.dtype) + value
    if value.shape[0] != batch:
        raise ValueError(
            f"recurrent_net: a state in `{argument}` must be (N, ...) with the rows of the inputs, N = {batch}, or "
            f"(H,) to be shared by them; got {describe(value)} for {state!r}."
        )
    return value


def check_offset(alias: str, offset: int, length: int) -> None:
    """Refuse an offset outside of the T + 1 states."""
    if not -(length + 1) <= offset <= max(length, 1):
        raise ValueError(
            f"recurrent_net: an alias begins within the T + 1 states of a sequence of T = {length} steps, at an offset "
            f"from {-(length + 1)} to {max(length, 1)}; got {offset} for {alias!r}."
        )
