"""Serving an exported net beside torch.jit and onnxruntime, on the processor: `python -m benchmarks.serving`."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import jax
import numpy as np
import typer
from rich.console import Console

import rnnscan as rs
from benchmarks.machine import describe_machine, with_condition
from benchmarks.others import Others
from benchmarks.table import markdown_table


HIDDEN = 256
FAMILIES = ("LSTM", "GRU")
STEPS, WARM_UP = 200, 20
PAGE = """# Serving

An exported net beside live JAX, `torch.jit` and onnxruntime on the processor, `python -m benchmarks.serving`. All have
the same weights, and their outputs agree to 1e-5. [Export](export.md) is the guide.

{machine}

## A step of a stream

One layer of {hidden} units on {hidden} features, one row, one step a call, and the carry handed on. The input comes as
a NumPy array and the output is read as one. torch and onnxruntime have one thread. The rows take turns, {steps} steps
at a time, for {rounds} rounds. The ratio is of the medians, to the live step.

{steps_table}

## From nothing to the first answer

A process imports the library, loads the {first}, and runs one step. Medians of {processes} processes that take turns,
in milliseconds. The first step compiles the program with XLA. `rnnscan.export.load` of a second folder in the same
process takes {again:.0f} ms.

{start_table}
"""
# One process for each row. The library is imported first.
START = """
import sys, time
start = time.perf_counter()
{imports}
imported = time.perf_counter()
import json
import numpy as np
x = np.ones((1, {hidden}), np.float32)
resumed = time.perf_counter()
{load}
loaded = time.perf_counter()
{step}
print(json.dumps([imported - start, loaded - resumed, time.perf_counter() - loaded]))
"""
SESSION = (
    "session = onnxruntime.InferenceSession(sys.argv[1] + '/net.onnx')\n"
    "zeros = {one.name: np.zeros(one.shape, np.float32) for one in session.get_inputs()[1:]}"
)
STARTS = {
    "jax, import only": ("import jax, jax.numpy", "", ""),
    "rnnscan, exported": (
        "import rnnscan",
        "net = rnnscan.export.load(sys.argv[1] + '/net')",
        "np.asarray(net.step(net.init(N=1), x)[1])",
    ),
    "torch.jit": (
        "import torch",
        "net = torch.jit.load(sys.argv[1] + '/net.pt')\nzeros = torch.zeros(1, *x.shape)",
        "with torch.inference_mode(): net(torch.from_numpy(x)[None], (zeros, zeros))[0].numpy()",
    ),
    "onnxruntime": ("import onnxruntime", SESSION, "session.run(None, {'xs': x[None], **zeros})"),
}

# (carry, x (1, H)) -> (carry, y (1, H) or (1, 1, H)), with NumPy's arrays as x and y.
Step = Callable[[Any, np.ndarray], tuple[Any, np.ndarray]]


def peers(family: str, folder: Path) -> dict[str, tuple[Any, Step]]:
    """The initial carry and the step of each row, with the same weights; their files stay in the folder."""
    import torch

    folder.mkdir()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    module = getattr(torch.nn, family)(HIDDEN, HIDDEN).eval()
    net, params = rs.interop.from_torch(module.state_dict(), family)
    xs = jax.ShapeDtypeStruct((1, 1, HIDDEN), np.float32)
    rs.export.save(folder / "net", net, params, [xs], ["cpu"])
    inputs = {"xs": xs, "carry": jax.eval_shape(net.initial_carry, xs)}
    rs.export.to_onnx(folder / "net.onnx", net, params, inputs, dynamic=(None, None))
    zeros = torch.zeros(1, 1, HIDDEN)
    carry = (zeros, zeros) if family == "LSTM" else zeros
    torch.jit.save(torch.jit.trace(module, (zeros, carry)), folder / "net.pt")
    return _jax_peers(net, params, folder) | _torch_peers(family, module, folder) | _onnx_peer(folder)


def _jax_peers(net: Any, params: Any, folder: Path) -> dict[str, tuple[Any, Step]]:
    live, loaded = jax.jit(lambda params, carry, x: net.step(params, x, carry=carry)), rs.export.load(folder / "net")

    def run_live(carry: Any, x: np.ndarray) -> tuple[Any, np.ndarray]:
        carry, y = live(params, carry, x)
        return carry, np.asarray(y)

    def run_loaded(carry: Any, x: np.ndarray) -> tuple[Any, np.ndarray]:
        carry, y = loaded.step(carry, x)
        return carry, np.asarray(y)

    return {"live jitted step": (loaded.init(N=1), run_live), "rnnscan, exported": (loaded.init(N=1), run_loaded)}


def _torch_peers(family: str, module: Any, folder: Path) -> dict[str, tuple[Any, Step]]:
    """torch's layer with one step, and its cell."""
    import torch

    layer = torch.jit.load(folder / "net.pt")
    cell = getattr(torch.nn, f"{family}Cell")(HIDDEN, HIDDEN).eval()
    cell.load_state_dict({name.removesuffix("_l0"): value for name, value in module.state_dict().items()})
    cell = torch.jit.script(cell)
    zeros = torch.zeros(1, 1, HIDDEN)
    is_lstm = family == "LSTM"

    @torch.inference_mode()
    def run_layer(carry: Any, x: np.ndarray) -> tuple[Any, np.ndarray]:
        y, carry = layer(torch.from_numpy(x)[None], carry)
        return carry, y.numpy()

    @torch.inference_mode()
    def run_cell(carry: Any, x: np.ndarray) -> tuple[Any, np.ndarray]:
        carry = cell(torch.from_numpy(x), carry)
        return carry, (carry[0] if is_lstm else carry).numpy()

    first = [(zeros, zeros), (zeros[0], zeros[0])] if is_lstm else [zeros, zeros[0]]
    return {f"torch.jit, nn.{family}": (first[0], run_layer), f"torch.jit, nn.{family}Cell": (first[1], run_cell)}


