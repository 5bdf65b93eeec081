"""Run a scan that stacks the traced values of its steps, and takes inputs to add to them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rnnscan import _checks as checks
from rnnscan._util.messages import is_float, is_key
from rnnscan._util.step_wrappers import (
    hold_last_valid,
    one_step,
    repeat_over,
    reset_carry,
    skip_padding,
    truncate_gradient,
    type_of_step,
)
from rnnscan._util.zeros import zeros_of_type
from rnnscan.inside.tracing.recorder import Choice, Recorder, ScanFacts
from rnnscan.inside.tracing.rows import rows_of, select, spread, without_padding
from rnnscan.inside.tracing.sites import Kind, Level, Site
from rnnscan.naming import unnamed
from rnnscan.randomness import with_key
from rnnscan.scanning import scan


def run_traced(
    recorder: Recorder, level: Level, cell: Any, params: Any, carry: Any, xs: Any, options: dict[str, Any]
) -> tuple[Any, Any]:
    """Run a scan, and mark its values in the recorder of the function around it."""
    call = _Call.of(recorder, level, cell, params, carry, xs, options)
    recorder.scans.append(ScanFacts(call.levels, call.length, call.rows, call.options["reverse"]))
    recorder.untraced |= {site.repeated(0): reason for site, reason in call.probe.untraced.items()}
    recorder.hidden |= {site.repeated(0) for site in call.probe.hidden}
    return _Run(recorder, call).results()


@dataclass(frozen=True)
class _Probe:
    """What a trace of one step tells.

    Attributes:
        types: by site, the type of the value of one step.
        zeros: by site, the type of what is added to it, where that is not the value's.
        consts: the arrays that the step reads and that are not its inputs.
        untraced: sites that cannot be traced, and why.
        hidden: sites without a cotangent.
    """

    types: dict[Site, Any]
    zeros: dict[Site, Any]
    consts: Sequence[Any]
    untraced: dict[Site, str]
    hidden: set[Site]


@dataclass(frozen=True)
class _Call:
    """A checked call of `scan`.

    Attributes:
        levels: the scans around its steps, itself the last.
        choice: the values to trace.
        cell: the cell, with its key.
        params: its parameters.
        carry: the carry before the first step, for all rows.
        xs: the inputs of the step: those of the cell, then resets, valid steps and step numbers.
        length: T.
        rows: N; None without a batch axis.
        valid: the valid steps, or None.
        wrap: puts resets, padding and truncation around a step.
        options: the other arguments of `scan`.
    """

    levels: tuple[Level, ...]
    choice: Choice
    cell: Any
    params: Any
    carry: Any
    xs: Any
    length: int
    rows: int | None
    valid: Any
    wrap: Callable[[Any], Any]
    options: Mapping[str, Any]

    @classmethod
    def of(
        cls, recorder: Recorder, level: Level, cell: Any, params: Any, carry: Any, xs: Any, options: dict[str, Any]
    ) -> "_Call":
        """Check the arguments of `scan`.

        Padding and resets are put around the cell here and not in `scan`, because the carry that is held at padded
        steps is a traced value too.
        """
        last, _ = jax.eval_shape(lambda: scan(cell, params, carry, xs, **options))
        xs, carry = checks.as_arrays(xs, "xs"), checks.as_arrays(carry, "carry")
        length = checks.sequence_length(xs, options["length"])
        valid = checks.validity(options["seq_lengths"], options["mask"], length)
        reset = checks.resets(options["reset"], length)
        if options.get("key") is not None:
            cell = with_key(cell, options["key"], params, jax.tree.map(one_step, xs))
            xs = (xs, options["first_step"] + jnp.arange(length))
        carry = jax.tree.map(_like, carry, last)
        rows, wrappers = rows_of(cell, carry, xs, valid, reset), list[Any]()
        if reset is not None:
            reset_to, root = options["reset_to"], "reset_to"
            if reset_to is None:
                reset_to, root = cell.initial_carry(jax.tree.map(one_step, xs)), "cell.initial_carry(x)"
            reset_to = checks.reset_carry_like(carry, checks.as_arrays(reset_to, root), root, rows=reset.ndim - 1)
            xs, wrappers = (xs, reset), [partial(reset_carry, reset_to=reset_to)]
        if valid is not None:
            xs, wrappers = (xs, valid), [*wrappers, partial(skip_padding, padding=options["padding"])]
        if options["truncate"] is not None:
            order = jnp.arange(length)
            xs = (xs, order[::-1] if options["reverse"] else order)
            wrappers = [*wrappers, partial(truncate_gradient, every=options["truncate"])]

        def wrap(step: Any) -> Any:
            for wrapper in wrappers:
                step = wrapper(step)
            return step

        levels = (*recorder.levels, level)
        # Steps and rows are those of the outermost scan.
        choice = recorder.choice if len(levels) == 1 else replace(recorder.choice, steps=None, rows=None)
        return cls(levels, choice, cell, params, carry, xs, length, rows, valid, wrap, options)

    def step(
        self, params: Any, carry: Any, x: Any, valid: Any, added: Mapping[Site, Any]
    ) -> tuple[Recorder, Any, Any, dict[Site, Any], dict[Site, Any]]:
        """One step.

        Args:
            params: the parameters.
            carry: the carry.
            x: the input, with that of the wrappers.
            valid: the valid rows, or None.
            added: by site, what is added to the values.

        Returns:
            The recorder; the new carry; y; the values by site; and the zeros by site that `added` may replace.
        """
        recorder = Recorder(self.choice, run_traced, self.levels)
        values, zeros = dict[Site, Any](), dict[Site, Any]()

        def cell_step(carry: Any, x: Any) -> tuple[Any, Any]:
            traced = recorder.trace(self._cell, params, carry, x)
            results, named, places = traced.run((params, carry, x), added)
            values.update({site: without_padding(value, valid, self.axis(site)) for site, value in named.items()})
            zeros.update(places)
            return results

        new_carry, y = self.wrap(cell_step)(carry, x)
        leaves, structure = jax.tree.flatten(new_carry)
        for number, (site, leaf) in enumerate(zip(self.sites("carry", new_carry), leaves, strict=True)):
            leaves[number] = values[site] = leaf + added[site] if site in added else leaf
        return recorder, jax.tree.unflatten(structure, leaves), y, values, zeros

    def _cell(self, params: Any, carry: Any, x: Any) -> tuple[Any, Any]:
        return checks.carry_and_output(self.cell(params, carry, x))

    def sites(self, kind: Kind, tree: Any) -> list[Site]:
        """The sites of the leaves of the carry or of y."""
        places = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]
        labels = [kind] if len(places) == 1 else [f"{kind}{place}" for place in places]
        return [Site(self.levels, (), label, kind, number, (0,)) for number, label in enumerate(labels)]

    def axis(self, site: Site) -> int:
        """The axis of the rows in a value of one step."""
        return len(site.levels) - len(self.levels)

    def select(self, site: Site, value: Any) -> Any:
        """The chosen rows of a value of one step."""
        return select(value, self.choice.rows, self.axis(site), self.rows)

    def spread(self, site: Site, chosen: Any) -> Any:
        """Chosen rows in a value of one step of zeros."""
        return spread(
            chosen, self.probe.zeros.get(site, self.probe.types.get(site)), self.choice.rows, self.axis(site), self.rows
        )

    @cached_property
    def probe(self) -> _Probe:
        """The trace of one step."""
        recorder, sites, zero_sites = None, list[Site](), list[Site]()

        def step(carry: Any, x: Any, valid: Any) -> Any:
            nonlocal recorder
            recorder, _, _, values, zeros = self.step(self.params, carry, x, valid, {})
            sites[:], zero_sites[:] = values, zeros
            return [*values.values()], [*zeros.values()]

        with unnamed():  # The step around an inner scan reads no names here.
            closed = jax.make_jaxpr(step)(self.carry, *jax.tree.map(type_of_step, (self.xs, self.valid)))
        types = dict(zip(sites, closed.out_avals, strict=False))
        zero_types = dict(zip(zero_sites, closed.out_avals[len(sites) :], strict=True))
        assert recorder is not None
        return _Probe(types, zero_types, closed.consts, recorder.untraced, recorder.hidden)


@dataclass(frozen=True)
class _Run:
    """A run of a call.

    Attributes:
        recorder: the recorder of the function around it.
        call: the call.
    """

    recorder: Recorder
    call: _Call

    @cached_property
    def chosen(self) -> list[Site]:
        """The sites whose values the loop stores."""
        return [site for site in self.call.probe.types if self.call.choice.has(site)]

    @cached_property
    def perturbed(self) -> list[Site]:
        """The chosen sites with cotangents."""
        probe = self.call.probe
        if not self.call.choice.cotangents:
            return []
        return [site for site in self.chosen if is_float(probe.types[site]) and site not in probe.hidden]

    @property
    def _steps(self) -> tuple[int, ...] | None:
        return self.call.choice.steps

    def results(self) -> tuple[Any, Any]:
        """The results of the scan; its values are marked."""
        call, steps = self.call, self._steps
        perturbations = [self._perturbation(site) for site in self.perturbed]
        scanned: dict[str, Any] = {"x": call.xs, "valid": call.valid}
        params: Any = (call.params, ())
        state: Any = (call.carry, ())
        if steps is None:
            scanned["added"] = perturbations
        else:
            # The last place is for the steps that are not chosen: nothing is read from it.
            slots = np.full(call.length, len(steps), np.int32)
            slots[[*steps]] = np.arange(len(steps))
            scanned["slot"] = jnp.asarray(slots)
            params = (call.params, [jnp.concatenate([each, jnp.zeros_like(each[:1])]) for each in perturbations])
            buffers = [zeros_of_type(self._type(site), len(steps) + 1) for site in self.chosen]
            state = (call.carry, buffers)
        run = {name: call.options[name] for name in ("reverse", "unroll", "memory", "engine", "parallel")}
        (carry, buffers), (ys, stacked) = scan(self._step, params, state, scanned, length=call.length, **run)
        if call.valid is not None and call.options["padding"] == "hold":
            ys = hold_last_valid(ys, call.valid, reverse=call.options["reverse"])
        stacked = stacked if steps is None else [buffer[:-1] for buffer in buffers]
        for site, value in zip(self.chosen, stacked, strict=True):
            self.recorder.mark_value(site, value)
        return carry, self._with_sites(ys)

    def _step(self, params: Any, state: Any, scanned: dict[str, Any]) -> tuple[Any, Any]:
        call, (params, held), (carry, buffers) = self.call, params, state
        added, slot = scanned.get("added"), scanned.get("slot")
        if slot is not None:
            added = [lax.dynamic_index_in_dim(each, slot, keepdims=False) for each in held]
        by_site = {site: call.spread(site, each) for site, each in zip(self.perturbed, added or (), strict=True)}
        _, carry, y, values, _ = call.step(params, carry, scanned["x"], scanned["valid"], by_site)
        chosen = [self._stored(site, values[site]) for site in self.chosen]
        if slot is None:
            return (carry, buffers), (y, chosen)
        pairs = zip(buffers, chosen, strict=True)
        buffers = [lax.dynamic_update_index_in_dim(buffer, value, slot, 0) for buffer, value in pairs]
        return (carry, buffers), (y, ())

    def _stored(self, site: Site, value: Any) -> Any:
        value = self.call.select(site, jax.random.key_data(value) if is_key(value) else value)
        # Only cotangents of the loss are wanted: the copies have no part in its gradient.
        return lax.stop_gradient(value) if self.call.choice.cotangents else value

    def _type(self, site: Site) -> Any:
        aval = self.call.probe.types[site]
        return jax.make_jaxpr(partial(self._stored, site))(aval).out_avals[0]

    def _perturbation(self, site: Site) -> Any:
        call, steps = self.call, self._steps
        aval = call.probe.zeros.get(site, call.probe.types[site])
        aval = jax.make_jaxpr(partial(call.select, site))(aval).out_avals[0]
        zeros = zeros_of_type(aval, call.length if steps is None else len(steps))
        return self.recorder.perturbation(site, zeros, (call.params, call.carry, call.xs, call.probe.consts))

    def _with_sites(self, ys: Any) -> Any:
        """The outputs, marked where they are chosen."""
        call, (leaves, structure) = self.call, jax.tree.flatten(ys)
        for number, site in enumerate(call.sites("y", ys)):
            if not call.choice.has(site):
                continue
            value = self._of_steps(site, leaves[number])
            if call.choice.cotangents and is_float(value):
                zeros = self.recorder.perturbation(site, jnp.zeros_like(value), ys)
                _, transpose = jax.vjp(partial(self._of_steps, site), jnp.zeros_like(leaves[number]))
                leaves[number] = leaves[number] + transpose(zeros)[0]
            self.recorder.mark_value(site, jax.random.key_data(value) if is_key(value) else value)
        return jax.tree.unflatten(structure, leaves)

    def _of_steps(self, site: Site, ys: Any) -> Any:
        """The chosen steps and rows of stacked outputs."""
        steps = self._steps
        return select(ys if steps is None else ys[np.array(steps, np.int32)], self.call.choice.rows, 1, self.call.rows)


def _like(leaf: Any, last: Any) -> Any:
    """A leaf of the carry with the shape and dtype of the last carry: for all rows, and not weakly typed."""
    if leaf.dtype != last.dtype:
        leaf = leaf.astype(last.dtype)
    return leaf if leaf.shape == last.shape else repeat_over(leaf, jnp.zeros(last.shape, last.dtype))
