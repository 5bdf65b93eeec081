"""Draw the picture of docs/newton.md: the corrections of Newton's method at each step, after each iteration.

python docs/make_newton_picture.py
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import rnnscan as rs


PATH = Path(__file__).parent / "pictures" / "newton" / "corrections.svg"
STEPS, UNITS = 512, 64
# The scale of the recurrent weights (None: a new cell's), and the iterations to show.
PANELS = {"a new ParaGRU": (None, 5), "recurrent weights from N(0, 1)": (1.0, 9)}


def corrections(scale: float | None, iterations: int) -> np.ndarray:
    """The largest correction of a ParaGRU at each step, by iteration."""
    cell = rs.cells.ParaGRU(UNITS)
    keys = jax.random.split(jax.random.key(0), 3)
    xs = jax.random.normal(keys[0], (STEPS, 4, 32))
    params = cell.init(keys[1], input_size=32)
    if scale is not None:
        params["recurrent_kernel"] = scale * jax.random.normal(keys[2], (3 * UNITS,))

    def step(hidden, x):
        return cell(params, (hidden,), x)[0][0]

    steps = jax.vmap(step)
    zeros = jnp.zeros((1, 4, UNITS))
    hidden, found = steps(jnp.zeros((STEPS, 4, UNITS)), xs), []
    for _ in range(iterations):
        before = jnp.concatenate([zeros, hidden[:-1]])
        new, jacobian = jax.jvp(lambda before: steps(before, xs), (before,), (jnp.ones_like(before),))

        def both(one, other):
            return other[0] * one[0], other[0] * one[1] + other[1]

        _, correction = jax.lax.associative_scan(both, (jacobian, new - hidden))
        found.append(np.abs(correction).max(axis=(1, 2)))
        hidden = hidden + correction
    return np.stack(found)


def main() -> None:
    """Write the picture."""
    plt.rcParams["svg.hashsalt"] = "rnnscan"
    figure, both = plt.subplots(1, 2, figsize=(9, 3), layout="constrained", sharey=True)
    most = max(iterations for _, iterations in PANELS.values())
    colors = plt.get_cmap("viridis")(np.linspace(0, 0.95, most))
    for axes, (title, (scale, iterations)) in zip(both, PANELS.items(), strict=True):
        for number, (row, color) in enumerate(zip(corrections(scale, iterations), colors, strict=False), 1):
            axes.semilogy(np.maximum(row, 1e-9), color=color, linewidth=0.8, label=f"{number}")
        axes.axhline(float(jnp.finfo(jnp.float32).eps) ** 0.75, color="0.3", linewidth=0.8, linestyle="--")
        axes.set(title=title, xlabel="step", xlim=(0, STEPS), ylim=(1e-9, 10))
        axes.grid(color="0.9")
    both[0].annotate("tolerance", (STEPS, 7e-6), ha="right", va="bottom", fontsize=8)
    both[0].set(ylabel="largest correction")
    handles, labels = both[1].get_legend_handles_labels()
    figure.legend(handles, labels, title="iteration", loc="outside right center", fontsize=8)
    PATH.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(PATH, metadata={"Date": None, "Creator": None})


if __name__ == "__main__":
    main()
