"""Draw the pictures of docs/engine.md: steps as `rnnscan.explain` splits them, and the order of the work.

    python docs/make_engine_pictures.py

The tests check that the pictures are up to date.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import rnnscan as rs
from rnnscan import cells
from rnnscan.graph.draw import Picture


PICTURES = Path(__file__).parent / "pictures" / "engine"
BATCH, INPUT_SIZE, UNITS = 32, 128, 256
STEPS, CHUNK = 12, 4
# Widths in the picture of the order.
PARALLEL, RECURRENT, SUMS = 0.6, 0.7, 1.0


def fast_and_slow(params: Any, carry: Any, x: Any) -> tuple[Any, Any]:
    """A recurrent state, and a decaying sum of it; the output is the first, gated by a readout of the second."""
    fast, slow = carry
    fast = jnp.tanh(x @ params["kernel"] + fast @ params["recurrent_kernel"])
    slow = params["decay"] * slow + fast
    return (fast, slow), fast * jax.nn.sigmoid(slow @ params["read_kernel"])


def steps() -> dict[str, tuple[Any, Sequence[str]]]:
    """The explanation of each step and the names of its carry, by the name of the picture."""

    def array(*shape: int) -> Any:
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    xs, hidden = array(1024, BATCH, INPUT_SIZE), array(BATCH, UNITS)
    params = {
        "kernel": array(INPUT_SIZE, UNITS),
        "recurrent_kernel": array(UNITS, UNITS),
        "decay": array(UNITS),
        "read_kernel": array(UNITS, UNITS),
    }
    layers = rs.stack(cells.RNN(UNITS, use_bias=False), cells.RNN(UNITS, use_bias=False))
    of_layers = jax.eval_shape(lambda: layers.init(jax.random.key(0), INPUT_SIZE))
    return {
        "fast_and_slow": (rs.explain(fast_and_slow, params, (hidden, hidden), xs), ["fast", "slow"]),
        "two_layers": (rs.explain(layers, of_layers, ((hidden,), (hidden,)), xs), ["h of layer 1", "h of layer 2"]),
    }


def timeline_figure() -> Any:
    """The order of the work of twelve steps of a cell. Time runs to the right; widths are not to scale."""
    from matplotlib.figure import Figure

    from rnnscan.graph.draw.colors import KINDS

    figure = Figure(figsize=(9.6, 2.9), layout="constrained")
    axes = figure.subplots()
    axes.set_axis_off()
    axes.set_xlim(-2.6, 20)
    axes.set_ylim(-0.6, 3.5)

    def box(row: float, start: float, width: float, kind: str, text: str) -> float:
        axes.barh(row, width - 0.06, left=start, height=0.62, color=KINDS[kind].fill)
        axes.text(start + width / 2 - 0.03, row, text, ha="center", va="center", fontsize="x-small")
        return start + width

    for row, title in ((3, "lax.scan"), (2, "rnnscan,\nforward"), (1, "rnnscan,\nbackward")):
        axes.text(-2.5, row, title, va="center")
        end = 0.0
        for first in range(0, STEPS, CHUNK):
            numbers = [STEPS - 1 - first - step if row == 1 else first + step for step in range(CHUNK)]
            span = f"{min(numbers)}\N{EN DASH}{max(numbers)}"
            if row < 3:
                end = box(row, end, PARALLEL * CHUNK, "parallel", span + (" again" if row == 1 else ""))
            for number in numbers:
                if row == 3:
                    end = box(row, end, PARALLEL, "parallel", str(number))
                end = box(row, end, RECURRENT, "recurrent", str(number))
            if row == 1:
                end = box(row, end, SUMS, "parallel", "sum")
    end = box(-0.2, 0, 2.8, "parallel", "parallel")
    box(-0.2, end, 2.8, "recurrent", "step by step")
    return figure


def pictures() -> dict[str, Picture]:
    """The pictures of steps, by name."""
    return {name: explanation.draw(names=names) for name, (explanation, names) in steps().items()}


def main() -> None:
    """Write the pictures."""
    import matplotlib

    for name, picture in pictures().items():
        picture.save(PICTURES / f"{name}.svg")
    # The same file from the same step, and text that is text.
    matplotlib.rcParams.update({"svg.hashsalt": "rnnscan", "svg.fonttype": "none"})
    timeline_figure().savefig(PICTURES / "timeline.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
