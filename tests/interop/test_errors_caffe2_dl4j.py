"""Tensors of Caffe2 and DL4J that do not fit, and nets that neither has, are refused by name."""

import numpy as np
import pytest

import rnnscan as rs
from rnnscan import interop


pytestmark = pytest.mark.bad_input

LSTM = rs.cells.LSTM(4)
DL4J = {"W": (3, 16), "RW": (4, 19), "b": (1, 16)}
BOTH = {way + name: shape for way in "fb" for name, shape in DL4J.items()}
CAFFE2 = {"i2h_w": (16, 3), "i2h_b": (16,), "gates_t_w": (16, 4), "gates_t_b": (16,)}
ATTENTION = CAFFE2 | {"gates_t_w": (16, 10), "attention_v": (1, 6)}
ATTENTION |= {"weighted_decoder_hidden_state_w": (6, 4), "weighted_decoder_hidden_state_b": (6,)}
LSTM_PARAMS = {"kernel": np.ones((3, 16)), "recurrent_kernel": np.ones((4, 16)), "bias": np.ones(16)}


def tensors(**shapes):
    return {name: np.ones(shape, np.float32) for name, shape in shapes.items()}


def without(shapes, name):
    return {other: shape for other, shape in shapes.items() if other != name}


def caffe2(input_size=3, **changed):
    gates = ("input_gate", "forget_gate", "output_gate", "cell")
    of_input = {f"{gate}_w": np.ones((4, input_size)) for gate in gates} | {f"{gate}_b": np.ones(4) for gate in gates}
    recurrent = {f"{gate}_w": np.ones((4, 4)) for gate in gates} | {f"{gate}_b": np.ones(4) for gate in gates}
    return {"input": of_input | changed, "recurrent": recurrent}


