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


# The way of the arguments: what each place does, and what goes on to the next.
_WALK_PLACES = {
    "scan": ("rs.scan(cell, params, carry, xs)", "the call"),
    "call": ("Call", "engine/call: checks; padding and resets around the step;\nthe step as a Program"),
    "plan": ("ExecutionPlan", "engine/plan: loops and their kinds, chunk, residuals"),
    "forward": ("forward pass", "engine/run: chunk by chunk, batched work and loops"),
    "results": ("carry, ys", "the results"),
    "backward": (
        "backward pass",
        "engine/run: the vjp of the step, split by the same rule,\nfrom the last chunk to the first",
    ),
    "gradients": ("gradients", "of params, carry and xs"),
}
_WALK_ARROWS = [
    ("scan", "call", "params, carry, xs"),
    ("call", "plan", "constants, carry, xs and the step"),
    ("plan", "forward", "xs in chunks; constants whole; carry before the first step"),
    ("forward", "results", "carry after the last step; ys of all chunks"),
    ("forward", "backward", "residuals: xs, carries, kept values"),
    ("plan", "backward", "constants"),
    ("results", "backward", "cotangents of carry and ys"),
    ("backward", "gradients", "sums over steps; cotangents of the first carry and of each x"),
]


def walk() -> str:
    """The way of a call's arguments to the loop and back, as SVG."""
    from rnnscan.graph.draw.dot import quoted
    from rnnscan.graph.draw.graphviz import to_svg

    font = 'fontname="DejaVu Sans,Verdana,sans-serif"'
    boxes = [
        f'  {name} [label=<<b>{title}</b><br/><font point-size="8">{text.replace(chr(10), "<br/>")}</font>>]'
        for name, (title, text) in _WALK_PLACES.items()
    ]
    arrows = [f"  {first} -> {second} [label={quoted(' ' + text)}]" for first, second, text in _WALK_ARROWS]
    settings = [
        f"  bgcolor=white ranksep=0.35 {font}",
        f'  node [shape=box style="filled,rounded" fillcolor="#eef2f7" color="#5b6b7f" fontsize=10 {font}]',
        f'  edge [arrowsize=0.6 color="#5b6b7f" fontsize=8 {font}]',
    ]
    return to_svg("\n".join(["digraph walk {", *settings, *boxes, *arrows, "}"]), "The way of a call's arguments")


def pictures() -> dict[str, Picture]:
    """The pictures of steps, by name."""
    return {name: explanation.draw(names=names) for name, (explanation, names) in steps().items()}


def main() -> None:
    """Write the pictures."""
    import matplotlib

    for name, picture in pictures().items():
        picture.save(PICTURES / f"{name}.svg")
    (PICTURES / "walk.svg").write_text(walk(), encoding="utf-8")
    # The same file from the same step, and text that is text.
    matplotlib.rcParams.update({"svg.hashsalt": "rnnscan", "svg.fonttype": "none"})
    timeline_figure().savefig(PICTURES / "timeline.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
