"""Record what torch.nn.LSTM, GRU and RNN compute, and their gradients, in float64.

Run by hand, in an environment with torch and numpy, when a net is added here:

    python tests/goldens/make_torch_goldens.py

It writes `torch_rnn.npz` beside itself; the tests read that with numpy and need no torch. Keys are
`<net>/<kind>/<name>`: of kind `weights` under torch's own names, `inputs` and `outputs` (x, y, h, c), `loss_weights` of
the outputs, and `gradients` of `sum(loss_weights * sin(outputs))` for every weight and input. States are
`(layers, N, H)`. `torch_version` says which torch it was.
"""

from pathlib import Path

import numpy as np
import torch


TIME, BATCH, INPUT_SIZE, HIDDEN_SIZE = 7, 3, 5, 4
NETS = {
    "lstm": (torch.nn.LSTM, 1, {}),
    "lstm_2": (torch.nn.LSTM, 2, {}),
    "gru": (torch.nn.GRU, 1, {}),
    "gru_2": (torch.nn.GRU, 2, {}),
    "rnn_tanh": (torch.nn.RNN, 1, {"nonlinearity": "tanh"}),
    "rnn_relu": (torch.nn.RNN, 1, {"nonlinearity": "relu"}),
}


def record(kind, layers, options, generator):
    """Run one net on random numbers; returns `{"<kind>/<name>": array}`."""

    def random(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    net = kind(INPUT_SIZE, HIDDEN_SIZE, num_layers=layers, dtype=torch.float64, **options)
    weights = dict(net.named_parameters())
    with torch.no_grad():
        for weight in weights.values():
            weight.copy_(0.5 * random(*weight.shape))

    states = ["h", "c"] if kind is torch.nn.LSTM else ["h"]
    inputs = {"x": random(TIME, BATCH, INPUT_SIZE)} | {state: random(layers, BATCH, HIDDEN_SIZE) for state in states}
    for value in inputs.values():
        value.requires_grad_()
    initial = tuple(inputs[state] for state in states)
    y, final = net(inputs["x"], initial if len(states) == 2 else initial[0])
    outputs = {"y": y} | dict(zip(states, final if len(states) == 2 else (final,), strict=True))

    loss_weights = {name: random(*value.shape) for name, value in outputs.items()}
    loss = sum((loss_weights[name] * torch.sin(value)).sum() for name, value in outputs.items())
    sources = weights | inputs
    gradients = dict(zip(sources, torch.autograd.grad(loss, list(sources.values())), strict=True))

    recorded = {
        "weights": weights,
        "inputs": inputs,
        "outputs": outputs,
        "loss_weights": loss_weights,
        "gradients": gradients,
    }
    return {
        f"{kind}/{name}": value.detach().numpy() for kind, values in recorded.items() for name, value in values.items()
    }


def main():
    """Record all nets."""
    generator = torch.Generator().manual_seed(2017)
    arrays = {"torch_version": np.array(torch.__version__)}
    for net, (kind, layers, options) in NETS.items():
        arrays |= {f"{net}/{key}": value for key, value in record(kind, layers, options, generator).items()}
    path = Path(__file__).with_name("torch_rnn.npz")
    np.savez_compressed(path, **arrays)
    print(f"{path}: {len(arrays)} arrays, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
