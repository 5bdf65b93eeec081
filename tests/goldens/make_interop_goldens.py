"""Record what torch.nn.LSTM, GRU and RNN compute in the forms that rnnscan.interop converts, in float64.

Run by hand, in an environment with torch and numpy, when a net is added here:

    python tests/goldens/make_interop_goldens.py

It writes `torch_interop.npz` beside itself; the tests read that with numpy and need no torch. Keys are
`<net>/<kind>/<name>`: of kind `weights` the state dict under torch's names, of kinds `inputs` and `outputs` x, y and
the states h and c, `(layers * directions, N, ...)`. `torch_version` says which torch it was.
"""

from pathlib import Path

import numpy as np
import torch


TIME, BATCH, INPUT_SIZE, HIDDEN_SIZE = 6, 3, 5, 4
NETS = {
    "lstm_bidirectional_2": (torch.nn.LSTM, {"num_layers": 2, "bidirectional": True}),
    "lstm_projection_bidirectional_2": (torch.nn.LSTM, {"num_layers": 2, "bidirectional": True, "proj_size": 2}),
    "lstm_projection": (torch.nn.LSTM, {"proj_size": 3}),
    "lstm_no_bias": (torch.nn.LSTM, {"bias": False}),
    "lstm_3": (torch.nn.LSTM, {"num_layers": 3}),
    "gru_bidirectional_2": (torch.nn.GRU, {"num_layers": 2, "bidirectional": True}),
    "gru_no_bias": (torch.nn.GRU, {"bias": False}),
    "rnn_tanh_2": (torch.nn.RNN, {"num_layers": 2}),
    "rnn_relu_bidirectional": (torch.nn.RNN, {"bidirectional": True, "nonlinearity": "relu"}),
}


def record(kind, options, generator):
    """Run one net on random numbers; returns `{"<kind>/<name>": array}`."""

    def random(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    net = kind(INPUT_SIZE, HIDDEN_SIZE, dtype=torch.float64, **options)
    weights = net.state_dict()
    for weight in weights.values():
        weight.copy_(0.5 * random(*weight.shape))

    cells = options.get("num_layers", 1) * (2 if options.get("bidirectional") else 1)
    inputs = {"x": random(TIME, BATCH, INPUT_SIZE), "h": random(cells, BATCH, options.get("proj_size", HIDDEN_SIZE))}
    if kind is torch.nn.LSTM:
        inputs["c"] = random(cells, BATCH, HIDDEN_SIZE)
        y, (h, c) = net(inputs["x"], (inputs["h"], inputs["c"]))
        outputs = {"y": y, "h": h, "c": c}
    else:
        y, h = net(inputs["x"], inputs["h"])
        outputs = {"y": y, "h": h}

    recorded = {"weights": weights, "inputs": inputs, "outputs": outputs}
    return {
        f"{kind}/{name}": value.detach().numpy() for kind, values in recorded.items() for name, value in values.items()
    }


def main():
    """Record all nets."""
    generator = torch.Generator().manual_seed(1997)
    arrays = {"torch_version": np.array(torch.__version__)}
    for net, (kind, options) in NETS.items():
        arrays |= {f"{net}/{key}": value for key, value in record(kind, options, generator).items()}
    path = Path(__file__).with_name("torch_interop.npz")
    np.savez_compressed(path, **arrays)
    print(f"{path}: {len(arrays)} arrays, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
