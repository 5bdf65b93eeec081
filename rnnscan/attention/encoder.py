"""The arguments of `Decoder.over`, checked and converted to batch-first."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Integer

from rnnscan._util.messages import describe, describe_shape
from rnnscan._util.step_wrappers import valid_steps
from rnnscan.attention.mechanism import Mechanism


def valid_by_row(lengths: Integer[Array, "*batch"], length: int) -> Bool[Array, "*batch length"]:
    """The mask of the encoder's valid steps."""
    valid = valid_steps(jnp.asarray(lengths).reshape(-1), length)
    return valid.T.reshape(*lengths.shape, length)


def batch_first(time_major: Array, valid: Array | None) -> Array:
    """Transpose `(L, N, E)` to `(N, L, E)`, and zero the padding: a NaN times a weight of zero is NaN."""
    rows = jnp.moveaxis(time_major, 0, -2)
    return rows if valid is None else jnp.where(valid[..., None], rows, 0)


def check_encoder(mechanism: Mechanism, values: Any, lengths: Any, keys: Any) -> None:
    """Check that encoder outputs, lengths and keys fit each other and the mechanism.

    Raises:
        ValueError: if shapes do not fit.
        TypeError: if encoder outputs or keys are not floating, or lengths are not integers.
    """
    size = mechanism.encoder_size
    if values.ndim < 2 or values.shape[-1] != size:
        raise ValueError(
            f"attention.decoder: `encoder_outputs` must be (L, N, {size}), time-major, for {mechanism}; got "
            f"{describe(values)}."
        )
    length, *batch = values.shape[:-1]
    expected = (length, *batch, mechanism.key_size)
    if keys is not None and keys.shape != expected:
        raise ValueError(
            f"attention.decoder: `keys` must be {describe_shape(expected)}, time-major, for the encoder outputs "
            f"{describe(values)} and {mechanism}; got {describe(keys)}."
        )
    for argument, floats in (("encoder_outputs", values), ("keys", keys)):
        if floats is not None and not jnp.issubdtype(floats.dtype, jnp.floating):
            raise TypeError(f"attention.decoder: `{argument}` must be of a floating dtype; got {describe(floats)}.")
    if lengths is None:
        return
    if lengths.shape != tuple(batch):
        raise ValueError(
            f"attention.decoder: `encoder_lengths` must be {describe_shape(tuple(batch))}, one for each row of the "
            f"encoder outputs {describe(values)}; got {describe(lengths)}. Encoder outputs are time-major, (L, N, E)."
        )
    if not jnp.issubdtype(lengths.dtype, jnp.integer):
        raise TypeError(f"attention.decoder: `encoder_lengths` must be integers; got {describe(lengths)}.")
