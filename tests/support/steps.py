"""Steps `(matrix, carry, x)` as programs, for the tests of the engine's analysis and passes."""

from dataclasses import replace

import jax.numpy as jnp

from rnnscan.ir.trace import trace


SIZE = 32
MATRIX, ROWS = jnp.ones((SIZE, SIZE)), jnp.ones((4, SIZE))


def program_of(step, carry):
    """The program of a step whose first results are the new carry, of `carry` leaves."""
    program = trace(lambda matrix, *given: step(matrix, given[:-1], given[-1]), MATRIX, *[ROWS] * carry, ROWS)
    return replace(
        program,
        invariant=program.known[:1],
        carry=program.known[1:-1],
        known=program.known[-1:],
        new_carry=program.stacked[:carry],
        stacked=program.stacked[carry:],
    )


def with_known_carry(program):
    """The same step where every carry is known, as the backward pass recomputes it."""
    known = (*program.known, *program.carry)
    return replace(program, known=known, carry=(), new_carry=(), stacked=program.outputs)
