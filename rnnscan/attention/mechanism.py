"""What every attention mechanism is: a configuration, what it makes of the encoder once, and one step of attending.

A mechanism differs from another in its scores alone, but for the state that coverage adds and the heads of the
multi-head one. All arrays here have the batch first: `(N, L, E)`.
"""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, fields
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from rnnscan._messages import describe, describe_shape
from rnnscan.cells import checks, initializers
from rnnscan.cells.dense import project
from rnnscan.cells.initializers import Initializer


@dataclass(frozen=True, repr=False)
class Mechanism:
    """The base of mechanisms. A subclass says the shapes of its parameters (`_shapes`) and its scores (`_scores`).

    Args:
        encoder_size: E, the size of the encoder's outputs.
        kernel_init: initializer of the kernels.
        bias_init: initializer of the biases.
        use_bias: whether there are biases.
        dtype: of the computation; None: as query, encoder outputs and parameters promote. Scores and their softmax are
            in at least float32.
        param_dtype: of the parameters.
    """

    names: ClassVar[tuple[str, ...]] = ("attention",)
    # What is carried from step to step beside the context.
    state_names: ClassVar[tuple[str, ...]] = ()

    encoder_size: int
    _: KW_ONLY
    kernel_init: Initializer = initializers.lecun_normal
    bias_init: Initializer = initializers.zeros
    use_bias: bool = True
    dtype: Any = None
    param_dtype: Any = jnp.float32

    def __post_init__(self) -> None:
        checks.check_size(self._title, "encoder_size", self.encoder_size)
        for field in ("dtype", "param_dtype"):
            dtype = checks.floating(self._title, field, getattr(self, field), optional=field == "dtype")
            object.__setattr__(self, field, dtype)

    def __repr__(self) -> str:
        """The configuration, as far as it differs from the default."""
        given = {field.name: getattr(self, field.name) for field in fields(self) if _differs(self, field)}
        shown = ", ".join(f"{name}={getattr(value, '__name__', repr(value))}" for name, value in given.items())
        return f"{self._title}({shown})"

    @property
    def context_size(self) -> int:
        """The size of the context."""
        return self.encoder_size

    @property
    def key_size(self) -> int:
        """The size of the keys."""
        return self.encoder_size

    def init(self, key: Array, query_size: int) -> dict[str, Array]:
        """Make parameters.

        Args:
            key: a PRNG key.
            query_size: H, the size of the query: of the decoder cell's output.

        Returns:
            A dictionary of arrays of `param_dtype`; the mechanism's docstring gives their names and shapes.

        Raises:
            ValueError: if the query is of a size that the mechanism cannot take.
        """
        checks.check_size(self._title, "query_size", query_size)
        self.check_query_size(query_size)
        shapes = self._shapes(query_size)
        param_keys = jax.random.split(key, max(1, len(shapes)))
        return {
            name: self._initial(param_key, name, shape)
            for param_key, (name, shape) in zip(param_keys, shapes.items(), strict=False)
        }

    def check_query_size(self, query_size: int) -> None:
        """Refuse a query of a size that the mechanism cannot take."""

    def check_params(self, params: Any, query_size: int) -> None:
        """Refuse parameters of other names or shapes."""
        shapes = self._shapes(query_size)
        is_dictionary = isinstance(params, Mapping)
        if is_dictionary and {name: jnp.shape(leaf) for name, leaf in params.items()} == shapes:
            return
        expected = ", ".join(f"{name!r} {describe_shape(shape)}" for name, shape in shapes.items()) or "none"
        got = ", ".join(f"{name!r} {describe(leaf)}" for name, leaf in params.items()) if is_dictionary else params
        raise ValueError(
            f"{self._title}: the parameters of {self} for a query of {query_size} must be {expected}; got "
            f"{got or 'none'}. Make them with decoder.init(key, input_size)."
        )

    def encode(
        self,
        params: dict[str, Array],
        values: Float[Array, "*batch length features"],
        keys: Float[Array, "*batch length keys"] | None,
    ) -> dict[str, Array]:
        """What is made of the encoder's outputs once, before the loop over steps.

        Args:
            params: the parameters.
            values: the encoder's outputs, zero where they are padding.
            keys: supplied keys, zero where they are padding; or None.

        Returns:
            Arrays `(N, L, ...)`.
        """
        return {"values": values, "keys": self._keys(params, values, keys)}

    def initial_state(self, x: Array, length: Any) -> tuple[Array, ...]:
        """What is carried from step to step beside the context, for one step's input `(N, D)`: nothing."""
        return ()

    def attend(
        self,
        params: dict[str, Array],
        encoded: dict[str, Array],
        valid: Bool[Array, "*batch length"] | None,
        query: Float[Array, "*batch query"],
        context: Float[Array, "*batch context"],
        state: tuple[Array, ...],
    ) -> tuple[Array, tuple[Array, ...], Array]:
        """One step.

        Args:
            params: the parameters.
            encoded: what `encode` made.
            valid: where the encoder's steps are valid; None: everywhere.
            query: the decoder cell's output.
            context: the context of the step before.
            state: what is carried beside it.

        Returns:
            The new context `(N, C)`, the new state, and the weights `(N, L)`, with heads `(N, heads, L)`.
        """
        leaves = query, encoded["values"], *params.values()
        dtype = jnp.result_type(*leaves) if self.dtype is None else self.dtype
        # Cast in the step, and not once before the loop: the gradients of all steps are then summed in their own dtype.
        cast = lambda tree: jax.tree.map(lambda leaf: leaf.astype(dtype), tree)  # noqa: E731
        params, encoded = cast(params), cast(encoded)
        weights = masked_softmax(self._scores(params, encoded, cast(query), cast(context), state), valid)
        new_context = self._context(params, encoded, valid, weights.astype(dtype)).astype(dtype)
        return new_context, self._new_state(state, weights), weights.astype(dtype)

    @property
    def _title(self) -> str:
        """The name under which messages speak of the mechanism."""
        return type(self).__name__

    def _shapes(self, query_size: int) -> dict[str, tuple[int, ...]]:
        """The shapes of the parameters. Those whose names end in "bias" are biases, and the others kernels."""
        raise NotImplementedError

    def _scores(
        self,
        params: dict[str, Array],
        encoded: dict[str, Array],
        query: Array,
        context: Array,
        state: tuple[Array, ...],
    ) -> Array:
        """The scores `(N, L)`, with heads `(N, heads, L)`; they may be anything finite where the encoder is padding."""
        raise NotImplementedError

    def _context(
        self, params: dict[str, Array], encoded: dict[str, Array], valid: Array | None, weights: Array
    ) -> Array:
        """The sum of the values by their weights."""
        return product("...l,...le->...e", weights, encoded["values"])

    def _new_state(self, state: tuple[Array, ...], weights: Array) -> tuple[Array, ...]:
        return state

    def _keys(self, params: dict[str, Array], values: Array, keys: Array | None) -> Array:
        """The keys that were supplied, or else the values projected."""
        if keys is not None:
            return keys
        if "key_kernel" not in params:
            raise ValueError(
                f"{self._title}: with project_keys=False `keys` must be supplied; got keys=None. Give "
                "decoder.over(params, encoder_outputs, keys=...)."
            )
        return project(values, params["key_kernel"]).astype(jnp.result_type(values, params["key_kernel"]))

    def _initial(self, key: Array, name: str, shape: tuple[int, ...]) -> Array:
        if name.endswith("bias"):
            return self.bias_init(key, shape, self.param_dtype)
        rows, *columns = shape
        return self.kernel_init(key, (rows, *(columns or [1])), self.param_dtype).reshape(shape)


