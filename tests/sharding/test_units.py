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
# The loops of a step, and the products in them that read a state, or y of the layer below in the same loop.
PRODUCTS = {"stack": 3, "bidirectional": 2, "chain": 2, "MinGRU": 0}


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
    if mesh != "units 8x1" and case in ("decoder", *OTHERS):
        pytest.skip("attention and normalization sum over units at each step, and matrix states have heads")
    if mesh == "units 8x1" and case in ("ParaLSTM by Newton", "GLA in chunks"):
        pytest.skip("the devices count iterations together, and reduce gradients at each window of matrix states")
    if case == "LSTM as on a GPU" and mesh != "units 8x1":
        pytest.skip("an unrolled loop has several steps")
    if (case, memory) == ("chain", "segments") and mesh != "units 8x1":
        pytest.skip("XLA keeps the inputs of the upper layer sharded between segments, and gathers them at each step")
    collectives = of_variant(mesh, case, memory, quick)["collectives"]
    in_loops = {kind: len(made) for kind, made in collectives.items() if "loop" in kind}
    products = 0 if mesh == "units 8x1" else PRODUCTS.get(case, 1)
    gathers = {"all-gather in a loop": products * (2 if memory == "segments" else 1)}
    reductions = {"all-reduce in a loop": products}
    around = {kind: count for kind, count in in_loops.items() if kind.endswith("around a loop")}
    assert {kind: count for kind, count in in_loops.items() if kind not in around} == (
        gathers | reductions if products else {}
    )
    # For a chunk of steps: the states for the gradient of the weights, and the cotangents of a layer's inputs.
    assert around.keys() <= (
        {"all-gather in a loop around a loop", "all-reduce in a loop around a loop"} if products else set()
    )


@each
def test_each_device_reduces_its_part_of_the_parameters_over_the_batch_once(mesh, case, memory, quick):
    collectives = of_variant(mesh, case, memory, quick)["collectives"]
    if mesh == "units 8x1" and case not in OTHERS:
        reduced = [kind for kind in collectives["all-reduce"] if kind != "f32[]"]
        assert len(reduced) == len(of_variant(mesh, case, memory, quick)["parameters"])
