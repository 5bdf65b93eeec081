"""The base of attention mechanisms: their configuration, the encoding before the loop, and one step of attention.

Mechanisms differ in their scores, except for the state of `Coverage` and the heads of `MultiHead`. All arrays are
batch-first: `(N, L, E)`.
"""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from rnnscan._util.arguments import check_key
from rnnscan._util.dtypes import at_least_float32, promoted
from rnnscan._util.messages import describe, describe_shape
from rnnscan.cells import checks, initializers
from rnnscan.cells.base import show_options
from rnnscan.cells.dense import project
from rnnscan.cells.initializers import Initializer


@dataclass(frozen=True, repr=False)
class Mechanism:
    """The base of mechanisms. A subclass defines the shapes of its parameters (`_shapes`) and its scores (`_scores`).

    Args:
        encoder_size: E, the size of the encoder's outputs.
        kernel_init: initializer of the kernels.
        bias_init: initializer of the biases.
        use_bias: whether there are biases.
        dtype: the dtype of the computation. None: the promoted dtype of query, encoder outputs and parameters. Scores
            and softmax are at least float32.
        param_dtype: the dtype of the parameters.
    """

    names: ClassVar[tuple[str, ...]] = ("attention",)
    # The parts of the carry after the context.
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
        """The options that differ from their defaults."""
        return show_options(self)

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
            query_size: H, the size of the query, which is the cell's output.

        Returns:
            A dictionary of arrays of `param_dtype`. The mechanism's docstring lists their names and shapes.

        Raises:
            ValueError: if the mechanism does not support the query's size.
        """
        check_key(self._title, key)
        checks.check_size(self._title, "query_size", query_size)
        self.check_query_size(query_size)
        shapes = self._shapes(query_size)
        param_keys = jax.random.split(key, max(1, len(shapes)))
        return {
            name: self._initial(param_key, name, shape)
            for param_key, (name, shape) in zip(param_keys, shapes.items(), strict=False)
        }

    def check_query_size(self, query_size: int) -> None:
        """Check that the mechanism supports the query's size."""

    def check_params(self, params: Any, query_size: int) -> None:
        """Check the names and shapes of parameters."""
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
        """Compute the values and keys from the encoder's outputs, once before the loop over steps.

        Args:
            params: the parameters.
            values: the encoder's outputs, zero in the padding.
            keys: the user's keys, zero in the padding, or None.

        Returns:
            Arrays `(N, L, ...)`.
        """
        return {"values": values, "keys": self._keys(params, values, keys)}

    def initial_state(self, x: Array, length: Any) -> tuple[Array, ...]:
        """The parts of the initial carry after the context, for one step's input `(N, D)`."""
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
        """Run one step of attention.

        Args:
            params: the parameters.
            encoded: the result of `encode`.
            valid: the mask of the encoder's valid steps. None: all are valid.
            query: the cell's output.
            context: the previous context.
            state: the parts of the carry after the context.

        Returns:
            The new context `(N, C)`, the new state, and the weights `(N, L)`, or `(N, heads, L)` with heads.
        """
        leaves = query, encoded["values"], *params.values()
        dtype = jnp.result_type(*leaves) if self.dtype is None else self.dtype
        # Cast inside the step, so that the gradients of all steps are summed in the parameters' dtype.
        cast = lambda tree: jax.tree.map(lambda leaf: leaf.astype(dtype), tree)  # noqa: E731
        params, encoded = cast(params), cast(encoded)
        weights = masked_softmax(self._scores(params, encoded, cast(query), cast(context), state), valid)
        new_context = self._context(params, encoded, valid, weights.astype(dtype)).astype(dtype)
        return new_context, self._new_state(state, weights), weights.astype(dtype)

    @property
    def _title(self) -> str:
        """The name of the mechanism in messages."""
        return type(self).__name__

    def _shapes(self, query_size: int) -> dict[str, tuple[int, ...]]:
        """The shapes of the parameters. Names that end in "bias" are biases, all others kernels."""
        raise NotImplementedError

    def _scores(
        self,
        params: dict[str, Array],
        encoded: dict[str, Array],
        query: Array,
        context: Array,
        state: tuple[Array, ...],
    ) -> Array:
        """The scores `(N, L)`, or `(N, heads, L)` with heads. Any finite value will do in the padding."""
        raise NotImplementedError

    def _context(
        self, params: dict[str, Array], encoded: dict[str, Array], valid: Array | None, weights: Array
    ) -> Array:
        """The weighted sum of the values."""
        return product("...l,...le->...e", weights, encoded["values"])

    def _new_state(self, state: tuple[Array, ...], weights: Array) -> tuple[Array, ...]:
        return state

    def _keys(self, params: dict[str, Array], values: Array, keys: Array | None) -> Array:
        """The user's keys, or the projected values."""
        if keys is not None:
            return keys
        if "key_kernel" not in params:
            raise ValueError(
                f"{self._title}: with project_keys=False `keys` must be given; got keys=None. Use "
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
    """Compute the softmax over valid steps, in at least float32.

    Args:
        scores: `(N, L)`, or `(N, heads, L)` with heads.
        valid: the mask of valid steps, `(N, L)`. None: all are valid.

    Returns:
        The weights. They sum to 1, or are all 0 in a row without valid steps.

    Example:
        >>> import jax.numpy as jnp
        >>> from rnnscan.attention.mechanism import masked_softmax
        >>> masked_softmax(jnp.zeros((2, 3)), jnp.array([[True, True, False], [False, False, False]])).tolist()
        [[0.5, 0.5, 0.0], [0.0, 0.0, 0.0]]
    """
    scores = scores.astype(at_least_float32(scores.dtype))
    if valid is None:
        return jax.nn.softmax(scores, axis=-1)
    if scores.ndim > valid.ndim:
        valid = valid[..., None, :]
    # With -inf, a row without valid steps would be NaN before it is zeroed, which fails under jax_debug_nans.
    least = jnp.finfo(scores.dtype).min
    return jnp.where(valid, jax.nn.softmax(jnp.where(valid, scores, least), axis=-1), 0)


def product(subscripts: str, left: Array, right: Array) -> Array:
    """Compute an einsum in at least float32."""
    wide = at_least_float32(promoted(left, right))
    return jnp.einsum(subscripts, left, right, preferred_element_type=wide)
