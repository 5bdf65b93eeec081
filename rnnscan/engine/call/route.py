"""route(): choose the engine of a call."""

from dataclasses import dataclass
from typing import Literal, NoReturn

import jax

from rnnscan._checks import has_early_remat3
from rnnscan._util.messages import is_count
from rnnscan.engine.analysis.effects_of_rules import RuleEffects
from rnnscan.engine.call.prepare import Call
from rnnscan.engine.units.mesh import explicit_reason
from rnnscan.ir.opened import is_high
from rnnscan.memory import Memory, kept_names
from rnnscan.newton import Newton


@dataclass(frozen=True)
class Route:
    """The engine of a call.

    Attributes:
        engine: the engine.
        reason: why it is not the fission engine; empty if it is.
        checkpoints: whether the memory choice is in force. False: `jax.checkpoint` cannot hold the step.
    """

    engine: Literal["fission", "lax"]
    reason: str = ""
    checkpoints: bool = True

    @staticmethod
    def plain(call: Call, reason: str) -> "Route":
        """The lax engine.

        Raises:
            NotImplementedError: with segments, if JAX cannot differentiate a loop in `jax.checkpoint`.
        """
        if call.memory is not None and call.memory.segment is not None and has_early_remat3():
            raise NotImplementedError(
                "scan: with JAX_REMAT3=1, `segment` needs jax 0.11 or newer where `lax.scan` runs the steps; got "
                f"{call.memory!r} and jax {jax.__version__}, and {reason}. Update jax, or leave JAX_REMAT3 unset."
            )
        # Before jax 0.12, `jax.checkpoint` lacks rules for its high level.
        if jax.__version_info__ >= (0, 12) or not high_level_reason(call):
            return Route("lax", reason)
        return Route("lax", f"{reason}; jax {jax.__version__} cannot checkpoint it: plain autodiff", checkpoints=False)


def route(call: Call) -> Route:
    """Choose the engine of a call.

    Raises:
        ValueError: if `engine="fission"`, `parallel` or segments cannot be honored.
    """
    if call.memory is not None and call.memory.asks_to_recompute and not call.info.effects:
        _refuse_effects_of_rules(call.memory, call.effects_of_rules)
    reason = 'engine="lax" was chosen' if call.engine == "lax" else _fallback_reason(call)
    refuse_parallel(call.parallel, reason)
    if reason and call.engine == "fission":
        refuse_fission(reason)
    return Route.plain(call, reason) if reason else Route("fission")


def _refuse_effects_of_rules(memory: Memory, of_rules: RuleEffects) -> None:
    """Refuse to recompute a forward rule that has effects, and segments of a rule that logs."""
    if memory.segment is not None and of_rules.has_logs:
        raise ValueError(
            f"scan: segments would cut the logs of a derivative rule into pieces; got {memory!r}, and a rule that "
            "logs values. Leave `segment` out, or do not log."
        )
    if of_rules.once_forward:
        raise ValueError(
            f"scan: a derivative rule with side effects on the forward pass must not be recomputed; got {memory!r}. "
            "Remove the side effects from the rule, or leave out `recompute`, `segment` and `offload`."
        )


def refuse_parallel(parallel: Newton | None, reason: str) -> None:
    """Refuse `parallel` if there is a reason for the lax engine."""
    if parallel is not None and reason:
        raise ValueError(
            f"scan: `parallel` needs the fission engine; got {parallel!r}, but {reason}. Leave `parallel` out."
        )


def refuse_fission(reason: str) -> NoReturn:
    """Refuse `engine="fission"`, for the reason for the lax engine."""
    raise ValueError(
        f'scan: engine="fission" cannot run this call, because {reason}. Set engine="auto", which runs it with one '
        "plain lax.scan."
    )


def _fallback_reason(call: Call) -> str:
    """Why the fission engine cannot run a call; empty if it can."""
    if call.info.effects or call.info.has_refs:
        return "the cell has side effects"
    if call.memory is None:
        return "memory=None is plain autodiff of lax.scan"
    if reason := high_level_reason(call):
        return reason
    if any(call.effects_of_rules):
        return "a derivative rule in the cell has side effects"
    if not is_count(call.length, least=0):
        return "the number of steps is a symbolic dimension"
    if not call.flat.can_keep(kept_names(call.memory, call.names), call.names):
        return "a name is inside a vmap, a branch or a loop of the cell"
    if call.reads_symbolic_zeros:
        return "the step has a jax.custom_vjp with symbolic zeros, which JAX cannot differentiate in several traces"
    return explicit_reason(call.params, call.carry, call.xs)


def high_level_reason(call: Call) -> str:
    """Why no call of the engine may hold the step: it has an operation that JAX lowers in its own calls; else empty."""
    if not getattr(call.info.traced.jaxpr, "is_high", False):  # Then no equation need be asked.
        return ""
    equation = next(filter(is_high, call.flat.program.equations), None)
    if equation is None:
        return ""
    primitive = equation.params.get("_prim")
    name = equation.name if primitive is None else type(primitive).__name__
    return f"the step has an operation of JAX's high level, {name}, which JAX lowers in its own loops only"
