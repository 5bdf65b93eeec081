"""Random nets of LSTM, GRU and RNN: every combination that ONNX's operators hold."""

import numpy as np
import pytest

import rnnscan as rs
from onnx_files import SIZE, arguments, check
from rnnscan import cells


pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

ACTIVATIONS = ["tanh", "tanh", "sigmoid", "relu", "softsign", "elu"]
GATES = ["sigmoid", "sigmoid", "hard_sigmoid"]


def pick(random, options):
    return options[random.integers(len(options))]


def random_cell(random, size):
    hidden = int(random.integers(1, 7))
    flag = lambda: bool(random.integers(2))  # noqa: E731
    options = {"use_bias": flag(), "activation": pick(random, ACTIVATIONS)}
    kind = random.integers(3)
    if kind == 0:
        cell = cells.RNN(hidden, **options)
    elif kind == 1:
        cell = cells.GRU(hidden, reset_after=flag(), gate_activation=pick(random, GATES), **options)
    else:
        options |= {"peepholes": flag(), "coupled_gates": flag(), "gate_activation": pick(random, GATES)}
        cell = cells.LSTM(hidden, **options)
    if flag():
        cell = rs.dropout(cell, 0.5)
    return rs.residual(cell) if hidden == size else cell


def random_part(random, size):
    kind = random.integers(4)
    if kind == 0:
        return rs.layer(random_cell(random, size), reverse=bool(random.integers(2)))
    if kind == 1:
        lower = random_cell(random, size)
        return rs.layer(rs.stack(lower, random_cell(random, lower.output_size)), reverse=bool(random.integers(2)))
    forward = random_cell(random, size)
    backward = forward if random.integers(2) else random_cell(random, size)
    merges = ["concat"] + ["sum", "mean", "product"] * (forward.output_size == backward.output_size)
    return rs.bidirectional(forward, backward, merge=pick(random, merges))


def random_net(random):
    parts, size = [], SIZE
    for _ in range(random.integers(1, 4)):
        parts.append(random_part(random, size))
        size = parts[-1].output_size
    return parts[0] if len(parts) == 1 else rs.chain(*parts)


@pytest.mark.fuzz
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(150))
def test_random_nets(tmp_path, seed):
    random = np.random.default_rng(seed)
    net = random_net(random)
    lengths, initial = (bool(flag) for flag in random.integers(2, size=2))
    inputs = arguments(net, lengths=lengths, initial=initial, steps=int(random.integers(1, 9)), seed=seed)
    check(tmp_path / "net.onnx", net, inputs, seed=seed, scale=0.5)
