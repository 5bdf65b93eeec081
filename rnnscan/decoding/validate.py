"""validate(): check the arguments of `decode` and make a `DecodeRequest` of them. Nothing is computed."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.export import is_symbolic_dim

from rnnscan._util.dtypes import at_least_float32, resolve_weak_type
from rnnscan._util.messages import describe, describe_shape, is_count, is_key, leaves_with_places
from rnnscan._util.sources import named_after
from rnnscan._util.step_wrappers import Length
from rnnscan._util.varying import explicit_spec
from rnnscan.decoding._numbers import check_count
from rnnscan.decoding.request import Decoder, DecodeRequest, log_probabilities, varying_axes
from rnnscan.decoding.strategies import Strategy
from rnnscan.engine.units.shard_units import shard_units


def validate(
    decoder: Decoder,
    params: Any,
    carry: Any,
    *,
    start: Any,
    end: Any,
    max_steps: Any,
    has_aux: Any,
    strategy: Strategy,
    keys: Any,
) -> DecodeRequest:
    """Check the arguments of `decode`. `keys` is a typed key, or several of them, or None."""
    _check_decoder(decoder)
    check_count("decode", "max_steps", max_steps)
    carry = _as_arrays(carry)
    _check_axes(params, carry)
    start = _start_tokens(start, carry, len(keys) if keys is not None and keys.ndim else None)
    _check_rows(carry, start.shape[0])
    step = _step(decoder, params, has_aux)
    carry, log_probs, aux = _resolve_carry(step, carry, jax.ShapeDtypeStruct(start.shape, jnp.int32))
    _check_tokens(start, end, log_probs.shape[1])
    decoder, params, _ = shard_units(decoder, params, carry, jnp.asarray(start, jnp.int32)[None])
    return DecodeRequest(
        step=_step(decoder, params, has_aux),
        carry=carry,
        start=jnp.asarray(start, jnp.int32),
        end=None if end is None else int(end),
        max_steps=int(max_steps),
        log_probs=log_probs,
        aux=aux,
        varying=varying_axes((carry, start, log_probs, aux, strategy, keys)),
    )


def _check_decoder(decoder: Any) -> None:
    if hasattr(decoder, "runs_in_pieces") or hasattr(decoder, "over"):
        cell = "net" if hasattr(decoder, "runs_in_pieces") else "decoder.over(params, encoder_outputs)"
        raise TypeError(
            f"decode: a decoder takes tokens, decoder(params, carry, token) -> (carry, logits); got {decoder!r}, over "
            f"features. Add embeddings and logits with rnnscan.decoding.decoder({cell})."
        )
    if not callable(decoder):
        raise TypeError(
            "decode: the decoder must be callable as decoder(params, carry, token) -> (carry, logits); got "
            f"{describe(decoder)}. It comes first: decode(decoder, params, carry, ...)."
        )


def _check_axes(params: Any, carry: Any) -> None:
    for where, leaf in [*leaves_with_places(params, "params"), *leaves_with_places(carry, "carry")]:
        spec = explicit_spec(jax.typeof(leaf))
        if any(axis is not None for axis in spec):
            raise ValueError(
                f"decode: arrays must not be sharded over explicit axes of a mesh; got {spec} at {where}. Make the "
                "axes automatic: jax.make_mesh(sizes, names, axis_types=(jax.sharding.AxisType.Auto, ...))."
            )


def _as_arrays(carry: Any) -> Any:
    for where, leaf in leaves_with_places(carry, "carry"):
        if not isinstance(leaf, jax.Array | np.ndarray | np.generic | bool | int | float | complex):
            raise TypeError(
                f"decode: every leaf of the carry must be an array or a number; got {describe(leaf)} at {where}. "
                "Close over other values."
            )
    return jax.tree.map(jnp.asarray, carry)


def _start_tokens(start: Any, carry: Any, rows: int | None) -> Any:
    """The first tokens, `(N,)`: of numpy unless they are traced, so that their values can be checked under jit."""
    is_integer = isinstance(start, int | np.integer) and not isinstance(start, bool)
    if not is_integer:
        if not isinstance(start, jax.Array | np.ndarray) or not jnp.issubdtype(start.dtype, jnp.integer):
            raise TypeError(f"decode: `start` must be a token, or integers (N,); got {describe(start)}.")
        if start.ndim == 1:
            return start if isinstance(start, jax.core.Tracer) else np.asarray(start)
        if start.ndim:
            raise ValueError(f"decode: `start` must be a token, or integers (N,); got {describe(start)}.")
    axes = {where: leaf.shape[0] for where, leaf in leaves_with_places(carry, "carry") if leaf.ndim}
    if rows is not None:
        axes["`key`"] = rows
    if len(set(axes.values())) == 1:
        size = next(iter(axes.values()))
        is_known = not isinstance(start, jax.core.Tracer) and not is_symbolic_dim(size)
        return np.full(size, start) if is_known else jnp.full((size,), start)
    if not axes:
        raise ValueError(
            "decode: `start` must be integers (N,) for a carry without rows, as nothing else tells N; got one token."
            " Write start=jnp.full(N, token)."
        )
    raise ValueError(
        "decode: every leaf of the carry must be (N, ...), or a scalar that the rows share; got the first axes "
        + "; ".join(f"{size} at {where}" for where, size in axes.items())
        + ". Repeat a leaf that all rows share: jnp.broadcast_to(leaf, (N, ...))."
    )


def _check_rows(carry: Any, rows: Length) -> None:
    for where, leaf in leaves_with_places(carry, "carry"):
        if leaf.ndim and leaf.shape[0] != rows:
            raise ValueError(
                f"decode: every leaf of the carry must be (N, ...), or a scalar that the rows share; got "
                f"{describe(leaf)} at {where}, for {rows} rows. Repeat a leaf that all rows share: "
                "jnp.broadcast_to(leaf, (N, ...))."
            )


def _step(decoder: Decoder, params: Any, has_aux: bool) -> Any:
    """The decoder as a step to log-probabilities, which checks what it returns."""

    def step(carry: Any, tokens: Any) -> tuple[Any, tuple[Any, Any]]:
        returned = decoder(params, carry, tokens)
        if not isinstance(returned, tuple) or len(returned) != 2:
            raise TypeError(
                "decode: a decoder must return the pair (carry, logits), the new carry first; got "
                f"{jax.tree.map(describe, returned)}."
            )
        carry, output = returned
        logits, aux = _logits_and_aux(output, has_aux)
        if not isinstance(logits, jax.Array | np.ndarray) or not jnp.issubdtype(logits.dtype, jnp.floating):
            raise TypeError(f"decode: logits must be a floating array (N, V); got {describe(logits)}.")
        if logits.ndim != 2 or logits.shape[0] != tokens.shape[0] or logits.shape[1] < 1:
            expected = describe_shape((tokens.shape[0], "V"))
            raise ValueError(
                f"decode: the logits of one step must be {expected}, for the tokens {describe(tokens)}; got "
                f"{describe(logits)}. One step has no time axis."
            )
        if getattr(decoder, "returns_log_probs", False):
            return carry, (logits.astype(at_least_float32(logits.dtype)), aux)
        return carry, (log_probabilities(jnp.asarray(logits)), aux)

    return named_after(step, decoder)


def _logits_and_aux(output: Any, has_aux: bool) -> tuple[Any, Any]:
    is_pair = isinstance(output, tuple) and len(output) == 2
    if has_aux and not is_pair:
        raise TypeError(
            "decode: with has_aux=True a decoder must return (carry, (logits, aux)); got (carry, "
            f"{jax.tree.map(describe, output)}). Return both, or leave out `has_aux`."
        )
    if isinstance(output, tuple) and not has_aux:
        raise TypeError(
            f"decode: logits must be an array (N, V); got a tuple, {jax.tree.map(describe, output)}. If it is "
            "(logits, aux), pass has_aux=True."
        )
    return output if has_aux else (output, None)


def _resolve_carry(step: Any, carry: Any, start: Any) -> tuple[Any, Any, Any]:
    """The carry in the types that a step returns, and the types of its log-probabilities and aux.

    A Python number in the carry is weakly typed: it takes the dtype of the values that it is combined with. Each pass
    can resolve one leaf more, where one leaf feeds another.
    """
    while True:
        new_carry, log_probs, aux = _types(step, carry, start)
        _check_structure(carry, new_carry)
        resolved = jax.tree.map(resolve_weak_type, carry, new_carry)
        if all(a is b for a, b in zip(jax.tree.leaves(resolved), jax.tree.leaves(carry), strict=True)):
            break
        carry = resolved
    _check_types(carry, new_carry)
    _check_aux(aux, start.shape[0])
    return carry, log_probs, aux


def _types(step: Any, carry: Any, start: Any) -> tuple[Any, Any, Any]:
    try:
        new_carry, (log_probs, aux) = jax.eval_shape(step, carry, start)
    except Exception as error:
        if not str(error).startswith("decode: "):
            error.add_note(
                f"decode: the decoder was called as decoder(params, carry, token), with carry = "
                f"{jax.tree.map(describe, carry)} and token = {describe(start)}. rnnscan.decoding.decoder makes a "
                "decoder of a cell or net over features."
            )
        raise
    return new_carry, log_probs, aux


def _check_structure(carry: Any, new_carry: Any) -> None:
    expected: Any = jax.tree.structure(carry)
    returned: Any = jax.tree.structure(new_carry)
    if expected != returned:
        raise TypeError(
            f"decode: a decoder must return a carry of the structure that it was given; it was given {expected} and "
            f"returned {returned}. Check the order of the result, (carry, logits)."
        )


def _check_types(carry: Any, new_carry: Any) -> None:
    pairs = zip(leaves_with_places(carry, "carry"), jax.tree.leaves(new_carry), strict=True)
    differing = [
        f"{where} went in as {describe(old)} and came out as {describe(new)}"
        for (where, old), new in pairs
        if old.shape != new.shape or old.dtype != new.dtype
    ]
    if differing:
        raise TypeError(
            f"decode: a decoder must return a carry of the types that it was given; {'; '.join(differing)}. Cast the "
            "new carry in the decoder, or start from a carry of the types that it returns."
        )


def _check_aux(aux: Any, rows: Length) -> None:
    for where, leaf in leaves_with_places(aux, "aux"):
        if not leaf.ndim or leaf.shape[0] != rows:
            raise ValueError(
                f"decode: every leaf of aux must be {describe_shape((rows, '...'))}, rows first; got {describe(leaf)} "
                f"at {where}. Move the axis of the rows to the front."
            )
        if is_key(leaf):
            raise TypeError(
                f"decode: aux must be numbers; got {describe(leaf)} at {where}. Return its jax.random.key_data."
            )


def _check_tokens(start: Any, end: Any, vocabulary: int) -> None:
    if end is not None and (isinstance(end, bool) or not isinstance(end, int | np.integer)):
        raise TypeError(f"decode: `end` must be an integer, or None for no end token; got {describe(end)}.")
    if end is not None and not (is_count(end, least=0) and end < vocabulary):
        raise ValueError(
            f"decode: `end` must be a token, from 0 to {vocabulary - 1}, as the logits have V = {vocabulary}; got "
            f"{end}. Pass end=None for no end token."
        )
    if isinstance(start, jax.core.Tracer):
        return
    outside = [token for token in np.unique(start).tolist() if not 0 <= token < vocabulary]
    if outside:
        raise ValueError(
            f"decode: `start` must be tokens, from 0 to {vocabulary - 1}, as the logits have V = {vocabulary}; got "
            f"{outside[0]}. A start token needs a place in the vocabulary."
        )
