"""The cause of a miss: another plan would have been faster, or XLA makes a slower program of the same plan."""

from collections.abc import Mapping
from typing import Any

import jax
from jax import lax

import rnnscan as rs
from benchmarks.measure import prepare_jax, take_turns
from benchmarks.result import Result, Runner
from benchmarks.sweep.case import PLANS, Case


# Another plan is faster if it takes less than this share of the time of the engine's.
FASTER = 0.95
CAUSES = {
    "estimate": "another plan of rnnscan is faster: which one, and the share of the time that it takes",
    "fusion": "no other plan is faster: XLA makes a slower program of the engine's plan",
    "noise": "the second measurement was at most 1.10",
}


def find_cause(case: Case, what: str, runners: Mapping[str, Runner], options: Mapping[str, Any]) -> str:
    """Time the other plans of a case beside the engine's.

    Args:
        case: the case.
        what: "training" or "forward".
        runners: the compiled rows.
        options: `rounds` and `seconds` of the measurement.
    """
    same = same_plans(case, what)
    others = case.rows([name for name in PLANS if name not in same])
    plans = {name: prepare_jax(row, kept=False) for name, row in others.items()}
    timed = {"plain": runners["plain"], "rnnscan": runners["rnnscan"], **plans}
    which = "train" if what == "training" else "forward"
    times = take_turns(
        {name: getattr(runner, which) for name, runner in timed.items()},
        rounds=options["rounds"],
        seconds=options["seconds"],
        report=lambda number, of: None,
    )
    result = Result(timed, train=times)
    shares = {name: result.train_ratio(name, "rnnscan") for name in plans}
    best = min(shares, key=shares.__getitem__, default=None)
    return "fusion" if best is None or shares[best] >= FASTER else f"estimate: {best} {shares[best]:.2f}"


def same_plans(case: Case, what: str) -> set[str]:
    """The names of `PLANS` that are the engine's own plan, for training or forward."""
    explanations = explain(case)
    equations = [equation for one in explanations for equation in one.equations]
    states = [text for one in explanations for text in one.states.values() if text.startswith("in chunks")]
    if what == "forward":  # Nothing is kept, whatever the memory choice.
        batches = any(one.forward == "at once" for one in equations)
        batches = batches or any(not text.endswith("step by step forward") for text in states)
        return {"recompute all"} if batches else set(PLANS)
    batches = bool(states) or any("at once" in (one.forward, one.backward) for one in equations)
    if any(one.backward == "kept" for one in equations):
        return set()
    return {"recompute all"} if batches else {"recompute all", "unsplit"}


def explain(case: Case) -> list[Any]:
    """`rs.explain` of each scan of a case."""
    explanations: list[Any] = []

    def explained(cell: Any, params: Any, carry: Any, xs: Any, **options: Any) -> Any:
        types = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), (params, carry, xs))
        explanations.append(rs.explain(cell, *types, **options))
        return lax.scan(lambda carry, x: cell(params, carry, x), carry, xs, **options)

    row = case.row_of(explained)
    jax.eval_shape(row.loss, *row.arguments, *row.data)
    return explanations