def _onnx_peer(folder: Path) -> dict[str, tuple[Any, Step]]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(folder / "net.onnx", options)
    xs, *carries = [one.name for one in session.get_inputs()]
    shapes = [one.shape for one in session.get_inputs()[1:]]

    def run(carry: Any, x: np.ndarray) -> tuple[Any, np.ndarray]:
        ys, *carry = session.run(None, {xs: x[None], **dict(zip(carries, carry, strict=True))})
        return carry, ys

    return {"onnxruntime": ([np.zeros(shape, np.float32) for shape in shapes], run)}


def step_times(rows: dict[str, tuple[Any, Step]], rounds: int) -> dict[str, np.ndarray]:
    """The seconds of each step of each row, after a check that all rows agree."""
    xs = np.random.default_rng(0).normal(size=(WARM_UP + STEPS, 1, HIDDEN)).astype(np.float32)
    carries, outputs = {}, {}
    for name, (carry, step) in rows.items():
        for x in xs[:WARM_UP]:
            carry, y = step(carry, x)
        carries[name], outputs[name] = carry, y.reshape(1, HIDDEN)
    for output in outputs.values():
        np.testing.assert_allclose(output, next(iter(outputs.values())), rtol=1e-5, atol=1e-5)
    seconds: dict[str, list[float]] = {name: [] for name in rows}
    for _ in range(rounds):
        for name, (_, step) in rows.items():
            carry = carries[name]
            for place, x in enumerate(xs):
                start = time.perf_counter()
                carry, _ = step(carry, x)
                if place >= WARM_UP:
                    seconds[name].append(time.perf_counter() - start)
    return {name: np.array(taken) for name, taken in seconds.items()}


def start_times(folder: Path, processes: int) -> dict[str, list[float]]:
    """The median seconds of importing, loading and the first step, of processes that take turns."""
    taken: dict[str, list[list[float]]] = {name: [] for name in STARTS}
    # Bytecode is cached, as it is once a library has been imported; the first round fills the cache.
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPYCACHEPREFIX": str(folder / "bytecode")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    for _ in range(1 + processes):
        for name, (imports, load, step) in STARTS.items():
            script = START.format(imports=imports, load=load, step=step, hidden=HIDDEN)
            command = [sys.executable, "-W", "ignore", "-c", script, str(folder)]
            shown = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
            taken[name].append(json.loads(shown))
    return {name: [median(column) for column in zip(*times[1:], strict=True)] for name, times in taken.items()}


def steps_table(times: dict[str, dict[str, np.ndarray]]) -> list[list[str]]:
    """A row for each peer of each family: median and 99th percentile in microseconds, and the ratio."""
    rows = []
    for family, taken in times.items():
        live = float(np.median(taken["live jitted step"]))
        for name, seconds in taken.items():
            middle, slow = float(np.median(seconds)), float(np.percentile(seconds, 99))
            rows.append([f"{family}: {name}", f"{1e6 * middle:.0f}", f"{1e6 * slow:.0f}", f"{middle / live:.2f}"])
    return rows


def load_again(folder: Path, times: int) -> float:
    """The median milliseconds of loading in this process."""
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        rs.export.load(folder / "net")
        taken.append(1e3 * (time.perf_counter() - start))
    return median(taken)


def main(
    rounds: Annotated[int, typer.Option(min=1, help="rounds of the steps")] = 20,
    processes: Annotated[int, typer.Option(min=1, help="processes of each library")] = 7,
    write: Annotated[Path | None, typer.Option(help="a Markdown file for the results")] = None,
) -> None:
    """Serving an exported net beside torch.jit and onnxruntime."""
    times, others = {}, Others()
    with tempfile.TemporaryDirectory() as folder:
        for family in FAMILIES:
            times[family] = step_times(peers(family, Path(folder, family)), rounds)
        starts = start_times(Path(folder, FAMILIES[0]), processes)
        again = load_again(Path(folder, FAMILIES[0]), 20)
    start_rows = [
        [name, *(f"{1e3 * one:.0f}" if one > 1e-4 else "" for one in taken), f"{1e3 * sum(taken):.0f}"]
        for name, taken in starts.items()
    ]
    machine = describe_machine("float32")
    page = PAGE.format(
        machine="\n".join(f"- {heading}: {text}" for heading, text in machine.items()),
        hidden=HIDDEN,
        steps=STEPS,
        rounds=rounds,
        processes=processes,
        first=FAMILIES[0],
        again=again,
        steps_table=markdown_table(["row", "median µs", "99 % µs", "ratio"], steps_table(times)),
        start_table=markdown_table(["row", "import", "load", "first step", "all"], start_rows),
    )
    page = with_condition(page, machine, others.sentence())
    Console(width=120).print(page, markup=False, highlight=False)
    if write is not None:
        write.write_text(page)


if __name__ == "__main__":
    typer.run(main)
