"""Simulations of physics, differentiated in their parameters and initial state.

"n-body": bodies under gravity, by leapfrog: v' = v + dt a(x), x' = x + dt v'. "wave-stencil": u'' = c^2 laplace(u) on a
grid, by the five-point stencil, with a source as input and receivers as outputs, as in seismic inversion.
"wave-convolution": the same with the stencil as a convolution.

Sources: Verlet 1967; Virieux and Operto 2009, "An overview of full-waveform inversion", section 2.
"""

from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from benchmarks.beyond.use import Draw, Problem, Use, one_scan


STEP = 0.01


def n_body_cell(params: Any, carry: tuple[Array, Array], _: None) -> tuple[Any, Array]:
    """Carry: positions and velocities (B, 3). `params`: the logarithms of the masses. Output: the kinetic energy."""
    position, velocity = carry
    masses = jnp.exp(params)
    between = position[None] - position[:, None]
    distance = jnp.sum(between**2, -1) + 0.1
    velocity = velocity + STEP * jnp.einsum("ij,ijd->id", masses * distance**-1.5, between)
    position = position + STEP * velocity
    return (position, velocity), masses @ jnp.sum(velocity**2, -1) / 2


def stencil_cell(params: Any, carry: tuple[Array, Array], source: Array) -> tuple[Any, Array]:
    """Carry: the field now and a step ago (N, H, W). `params`: c^2 dt^2 of each point. Input: a number a row."""
    padded = jnp.pad(carry[0], ((0, 0), (1, 1), (1, 1)))
    middle = slice(1, -1)
    around = padded[:, :-2, middle] + padded[:, 2:, middle] + padded[:, middle, :-2] + padded[:, middle, 2:]
    return _wave(params, carry, around - 4 * carry[0], source)


def convolution_cell(params: Any, carry: tuple[Array, Array], source: Array) -> tuple[Any, Array]:
    """The same by a convolution, whose kernel is a parameter too."""
    speed, kernel = params
    laplacian = lax.conv_general_dilated(carry[0][:, None], kernel[None, None], (1, 1), "SAME")[:, 0]
    return _wave(speed, carry, laplacian, source)


def _wave(speed: Array, carry: tuple[Array, Array], laplacian: Array, source: Array) -> tuple[Any, Array]:
    field, before = carry
    new = 2 * field - before + speed * laplacian
    new = new.at[:, field.shape[1] // 2, field.shape[2] // 2].add(source)
    return (new, field), new[:, 1]


def _make_bodies(draw: Draw, *, steps: int, bodies: int) -> Problem:
    carry = draw(bodies, 3), draw(bodies, 3)
    return Problem(one_scan(n_body_cell, length=steps), draw(bodies, scale=0.3), carry, None)


def _make_wave(draw: Draw, *, steps: int, rows: int, size: int, convolution: bool) -> Problem:
    speed = draw.uniform(size, size, low=0.1, high=0.4)
    carry = draw(rows, size, size), draw(rows, size, size)
    xs = draw(steps, rows)
    if not convolution:
        return Problem(one_scan(stencil_cell), speed, carry, xs)
    kernel = jnp.asarray([[0, 1, 0], [1, -4, 1], [0, 1, 0]], float) + draw(3, 3, scale=1e-3)
    return Problem(one_scan(convolution_cell), (speed, kernel), carry, xs)


SIZES = {"steps": 100, "rows": 2, "size": 96}
TINY = {"steps": 4, "rows": 2, "size": 4}
GRIDS = {"size": (3, 256)}

USES = {
    "n-body": Use("N-body", _make_bodies, {"steps": 100, "bodies": 64}, {"steps": 4, "bodies": 3}),
    "wave-stencil": Use(
        "wave equation, stencil",
        _make_wave,
        SIZES | {"convolution": False},
        TINY | {"convolution": False},
        ranges=GRIDS,
    ),
    "wave-convolution": Use(
        "wave equation, convolution",
        _make_wave,
        SIZES | {"convolution": True},
        TINY | {"convolution": True},
        ranges=GRIDS,
    ),
}