FAULTS = {
    "caffe2_missing": (
        lambda: interop.from_caffe2(caffe2() | {"output": {}}),
        r"weights by gate must be those of 'input', 'recurrent', or of one of the two; got .*'output'\.",
    ),
    "caffe2_unknown": (
        lambda: interop.from_caffe2(caffe2(cell_gate_w=np.ones((4, 3)))),
        r"the tensors of Caffe2's 'input' of an LSTM must be .*: unknown 'cell_gate_w'\.",
    ),
    "caffe2_shape": (
        lambda: interop.from_caffe2(caffe2(forget_gate_w=np.ones((3, 5)))),
        r"'input/forget_gate_w' must have as many elements as \(4, 3\), which Caffe2 lays out as \(H, D\), one tensor "
        r"for each gate, units in rows; got \(3, 5\)\.",
    ),
    "caffe2_bias": (
        lambda: interop.from_caffe2(caffe2(cell_b=np.ones(5))),
        r"'input/cell_b' must have as many elements as \(4,\), which Caffe2 lays out as \(H,\), .*; got \(5,\)\.",
    ),
    "caffe2_fused_missing": (
        lambda: interop.from_caffe2(tensors(**without(CAFFE2, "gates_t_b"))),
        r"the tensors of Caffe2's LSTM must be 'i2h_w', .*; got .*: missing 'gates_t_b'\.",
    ),
    "caffe2_fused_unknown": (
        lambda: interop.from_caffe2(tensors(**CAFFE2, initial_hidden_state=(4,))),
        r"the tensors of Caffe2's LSTM must be .*: unknown 'initial_hidden_state'\.",
    ),
    "caffe2_fused_shape": (
        lambda: interop.from_caffe2(tensors(**CAFFE2 | {"gates_t_w": (16, 5)})),
        r"'gates_t_w' must have as many elements as \(16, 4\), which Caffe2 lays out as \(4H, H\), gates i f o g in "
        r"rows; got \(16, 5\)\.",
    ),
    "caffe2_fused_bias": (
        lambda: interop.from_caffe2(tensors(**CAFFE2 | {"i2h_b": (15,)})),
        r"'i2h_b' must have as many elements as \(12,\), which Caffe2 lays out as \(4H,\), .*; got \(15,\)\.",
    ),
    "caffe2_two_layers": (
        lambda: interop.from_caffe2(tensors(**CAFFE2, **{"lstm/layer_1/i2h_w": (16, 4)})),
        r"must be those of one layer; got 'i2h_w', 'lstm/layer_1/i2h_w'\. Convert one layer at a time\.",
    ),
    "caffe2_no_dictionary": (lambda: interop.from_caffe2([1]), r"must be a dictionary by name; got list\."),
    "caffe2_milstm": (
        lambda: interop.from_caffe2(tensors(**CAFFE2, alpha=(16,))),
        r"the tensors of Caffe2's MILSTM must be 'i2h_w', 'prev_t_w', 'b', 'alpha', .* and unknown 'gates_t_w'",
    ),
    "caffe2_attention": (
        lambda: interop.from_caffe2(tensors(**CAFFE2, attention_v=(1, 6))),
        r"those of a cell; got 'attention_v' .*\. Use from_caffe2_attention\.",
    ),
    "caffe2_into": (
        lambda: interop.from_caffe2(caffe2(), into=LSTM_PARAMS),
        r"`into` completes .*; got both, of LSTM\. Leave `into` out",
    ),
    "caffe2_into_size": (
        lambda: interop.from_caffe2({"input": caffe2(input_size=5)["input"]}, into=LSTM_PARAMS),
        r"'input/input_gate_w' must have as many elements as \(4, 3\), .*; got \(4, 5\)\.",
    ),
    "caffe2_into_other": (
        lambda: interop.from_caffe2({"input": caffe2()["input"]}, into={"kernel": np.ones((3, 16))}),
        r"LSTM: the parameters of 1 units must be .*; got 'kernel'",
    ),
    "caffe2_forget_bias": (
        lambda: interop.from_caffe2({"recurrent": caffe2()["recurrent"]}, forget_bias=1.0),
        r"`forget_bias` is added with the 'input' weights; got forget_bias=1\.0 and only 'recurrent'",
    ),
    "caffe2_attention_type": (
        lambda: interop.from_caffe2_attention(tensors(**ATTENTION), "Additive"),
        r"`attention_type` must be one of 'Regular', 'Recurrent', 'Dot', 'SoftCoverage'; got 'Additive'\.",
    ),
    "caffe2_attention_missing": (
        lambda: interop.from_caffe2_attention(tensors(**ATTENTION), "Recurrent"),
        r"the tensors of Caffe2's Recurrent attention must be .*: missing 'weighted_prev_attention_context_b', ",
    ),
    "caffe2_attention_shape": (
        lambda: interop.from_caffe2_attention(tensors(**ATTENTION | {"gates_t_w": (16, 4)})),
        r"'gates_t_w' must have as many elements as \(16, 10\), which Caffe2 lays out as \(4H, H\+E\), gates i f o g "
        r"in rows; got \(16, 4\)\.",
    ),
    "caffe2_attention_milstm": (
        lambda: interop.from_caffe2_attention(tensors(**ATTENTION, alpha=(16,))),
        r"must be an LSTM or a LayerNormLSTM; got the blobs of a MILSTM\.",
    ),
    "dl4j_missing": (
        lambda: interop.from_dl4j(tensors(**without(DL4J, "RW"), wR=(4, 19))),
        r"the tensors of a DL4J LSTM must be 'W', 'RW', 'b'; got .*: missing 'RW', and unknown 'wR'\.",
    ),
    "dl4j_shape": (
        lambda: interop.from_dl4j(tensors(**DL4J | {"W": (3, 12)})),
        r"'W' must be \(D, 16\), which DL4J lays out as \(D, 4H\), gates g f o i in columns; got \(3, 12\)\.",
    ),
    "dl4j_peepholes": (
        lambda: interop.from_dl4j(tensors(**DL4J | {"RW": (4, 18)})),
        r"'RW' must be \(4, 19\), which DL4J lays out as \(H, 4H\+3\), gates g f o i in columns; got \(4, 18\)\.",
    ),
    "dl4j_one_direction": (
        lambda: interop.from_dl4j(tensors(**DL4J), merge="sum"),
        r"`merge` is for both directions; got merge='sum' and one direction, 'W', 'RW', 'b'\. Give the tensors 'fW',",
    ),
    "dl4j_both_missing": (
        lambda: interop.from_dl4j(tensors(WF=(3, 16), RWF=(4, 19), bF=(1, 16))),
        r"the tensors of a DL4J GravesBidirectionalLSTM must be 'WF', 'RWF', 'bF', 'WB', .*: missing 'WB', 'RWB', 'bB'",
    ),
    "dl4j_both_sizes": (
        lambda: interop.from_dl4j(tensors(**BOTH | {"bW": (5, 16)})),
        r"'bW' must be \(3, 16\), which DL4J lays out as \(D, 4H\), gates g f o i in columns; got \(5, 16\)\.",
    ),
    "dl4j_both_peepholes": (
        lambda: interop.from_dl4j(tensors(**BOTH | {"bRW": (4, 16)})),
        r"'bRW' must be \(4, 19\), which DL4J lays out as \(H, 4H\+3\), gates g f o i in columns; got \(4, 16\)\.",
    ),
    "dl4j_merge": (
        lambda: interop.from_dl4j(tensors(**BOTH), merge="ADD"),
        r"`merge` must be one of 'concat' \(CONCAT\), 'sum' \(ADD\), .*; got 'ADD'\.",
    ),
    "dl4j_graves_merge": (
        lambda: interop.from_dl4j(
            tensors(WF=(3, 16), RWF=(4, 19), bF=(1, 16), WB=(3, 16), RWB=(4, 19), bB=(1, 16)), merge="concat"
        ),
        r"a GravesBidirectionalLSTM adds its two directions; got merge='concat'\.",
    ),
}


