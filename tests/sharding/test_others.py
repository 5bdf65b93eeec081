"""while_net, decode and Flax modules with sharded rows and units, and cells with explicitly sharded units."""

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


def found(mode, quick):
    return report_of("others_on_devices.py", QUICK if quick else {mode: SLOW[mode]})[mode]


def variants(asked):
    return [(mode, case) for mode, cases in asked.items() for case in cases]


@pytest.mark.parametrize(("mode", "case", "quick"), quick_or_slow(variants(QUICK), variants(SLOW)))
def test_results_and_gradients_are_those_of_one_device(mode, case, quick):
    difference = found(mode, quick)[case]
    assert isinstance(difference, float), difference
    assert difference < 2e-5
