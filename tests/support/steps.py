"""Steps `(matrix, carry, x)` as programs, for the tests of what the engine makes of them."""

import jax.numpy as jnp

from rnnscan.engine.fission.trace import trace


SIZE = 32
MATRIX, ROWS = jnp.ones((SIZE, SIZE)), jnp.ones((4, SIZE))


def program_of(step, carry):
    """`(matrix, carry, x)` traced, with the parts of its inputs and outputs."""
    program = trace(lambda matrix, *given: step(matrix, given[:-1], given[-1]), MATRIX, *[ROWS] * carry, ROWS)
    return program, program.inputs[:1], program.inputs[1:-1], program.inputs[-1:], program.outputs[:carry]