@pytest.mark.bad_input
@pytest.mark.parametrize(("convert", "message"), FAULTS.values(), ids=FAULTS)
def test_tensors_that_do_not_fit_are_refused_by_name(convert, message):
    with pytest.raises((ValueError, TypeError), match=message):
        convert()


@pytest.mark.parametrize(
    ("net", "options", "message"),
    [
        (
            rs.bidirectional(LSTM, merge=lambda forward, backward: forward),
            {},
            r"DL4J merges two directions by 'concat', 'sum', 'mean', 'product'; got merge=<function",
        ),
        (
            rs.bidirectional(LSTM, rs.cells.LSTM(4, activation="relu")),
            {},
            r"both directions of a DL4J layer must .* one size and form; got LSTM\(hidden_size=4\) and LSTM\(.*relu",
        ),
        (
            rs.bidirectional(LSTM, merge="sum"),
            {"kind": "GravesBidirectionalLSTM"},
            r"a GravesBidirectionalLSTM has peepholes and adds its two directions; got merge='sum' of LSTM",
        ),
        (rs.layer(LSTM), {"kind": "Bidirectional"}, r"`kind` is for a bidirectional net; got kind='Bidirectional'"),
        (rs.bidirectional(LSTM), {"kind": "LSTM"}, r"`kind` must be one of 'Bidirectional', 'Graves.*; got 'LSTM'"),
    ],
    ids=["merge", "forms", "graves", "layer", "kind"],
)
def test_nets_that_dl4j_has_not_are_refused(net, options, message, random_params):
    with pytest.raises(ValueError, match=message):
        interop.to_dl4j(net, random_params(net), **options)


@pytest.mark.parametrize(
    ("cell", "options", "message"),
    [
        (rs.cells.LayerNormLSTM(4), {}, r"Caffe2's layer norm has epsilon=0\.0001; got .* with epsilon=1e-05\."),
        (
            rs.cells.LayerNormLSTM(4, normalize="products"),
            {},
            r"Caffe2 has no LayerNormLSTM with normalize='products'; got",
        ),
        (rs.cells.MILSTM(4, activation="relu"), {}, r"Caffe2 has no MILSTM with activation='relu'; got"),
        (LSTM, {"scope": "lstm"}, r"`scope` is the scope of blobs; .*by gate\. Give fused=True\."),
    ],
    ids=["epsilon", "products", "activation", "scope"],
)
def test_cells_that_caffe2_has_not_are_refused(cell, options, message, random_params):
    net = rs.layer(cell)
    with pytest.raises(ValueError, match=message):
        interop.to_caffe2(net, random_params(net), **options)


A = rs.attention


@pytest.mark.parametrize(
    ("cell", "mechanism", "message"),
    [
        (LSTM, A.Additive(6, 5), r"Caffe2's keys are .*.*attention_size=6\."),
        (LSTM, A.Dot(4, scale=True), r"Caffe2's Dot has no scale; got Dot\(.*scale=False\."),
        (LSTM, A.Dot(4, project_query=True), r"projects its query only if H is not E; .* for H=4\."),
        (LSTM, A.MultiHead(6, 4, 2), r"Caffe2 has attention of the kinds 'Additive', .*; got MultiHead\("),
        (rs.cells.MILSTM(4), A.Dot(4), r"must be an LSTM or a LayerNormLSTM; got MILSTM\("),
        (rs.cells.GRU(4), A.Dot(4), r"Caffe2 has cells of the kinds 'LSTM', 'LayerNormLSTM', .*; got GRU\("),
    ],
    ids=["size", "scale", "query", "heads", "milstm", "gru"],
)
def test_decoders_that_caffe2_has_not_are_refused(cell, mechanism, message, random_params):
    decoder = A.decoder(cell, mechanism)
    with pytest.raises(ValueError, match=message):
        interop.to_caffe2_attention(decoder, random_params(decoder))


def test_a_cell_is_no_decoder():
    with pytest.raises(TypeError, match=r"one of rnnscan\.attention\.decoder; got LSTM\. Give the decoder itself"):
        interop.to_caffe2_attention(LSTM, LSTM_PARAMS)
