"""Scans and nets with the batch spread over devices: results, gradients, and what the devices send to each other."""

from math import prod

import pytest

from programs import quick_or_slow, report_of


MODES = ["explicit", "auto", "shard_map"]
MEMORIES = ["all names", "recompute all", "segments", "plain autodiff"]
UNNAMED = "without names"
# What `make test-pages` runs of each mode; the rest is slow. Each is compiled for one device and for eight.
QUICK = {
    "explicit": {
        "bidirectional": ["all names"],
        "parameters on no mesh": ["all names"],
        "recurrent_net": ["segments"],
    },
    "auto": {
        "lengths": ["all names"],
        UNNAMED: ["all names"],
        "ParaLSTM by Newton": ["all names"],
        "GLA in chunks": ["all names"],
        "as many units as rows": ["segments"],
    },
    "shard_map": {"MinGRU as on a GPU": ["recompute all"], UNNAMED: ["all names"]},
}
CASES = ["LSTM", "GRU", "LayerNormLSTM", "MinGRU", "stack", "decoder", "lengths", "lengths, hold", "recurrent_net"]
NETS = ["layer", "chain", "bidirectional"]
CHUNKS = "GLA in chunks"
NEWTON = "ParaLSTM by Newton"
GPU = ["LSTM as on a GPU", "MinGRU as on a GPU"]
SLOW = {
    mode: {
        case: [memory for memory in memories if memory not in QUICK[mode].get(case, ())]
        for case, memories in [
            *((case, MEMORIES) for case in CASES),
            *((net, MEMORIES[1:2]) for net in NETS),
            *((case, MEMORIES[:3]) for case in GPU),
            (CHUNKS, MEMORIES[:2]),
            (UNNAMED, MEMORIES[:3]),
            (NEWTON, MEMORIES[:3]),
        ]
    }
    for mode in MODES
}


def variants(asked):
    return [(mode, f"{case}, {memory}") for mode in asked for case, chosen in asked[mode].items() for memory in chosen]


def found(mode, quick):
    """What one process finds for the variants of a mode; all quick ones share a process."""
    return report_of("on_devices.py", QUICK if quick else {mode: SLOW[mode]})


each = pytest.mark.parametrize(("mode", "variant", "quick"), quick_or_slow(variants(QUICK), variants(SLOW)))


@each
def test_results_and_gradients_are_those_of_one_device(mode, variant, quick):
    assert found(mode, quick)[mode][variant]["difference"] < 2e-5


@each
def test_there_is_one_reduction_for_each_parameter_and_nothing_else(mode, variant, quick):
    """Nothing is gathered, and no loop holds a collective. Scalars are the loss's."""
    if variant.endswith("plain autodiff") and mode != "shard_map":
        pytest.skip("lax.scan adds up the gradients of parameters over devices at each step")
    collectives = found(mode, quick)[mode][variant]["collectives"]
    if variant.startswith((NEWTON, CHUNKS)):
        # All devices iterate until all rows have converged, and run the loop in reserve if a row needs it.
        for loop in ("in a loop", "in a loop around a loop"):
            assert all(elements(kind) == 1 for kind in collectives.pop(f"all-reduce {loop}", []))
    assert [*collectives] == ["all-reduce"]
    reduced = [kind for kind in collectives["all-reduce"] if kind != "f32[]"]
    sizes = [sorted(map(elements, kinds)) for kinds in (reduced, found(mode, quick)[mode][variant]["parameters"])]
    assert sizes[0] == sizes[1]


def elements(kind):
    """How many elements an array has, of a type such as `f32[2,3]`. XLA may transpose what it reduces."""
    sizes = kind.partition("[")[2].removesuffix("]")
    return prod(map(int, sizes.split(","))) if sizes else 1


@pytest.mark.parametrize("mode", ["explicit", "auto"])
def test_initial_carries_are_sharded_as_the_input_is(mode):
    made = found(mode, True)[mode]["initial carries"]
    assert len(made) == 5
    assert all(axes == ["data"] for axes in made)
