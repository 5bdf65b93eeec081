"""Evaluate a jaxpr with marks: collect the marked values, and add to them the inputs whose cotangents are wanted."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import jax
from jax import lax
from jax.extend import core

from rnnscan.inside.tracing.marks import marks_in, number_of
from rnnscan.ir.bodies import carry_of_scan
from rnnscan.ir.opened import checkpointed, opened, policy_of
from rnnscan.ir.program import Origin


# A mark's number, and how many of that number came before it: JAX traces a jitted function once that is called twice.
Place: TypeAlias = tuple[int, int]

_CALLS = frozenset({"jit", "closed_call"})
_CHECKPOINTS = frozenset({"checkpoint", "remat2"})
_RULES = frozenset({"custom_jvp_call", "custom_vjp_call"})
# Operation -> why the values within cannot be traced.
_REASONS = {
    "cond": "it is within a branch of a `lax.cond` or `lax.switch`, which runs at some steps only",
    "while": "it is within a `lax.while_loop`, whose number of iterations is not known",
    "shard_map": "it is within a `jax.shard_map`; call rs.trace within it",
}


@dataclass
class Replay:
    """One evaluation of a traced function.

    Attributes:
        owner: the number of the trace whose marks count.
        named: calls `rnnscan.name` for the mark of a name, so that the memory choice finds it; it gets the number and
            the value.
        added: by place, an input that is added to the value there. It is zero, and its cotangent is the value's.
        values: the marked values, by place.
        unreachable: by the number of a mark, why its value cannot be traced.
        hidden: the numbers of marks within custom derivative rules, which hide the cotangents.
    """

    owner: int
    named: Callable[[int, Any], Any]
    added: Mapping[Place, Any] = field(default_factory=dict)
    values: dict[Place, Any] = field(default_factory=dict)
    unreachable: dict[int, str] = field(default_factory=dict)
    hidden: set[int] = field(default_factory=set)
    counts: Counter[int] = field(default_factory=Counter)

    def run(self, body: Any, operands: Sequence[Any], consts: Sequence[Any] | None = None) -> list[Any]:
        """The results of a jaxpr, closed or without constants. `consts` take the place of its own."""
        is_closed = isinstance(body, core.ClosedJaxpr)
        jaxpr = body.jaxpr if is_closed else body
        if consts is None:
            consts = body.consts if is_closed else ()
        values: dict[Any, Any] = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *operands], strict=True))

        def read(var: Any) -> Any:
            return var.val if isinstance(var, core.Literal) else values[var]

        for eqn in jaxpr.eqns:
            results = self._equation(eqn, [read(var) for var in eqn.invars])
            values.update(zip(eqn.outvars, results, strict=True))
        return [read(var) for var in jaxpr.outvars]

    def _equation(self, eqn: Any, operands: list[Any]) -> Sequence[Any]:
        number = number_of(eqn, self.owner)
        if number is not None:
            return self._mark(number, eqn, operands)
        primitive, params = opened(eqn)
        body = checkpointed(eqn)
        kind = primitive.name if body is None else "checkpoint"
        has_marks = bool(marks_in(_Only(eqn), self.owner))
        origin = Origin(eqn.ctx, eqn.source_info.traceback, eqn.source_info.name_stack)
        if not has_marks:
            params = eqn.primitive.get_bind_params(eqn.params)
            results = origin.run(eqn.primitive.bind, *operands, **params)
            return results if eqn.primitive.multiple_results else [results]
        if kind in _CALLS:
            return self.run(params.get("jaxpr", params.get("call_jaxpr")), operands)
        if kind in _CHECKPOINTS:
            return self._checkpoint(params["jaxpr"] if body is None else body, eqn, operands)
        if kind == "scan":
            return self._scan(eqn, operands)
        if kind in _RULES:
            return self._rule(params["call_jaxpr"], eqn, operands)
        reason = _REASONS.get(kind, f"it is within the operation {kind!r}")
        self.unreachable |= dict.fromkeys(marks_in(_Only(eqn), self.owner), reason)
        if kind == "cond":
            return self._cond(params["branches"], operands)
        results = origin.run(eqn.primitive.bind, *operands, **eqn.primitive.get_bind_params(eqn.params))
        return results if eqn.primitive.multiple_results else [results]

    def _mark(self, number: int, eqn: Any, operands: list[Any]) -> list[Any]:
        (shape,), (before,) = ([var.aval.shape for var in vars] for vars in (eqn.outvars[:1], eqn.invars[:1]))
        # The mark of a value that `vmap` maps moves the mapped axis to the front.
        results = [*operands] if shape == before else list(core.jaxpr_as_fun(eqn.params["jaxpr"])(*operands))
        place = number, self.counts[number]
        self.counts[number] += 1
        value = results[0]
        if place in self.added:
            value = value + self.added[place]
        self.values[place] = value = self.named(number, value)
        return [value, *results[1:]]

    def _within(self, body: Any, operands: Sequence[Any], added: Mapping[Place, Any]) -> tuple[list[Any], Any]:
        """The results and the marked values of a body, which JAX may trace more than once."""
        inner = Replay(self.owner, self.named, added, counts=Counter(self.counts))
        results = inner.run(body, operands)
        self.unreachable |= inner.unreachable
        self.hidden |= inner.hidden
        return results, inner.values

    def _added_within(self, body: Any) -> dict[Place, Any]:
        marks = marks_in(getattr(body, "jaxpr", body), self.owner)
        places = {(number, self.counts[number] + i) for number, count in marks.items() for i in range(count)}
        return {place: value for place, value in self.added.items() if place in places}

    def _count(self, body: Any) -> None:
        self.counts += marks_in(getattr(body, "jaxpr", body), self.owner)

    def _checkpoint(self, body: Any, eqn: Any, operands: list[Any]) -> list[Any]:
        def checkpointed(operands: list[Any], added: Mapping[Place, Any]) -> tuple[list[Any], Any]:
            return self._within(body, operands, added)

        prevent_cse, policy = eqn.params.get("prevent_cse", True), policy_of(eqn)
        again = jax.checkpoint(checkpointed, prevent_cse=prevent_cse, policy=policy)
        results, values = again(operands, self._added_within(body))
        self.values |= values
        self._count(body)
        return results

    def _scan(self, eqn: Any, operands: list[Any]) -> list[Any]:
        """A `lax.scan` whose body has marks: their values are stacked, on an axis before their own."""
        params, body = eqn.params, eqn.params["jaxpr"]
        carry_at = carry_of_scan(
            body.in_avals, body.out_avals, *([v.aval for v in vs] for vs in (eqn.invars, eqn.outvars))
        )
        consts, carry, xs = operands[: carry_at.start], [operands[i] for i in carry_at], operands[carry_at.stop :]

        def step(carry: list[Any], x: Any) -> tuple[list[Any], Any]:
            x, added = x
            results, values = self._within(body, [*consts, *carry, *x], added)
            return results[: len(carry)], (results[len(carry) :], values)

        options = {name: params[name] for name in ("length", "reverse", "unroll")}
        carry, (ys, values) = lax.scan(step, carry, (xs, self._added_within(body)), **options)
        self.values |= values
        self._count(body)
        return [*carry, *ys]

    def _rule(self, body: Any, eqn: Any, operands: list[Any]) -> Any:
        """A function with its own derivative: it stays whole, and its body runs beside it for its values."""
        results = eqn.primitive.bind(*operands, **eqn.primitive.get_bind_params(eqn.params))
        _, values = self._within(body, jax.tree.map(_constant, operands), {})
        self.values |= values
        self.hidden |= {*marks_in(getattr(body, "jaxpr", body), self.owner)}
        self._count(body)
        return results

    def _cond(self, branches: Sequence[Any], operands: list[Any]) -> list[Any]:
        """A cond whose branches have names, which a memory choice may mention; their values are not collected."""
        index, *operands = operands
        run = [lambda *operands, body=body: self._within(body, operands, {})[0] for body in branches]
        for body in branches:
            self._count(body)
        return lax.switch(index, run, *operands)


@dataclass(frozen=True)
class _Only:
    """A jaxpr of one equation, as far as `marks_in` reads it."""

    eqn: Any

    @property
    def eqns(self) -> list[Any]:
        """The equation."""
        return [self.eqn]


def _constant(value: Any) -> Any:
    return lax.stop_gradient(value) if jax.numpy.issubdtype(value.dtype, jax.numpy.inexact) else value
