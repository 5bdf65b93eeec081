"""Hidden units that devices share: results, gradients, and what the loops send between devices."""

import pytest

from programs import quick_or_slow, report_of


MEMORIES = ["all names", "recompute all", "segments"]
# What `make test-pages` runs: gates that the devices do not divide, no recurrent product,
# and a step that would run whole.
QUICK = {
    "units 2x4": {"GRU": ["recompute all"], "MinGRU": ["all names"]},
    "units 1x8": {"LSTM as on a TPU": ["all names"]},
}
CASES = ["LSTM", "GRU", "stack", "bidirectional", "decoder", "MinGRU", "lengths", "chain", "LSTM as on a GPU"]
OTHERS = ["LayerNormLSTM", "GLA in chunks", "ParaLSTM by Newton"]
SLOW = {
    mesh: {
        case: [memory for memory in memories if memory not in QUICK.get(mesh, {}).get(case, ())]
        for case, memories in [*((case, MEMORIES) for case in CASES), *((case, MEMORIES[:1]) for case in OTHERS)]
    }
    for mesh in ("units 8x1", "units 4x2", "units 2x4", "units 1x8")
}
# The products in a step's loops that read a state, or y of the layer below in the same loop.
PRODUCTS = {"stack": 3, "bidirectional": 2, "chain": 2, "decoder": 2, "MinGRU": 0, "ParaLSTM by Newton": 0}
GPU, NEWTON, MATRICES = "LSTM as on a GPU", "ParaLSTM by Newton", "GLA in chunks"
# Sums over units that are no products: means of a normalization, and scores of attention, which are kept or made again.
SUMS = {
    ("LayerNormLSTM", "all names"): 8,
    ("decoder", "all names"): 2,
    ("decoder", "recompute all"): 1,
    ("decoder", "segments"): 3,
}


def found(mesh, quick):
    """What one process finds for all variants on a mesh."""
    return report_of("on_devices.py", QUICK if quick else {mesh: SLOW[mesh]})


def variants(asked):
    return [(mesh, case, memory) for mesh in asked for case, chosen in asked[mesh].items() for memory in chosen]


each = pytest.mark.parametrize(("mesh", "case", "memory", "quick"), quick_or_slow(variants(QUICK), variants(SLOW)))


def of_variant(mesh, case, memory, quick):
    return found("" if quick else mesh, quick)[mesh][f"{case}, {memory}"]


@each
def test_results_and_gradients_are_those_of_one_device(mesh, case, memory, quick):
    assert of_variant(mesh, case, memory, quick)["difference"] < 3e-5


@each
def test_a_step_has_one_gather_forward_and_one_reduction_backward(mesh, case, memory, quick):
    """A reduction is an all-reduce here: XLA makes reduce-scatters of them for GPUs and TPUs."""
    if case == MATRICES:
        pytest.skip("at each window of matrix states XLA moves heads, and gradients of parameters are reduced")
    collectives = of_variant(mesh, case, memory, quick)["collectives"]
    in_loops = {kind: made for kind, made in collectives.items() if "loop" in kind}
    if case == NEWTON:  # All devices iterate until all rows have converged.
        in_loops = {kind: [one for one in made if not one.endswith("[]")] for kind, made in in_loops.items()}
    around = {kind for kind, made in in_loops.items() if kind.endswith("around a loop") and made}
    rows, reduced = 24 // int(mesh.removeprefix("units ")[0]), in_loops.get("all-reduce in a loop", [])
    sums = [one for one in reduced if one in (f"f32[{rows}]", f"f32[{rows},4]")]
    counts = {kind: len(made) for kind, made in in_loops.items() if kind not in around and made}
    products = 0 if mesh == "units 8x1" else PRODUCTS.get(case, 1)
    if not products:
        assert not counts
        assert not around
        return
    trip = 2 if case == GPU else 1  # A chunk of two steps is one trip; its states are gathered beside.
    assert counts == {
        "all-gather in a loop": products * trip * (2 if memory == "segments" else 1) + (case == GPU),
        # The inputs of a decoder have a cotangent, because the context is a part of them.
        "all-reduce in a loop": products * trip + (case == "decoder") + SUMS.get((case, memory), 0),
    }
    assert len(sums) == SUMS.get((case, memory), 0)
    # For a chunk of steps: the states for the gradient of the weights, and the cotangents of a layer's inputs.
    assert around <= {"all-gather in a loop around a loop", "all-reduce in a loop around a loop"}


@each
def test_each_device_reduces_its_part_of_the_parameters_over_the_batch_once(mesh, case, memory, quick):
    collectives = of_variant(mesh, case, memory, quick)["collectives"]
    if mesh == "units 8x1" and case not in OTHERS:
        reduced = [kind for kind in collectives["all-reduce"] if kind != "f32[]"]
        assert len(reduced) == len(of_variant(mesh, case, memory, quick)["parameters"])
