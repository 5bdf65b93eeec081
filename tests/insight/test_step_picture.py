"""The picture of a step shows what explain found, and what a plan keeps."""

import jax
import jax.numpy as jnp
import pytest

import rnnscan as rs
from rnnscan import cells


STEPS = 32


def arguments(cell):
    xs = jax.ShapeDtypeStruct((STEPS, 2, 3), jnp.float32)
    params = jax.eval_shape(lambda: cell.init(jax.random.key(0), 3))
    return cell, params, cell.initial_carry(jnp.ones((2, 3))), xs


def explained(cell, **options):
    return rs.explain(*arguments(cell), **options)


def test_the_operations_of_an_rnn_in_their_order_and_kinds():
    explanation = explained(cells.RNN(4))
    diagram = explanation.draw(names=["h"]).diagram
    boxes = {box.id: box for box in diagram.boxes}
    reads = {
        box.id: [boxes[one.source].text for one in diagram.arrows if one.target == box.id] for box in boxes.values()
    }
    products = [(box.kind, reads[box.id], box.notes) for box in boxes.values() if box.text == "@"]
    assert products == [("parallel", ["x"], ("kernel",)), ("recurrent", ["h"], ("recurrent_kernel",))]
    by_text = {box.text: box for box in boxes.values()}
    assert reads[by_text["h\N{PRIME}"].id] == reads[by_text["y"].id] == ["tanh"]
    assert (by_text["tanh"].kind, reads[by_text["tanh"].id]) == ("recurrent", ["+"])
    assert [box.notes[1] for box in boxes.values() if len(box.notes) > 1] == ["preactivation, 32 B"]


@pytest.mark.parametrize("cell", [cells.LSTM(4), cells.MinGRU(4)], ids=repr)
def test_kinds_are_those_of_the_explanation(cell):
    explanation = explained(cell)
    kinds = {box.id: box.kind for box in explanation.draw(details=True).diagram.boxes if box.role == "operation"}
    assert [kinds[f"n{index}"] for index in range(len(kinds))] == [one.kind for one in explanation.equations]


@pytest.mark.parametrize(
    ("cell", "memory"),
    [
        (cells.LSTM(4), rs.Memory()),
        (cells.LSTM(4), rs.Memory(recompute="all")),
        (cells.GRU(4), rs.Memory(segment=4)),
        (cells.MinGRU(4), rs.Memory()),
    ],
    ids=repr,
)
def test_kept_values_are_those_that_the_memory_report_counts(cell, memory):
    explanation = explained(cell, memory=memory)
    report = rs.memory_report(*arguments(cell), compile=False, memory=memory)
    diagram = explanation.diagram
    text = {box.id: box.text for box in diagram.boxes}
    label = {box.id: box.notes[0].partition(",")[0] for box in diagram.boxes if box.notes}
    kept, at_some, ys = set(), set(), set()
    for arrow in diagram.arrows:
        if arrow.keeping in ("kept", "kept at some steps"):
            name = f'"{label[arrow.source]}"' if "gates" in label.get(arrow.source, "") else text[arrow.source]
            (kept if arrow.keeping == "kept" else at_some).add(name)
            ys |= {text[arrow.target]} & {"y"}
    rows = {row.name for row in report.training.rows if row.kept}
    assert ("x" in kept) == ("xs" in rows)
    assert ('"gates"' in kept) == ('"gates"' in rows)
    assert bool(ys) == ("ys, kept" in rows)
    for index, _ in enumerate(explanation.carry):
        row = {name for name in rows if name.startswith(f"carry[{index}] before")}
        whole = f"carry[{index}] before every step" in row or (ys and not row)
        assert (f"carry[{index}]" in kept) == bool(whole)
        assert (f"carry[{index}]" in at_some) == (bool(row) and not whole)


@pytest.mark.filterwarnings("ignore:scan. offload:UserWarning")
def test_values_in_host_memory_are_dotted():
    explanation = explained(cells.GRU(4), memory=rs.Memory(offload=("gates",)))
    keeping = {arrow.keeping for arrow in explanation.draw().diagram.arrows}
    assert keeping == {"kept", "offloaded", "recomputed"}


def test_carry_that_does_not_change_closed_over_arrays_and_padding_are_drawn():
    table = jnp.ones((2, 4))

    def cell(params, carry, x):
        state, fixed = carry
        state = state * params["scale"] + fixed * x + table
        return (state, fixed), state

    carry, xs = (jnp.zeros((2, 4)), jnp.ones((2, 4))), jnp.ones((5, 2, 4))
    explanation = rs.explain(cell, {"scale": jnp.ones(4)}, carry, xs, seq_lengths=jnp.array([5, 3]))
    diagram = explanation.draw(title="padded").diagram
    texts = [box.text for box in diagram.boxes]
    assert {"x", "carry[0]", "carry[1]", "carry[0]\N{PRIME}", "carry[1]\N{PRIME}", "y"} <= {*texts}
    assert any(text.startswith("resets and valid steps") for text in texts)
    notes = {note for box in diagram.boxes for note in box.notes}
    assert "scale" in notes


@pytest.mark.bad_input
@pytest.mark.parametrize("names", [["h"], "hc", ["a", "b", "c"]])
def test_names_are_one_for_each_leaf_of_the_carry(names):
    explanation = explained(cells.LSTM(4))
    with pytest.raises(ValueError, match="`names` must have a name for each of the 2 leaves of the carry, ") as raised:
        explanation.draw(names=names)
    assert repr(names) in str(raised.value)
