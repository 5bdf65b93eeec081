"""The trust region of ELK: the gains of a Kalman filter, which hold corrections back where steps expand them.

The correction is the state of a linear system with noise, `d_t = J_t d_{t-1} + r_t + N(0, I)`, in which zero is
observed with variance 1 / lambda. The filter multiplies each step by a gain,

    d_t = K_t (J_t d_{t-1} + r_t),    K_t = (I + lambda (J_t P_{t-1} J_t^T + I))^-1,

where P is the variance of d. Products of gains and Jacobians do not grow, and for lambda = 0 the gain is I.

Source: Gonzalez et al. 2024, "Towards Scalable and Stable Parallelization of Nonlinear RNNs" (ELK; its code filters, as
here, and does not smooth); Särkkä and García-Fernández 2021, "Temporal Parallelization of Bayesian Smoothers", for the
filter as an associative scan.
"""

from typing import Any

import jax.numpy as jnp

from rnnscan._util.ranks import over_rows
from rnnscan.engine.loops.affine import product
from rnnscan.engine.loops.in_blocks import run_in_blocks
from rnnscan.engine.loops.indexing import shifted


def gains(matrix: Any, strength: Any, *, reverse: bool) -> Any:
    """The gain at each step.

    Args:
        matrix: J at each step, `(steps, k, k, ...)`.
        strength: lambda, of the shape of a leaf.
        reverse: whether the steps run from the last to the first.

    Returns:
        K at each step, `(steps, k, k, ...)`.
    """
    identity, strength = jnp.broadcast_to(_identity(matrix), matrix.shape), over_rows(strength, matrix)
    held = 1 + strength
    # A step maps P to `A P (I + E P)^-1 A^T + C`.
    steps = (matrix / held, identity / held, product(_transposed(matrix), matrix) * (strength / held))

    def compose(earlier: Any, later: Any) -> Any:
        (a, c, e), (next_a, next_c, next_e) = earlier, later
        mixed = _inverse(_identity(c) + product(c, next_e))
        through = product(next_a, mixed)
        variance = product(product(through, c), _transposed(next_a)) + next_c
        information = product(product(_transposed(a), product(next_e, mixed)), a) + e
        return product(through, a), variance, information

    def apply(step: Any, variance: Any) -> Any:
        a, c, e = step
        through = product(a, _inverse(_identity(c) + product(variance, e)))
        return product(product(through, variance), _transposed(a)) + c

    start = jnp.zeros_like(matrix[0])
    after = run_in_blocks(compose, apply, steps, start, reverse=reverse)
    before = shifted(after, start, to_start=reverse)
    predicted = product(product(matrix, before), _transposed(matrix)) + identity
    return jnp.where(strength > 0, _inverse(identity + strength * predicted), identity)


def _identity(matrix: Any) -> Any:
    size = matrix.shape[1]
    return jnp.eye(size, dtype=matrix.dtype).reshape(1, size, size, *[1] * (matrix.ndim - 3))


def _transposed(matrix: Any) -> Any:
    return jnp.swapaxes(matrix, 1, 2)


def _inverse(matrix: Any) -> Any:
    """The inverse of matrices whose determinants are at least 1."""
    size = matrix.shape[1]
    if size == 1:
        return 1 / matrix
    if size == 2:
        (a, b), (c, d) = (jnp.unstack(row, axis=1) for row in jnp.unstack(matrix, axis=1))
        adjugate = jnp.stack([jnp.stack([d, -b], 1), jnp.stack([-c, a], 1)], 1)
        return adjugate / (a * d - b * c)[:, None, None]
    return jnp.moveaxis(jnp.linalg.inv(jnp.moveaxis(matrix, (1, 2), (-2, -1))), (-2, -1), (1, 2))
