"""while_net, decode and Flax modules with sharded rows and units, and cells with explicitly sharded units.

Results, gradients, and what the loops send between devices.
"""

import pytest

from programs import quick_or_slow, report_of


MEMORIES = ["all names", "recompute all", "segments"]
QUICK = {
    "units 2x4": ["while_net, all names", "decode, beam", "linen, recompute all", "nnx, segments"],
    "explicit": ["linen, segments"],
    "explicit units": ["whole carry, recompute all"],
}
WITH_MEMORIES = {
    **{mode: ["while_net", "linen", "nnx"] for mode in ("auto", "explicit", "units 8x1", "units 2x4", "units 1x8")},
    "explicit units": ["units", "whole carry", "features"],
    "explicit units, mixed": ["features"],
}
DECODED = ["decode, greedy", "decode, beam"]
SLOW = {
    mode: [
        case
        for case in [
            *(f"{case}, {memory}" for case in cases for memory in MEMORIES),
            *([] if mode.startswith("explicit") else DECODED),
        ]
        if case not in QUICK.get(mode, ())
    ]
    for mode, cases in WITH_MEMORIES.items()
}


def found(mode, case, quick):
    result = report_of("others_on_devices.py", QUICK if quick else {mode: SLOW[mode]})[mode][case]
    assert isinstance(result, dict), result
    return result


def variants(asked):
    return [(mode, case) for mode, cases in asked.items() for case in cases]


each = quick_or_slow(variants(QUICK), variants(SLOW))
# In a plain lax.scan JAX's types decide what moves.
counted = [one for one in each if not getattr(one, "values", one)[0].startswith("explicit units")]


@pytest.mark.parametrize(("mode", "case", "quick"), each)
def test_results_and_gradients_are_those_of_one_device(mode, case, quick):
    assert found(mode, case, quick)["difference"] < 2e-5


# In each loop with a product that reads a state: gathers forward, and reductions backward. The body of a while_net runs
# in chunks, and the last steps one by one, in a loop of their own; the gradient of xs is a sum over units too; the
# readout of a decoder reads the new state.
GATHERS = {"while_net": 2, "linen": 1, "nnx": 1, "decode": 2}
REDUCTIONS = {"while_net": 2, "linen": 2, "nnx": 2, "decode": 0}


@pytest.mark.parametrize(("mode", "case", "quick"), counted)
def test_a_loop_sends_nothing_for_rows_and_a_gather_and_a_reduction_for_units(mode, case, quick):
    """Scalars aside: devices decide together whether a loop goes on."""
    result, (net, memory) = found(mode, case, quick), case.split(", ")
    large = {
        kind: made
        for kind, every in result["collectives"].items()
        if (made := [one for one in every if not one.endswith("[]")])
    }
    in_loops = {kind: len(made) for kind, made in large.items() if "loop" in kind}
    if mode in ("units 2x4", "units 1x8"):
        again = net != "decode" and memory == "segments"  # Segments run forward again.
        wanted = {"all-gather in a loop": GATHERS[net] + again, "all-reduce in a loop": REDUCTIONS[net]}
        # For the gradient of the weights, a chunk of states.
        chunks = {} if net == "decode" else {"all-gather in a loop around a loop": 1}
        assert in_loops == {kind: count for kind, count in (wanted | chunks).items() if count}
    else:
        assert not in_loops
        assert large.keys() <= {"all-reduce"}
        assert len(large.get("all-reduce", [])) == (0 if net == "decode" else result["parameters"])
