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
STEPS, ITERATIONS = 512, 6


def corrections() -> np.ndarray:
    """The largest correction at each step, by iteration, for a ParaGRU with recurrent weights from N(0, 1)."""
    cell = rs.cells.ParaGRU(64)
    keys = jax.random.split(jax.random.key(0), 3)
    xs = jax.random.normal(keys[0], (STEPS, 4, 32))
    params = cell.init(keys[1], input_size=32)
    params["recurrent_kernel"] = jax.random.normal(keys[2], (3 * 64,))

    def step(hidden, x):
        return cell(params, (hidden,), x)[0][0]

    steps = jax.vmap(step)
    hidden, found = steps(jnp.zeros((STEPS, 4, 64)), xs), []
    for _ in range(ITERATIONS):
        before = jnp.concatenate([jnp.zeros((1, 4, 64)), hidden[:-1]])
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
    figure, axes = plt.subplots(figsize=(7, 3), layout="constrained")
    colours = plt.get_cmap("viridis")(np.linspace(0, 0.9, ITERATIONS))
    for number, (row, colour) in enumerate(zip(corrections(), colours, strict=True), 1):
        axes.semilogy(np.maximum(row, 1e-9), color=colour, linewidth=0.8, label=f"{number}")
    axes.axhline(float(jnp.finfo(jnp.float32).eps) ** 0.75, color="0.3", linewidth=0.8, linestyle="--")
    axes.annotate("tolerance", (STEPS, 7e-6), ha="right", va="bottom", fontsize=8)
    axes.set(xlabel="step", ylabel="largest correction", xlim=(0, STEPS), ylim=(1e-9, 10))
    axes.grid(color="0.9")
    figure.legend(title="iteration", loc="outside right center", fontsize=8)
    PATH.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(PATH, metadata={"Date": None, "Creator": None})


if __name__ == "__main__":
    main()
