"""Describe the matrix states of a plan."""

from rnnscan.engine.plan.execution_plan import ExecutionPlan


def describe_states(plan: ExecutionPlan) -> dict[int, str]:
    """By position of a carry leaf, how it runs as a matrix state in chunkwise form, or why it does not.

    Leaves that are linear recurrences of matrices for each row are described, and those that have the form.
    """
    if plan.route.engine != "fission":
        return {}
    step, search, chunk = plan.step, plan.states.matrix_search, plan.states.state_chunk
    texts = {
        index: f"step by step, because {reason}"
        for index, reason in search.reasons.items()
        if len(step.carry[index].shape) > 2
    }
    for group in search.groups:
        first, *others = group.states
        if chunk is None:
            text = "step by step, because the sequence, or a segment, is shorter than two chunks"
            texts.update({state.index: text for state in group.states})
            continue
        texts[first.index] = f"in chunks of {chunk} steps, {first.in_words}{_looped(plan)}"
        beside = f"beside the values of carry leaf {step.changing[first.index]}, whose decay, keys and queries it has"
        texts.update({state.index: beside for state in others})
    return {step.changing[index]: text for index, text in sorted(texts.items())}


def _looped(plan: ExecutionPlan) -> str:
    if plan.states.loops_windows:
        return "; step by step forward"
    return "; step by step where nothing is differentiated" if plan.states.loops_forward else ""
