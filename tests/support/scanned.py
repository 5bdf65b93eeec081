"""Memory choices for `scan`, and its results with gradients."""

import jax

import rnnscan as rs
from slow_reference import loss


MEMORIES = {
    "plain autodiff": None,
    "keep names": rs.Memory(),
    "recompute one": rs.Memory(recompute=("preactivation",)),
    "recompute all": rs.Memory(recompute="all"),
    "segments": rs.Memory(segment=3),
    "segments that do not divide": rs.Memory(segment=4, recompute=("gate",)),
    "segment longer than T": rs.Memory(segment=100),
    "square root": rs.Memory(segment="sqrt"),
    "nested segments": rs.Memory(segment=(4, 2)),
}


def value_and_gradients(run, *arguments, jit=True):
    """The results of a run and the gradients of a loss of them, in params, carry and xs."""

    def compute(*arguments):
        result = run(*arguments)
        return loss(result), result

    differentiate = jax.value_and_grad(compute, argnums=(0, 1, 2), has_aux=True, allow_int=True)
    (_, result), gradients = (jax.jit(differentiate) if jit else differentiate)(*arguments)
    return result, gradients