def masked_softmax(
    scores: Float[Array, "*shape"], valid: Bool[Array, "*batch length"] | None
) -> Float[Array, "*shape"]:
    """The softmax over the steps that are valid, in at least float32; zeros where no step is.

    Args:
        scores: `(N, L)`, or with heads `(N, heads, L)`.
        valid: `(N, L)`; None: everywhere.

    Returns:
        The weights, which sum to 1, or 0 where no step is valid.

    Example:
        >>> import jax.numpy as jnp
        >>> from rnnscan.attention.mechanism import masked_softmax
        >>> masked_softmax(jnp.zeros((2, 3)), jnp.array([[True, True, False], [False, False, False]])).tolist()
        [[0.5, 0.5, 0.0], [0.0, 0.0, 0.0]]
    """
    scores = scores.astype(jnp.promote_types(scores.dtype, jnp.float32))
    if valid is None:
        return jax.nn.softmax(scores, axis=-1)
    if scores.ndim > valid.ndim:
        valid = valid[..., None, :]
    # Not -inf: a row without any valid step would be NaN before it is zero, and jax_debug_nans stop there.
    least = jnp.finfo(scores.dtype).min
    return jnp.where(valid, jax.nn.softmax(jnp.where(valid, scores, least), axis=-1), 0)


def product(subscripts: str, one: Array, other: Array) -> Array:
    """An einsum in at least float32."""
    wide = jnp.promote_types(jnp.result_type(one, other), jnp.float32)
    return jnp.einsum(subscripts, one, other, preferred_element_type=wide)


def _differs(mechanism: Mechanism, field: Any) -> bool:
    return getattr(mechanism, field.name) != field.default
