"""The uses, by name."""

from benchmarks.beyond.use import Use
from benchmarks.beyond.uses import (
    caches,
    differential_equations,
    hidden_markov,
    kalman,
    large_steps,
    linear_attention,
    scalars,
)


USES: dict[str, Use] = (
    kalman.USES
    | hidden_markov.USES
    | differential_equations.USES
    | linear_attention.USES
    | scalars.USES
    | large_steps.USES
    | caches.USES
)
