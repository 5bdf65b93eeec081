"""execute(): run a planned call."""

from typing import Any

from rnnscan._step_wrappers import hold_last_valid
from rnnscan.engine.plan.planned_call import Plan
from rnnscan.engine.run import fission as fission
from rnnscan.engine.run import lax


def execute(plan: Plan) -> tuple[Any, Any]:
    """Run a planned call.

    Returns:
        The final carry and the stacked y.
    """
    call = plan.call
    carry, ys = fission.run(plan) if plan.route.engine == "fission" else lax.run(plan)
    if call.valid is not None and call.padding == "hold":
        ys = hold_last_valid(ys, call.valid, reverse=call.reverse)
    return carry, ys
