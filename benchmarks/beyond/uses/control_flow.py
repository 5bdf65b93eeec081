"""Branches and indexed writes in a step.

"switch": each step runs one of three branches, by the opcode that it reads. "scatter": a table whose rows are read and
written by index, as in memories of temporal graphs. "experts": a residual layer of which each row takes the best two
experts, by `lax.top_k`.

Sources: `lax.switch`; Rossi et al. 2020, "Temporal Graph Networks", section 3.1; Shazeer et al. 2017, "Outrageously
Large Neural Networks", equations 1 to 5.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from benchmarks.beyond.use import Draw, Problem, Use, one_scan


def switch_cell(params: Any, state: Array, x: tuple[Array, Array]) -> tuple[Array, Array]:
    """Carry: (N, H). Input: the opcode, an integer, and (N, H)."""
    opcode, operand = x
    branches = [
        lambda state: jnp.tanh(state @ params["kernel"] + operand),
        lambda state: state * jax.nn.sigmoid(operand + params["bias"]),
        lambda state: jnp.roll(state, 1, -1) + operand,
    ]
    state = lax.switch(opcode, branches, state)
    return state, state


def scatter_cell(params: Any, table: Array, x: tuple[Array, Array]) -> tuple[Array, Array]:
    """Carry: the table (V, H). Input: indices (N), and (N, H)."""
    indices, update = x
    new = jnp.tanh(table[indices] @ params["kernel"] + update + params["bias"])
    return table.at[indices].add(0.1 * new), new


def experts_cell(params: Any, state: Array, x: Array) -> tuple[Array, Array]:
    """Carry: (N, H). Input: (N, H). `params`: the gate's kernel, and kernels (E, H, F) and (E, F, H)."""
    state = state + x
    normal = state * lax.rsqrt(jnp.mean(state**2, -1, keepdims=True) + 1e-6)
    scores, chosen = lax.top_k(normal @ params["gate"], 2)
    rows = jnp.arange(len(state))[:, None]
    gates = jnp.zeros((len(state), len(params["kernel_in"])), state.dtype).at[rows, chosen].set(jax.nn.softmax(scores))
    hidden = jax.nn.gelu(jnp.einsum("nh,ehf->nef", normal, params["kernel_in"]))
    state = 0.9 * state + jnp.einsum("ne,nef,efh->nh", gates, hidden, params["kernel_out"])
    return state, state


def _make_switch(draw: Draw, *, steps: int, rows: int, hidden: int) -> Problem:
    params = {"kernel": draw.kernel(hidden, hidden), "bias": draw(hidden)}
    xs = draw.integers(steps, below=3), draw(steps, rows, hidden)
    return Problem(one_scan(switch_cell), params, draw(rows, hidden), xs)


def _make_scatter(draw: Draw, *, steps: int, rows: int, hidden: int, entries: int) -> Problem:
    params = {"kernel": draw.kernel(hidden, hidden), "bias": draw(hidden)}
    xs = draw.integers(steps, rows, below=entries), draw(steps, rows, hidden)
    return Problem(one_scan(scatter_cell), params, draw(entries, hidden), xs)


def _make_experts(draw: Draw, *, steps: int, rows: int, hidden: int, experts: int, inner: int) -> Problem:
    params = {
        "gate": draw.kernel(hidden, experts),
        "kernel_in": draw.kernel(experts, hidden, inner),
        "kernel_out": draw.kernel(experts, inner, hidden),
    }
    return Problem(one_scan(experts_cell), params, draw(rows, hidden), draw(steps, rows, hidden))


SIZES = {"steps": 100, "rows": 16, "hidden": 128}
TINY = {"steps": 5, "rows": 2, "hidden": 3}

USES = {
    "switch": Use("a switch in each step", _make_switch, SIZES, TINY),
    "scatter": Use("reads and writes by index", _make_scatter, SIZES | {"entries": 256}, TINY | {"entries": 4}),
    "experts": Use(
        "mixture of experts",
        _make_experts,
        {"steps": 32, "rows": 16, "hidden": 64, "experts": 4, "inner": 128},
        TINY | {"experts": 3, "inner": 4},
        1e-3,
        ranges={"experts": (2, 16)},
    ),
}
