"""Additive attention, optionally with the previous context or with coverage."""

from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from rnnscan._util.dtypes import at_least_float32
from rnnscan._util.ranks import over_rows
from rnnscan._util.zeros import zeros_sharded_like
from rnnscan.attention.mechanism import Mechanism, product
from rnnscan.cells import checks
from rnnscan.cells.dense import project, with_bias
from rnnscan.naming import name


@dataclass(frozen=True, repr=False)
class Additive(Mechanism):
    """Additive attention.

        k_l = enc_l W_k                          once, before the loop
        e_l = v . tanh(k_l + h W_q + b)          (the argument of tanh is named "attention")
        a = softmax(e)
        context = sum_l a_l enc_l

    The named value is `(N, L, A)` at each step, by far the largest residual of a decoder.
    `Memory(recompute=("attention",))` recomputes it with a sum and a tanh.

    Parameters: `"query_kernel"` W_q `(H, A)`, `"key_kernel"` W_k `(E, A)`, `"bias"` b `(A,)` and `"score_kernel"` v
    `(A,)`. The keys need no bias in addition to b, and a bias of the scores would not change the weights.
    Carry: only the context.

    Args:
        encoder_size: E, the size of the encoder's outputs.
        attention_size: A, the size of queries and keys.
        kernel_init: initializer of the kernels.
        bias_init: initializer of the bias.
        use_bias: whether there is a bias.
        dtype: the dtype of the computation. None: the promoted dtype of query, encoder outputs and parameters. Scores
            and softmax are at least float32.
        param_dtype: the dtype of the parameters.
        project_keys: whether there is W_k. If not, give `over` the keys.

    Raises:
        ValueError: if a size is invalid.
        TypeError: if a dtype is not floating.

    Example:
        >>> import jax
        >>> import rnnscan as rs
        >>> from rnnscan import attention
        >>> mechanism = attention.Additive(encoder_size=6, attention_size=5)
        >>> params = mechanism.init(jax.random.key(0), query_size=4)
        >>> {name: leaf.shape for name, leaf in params.items()}
        {'query_kernel': (4, 5), 'key_kernel': (6, 5), 'bias': (5,), 'score_kernel': (5,)}

    Source: Bahdanau et al. 2014, "Neural Machine Translation by Jointly Learning to Align and Translate", equations 5
    and 6 and appendix A.1.2, which score with the state before the step. Caffe2's "Regular" scores, as here, with the
    state after it.
    """

    attention_size: int
    _: KW_ONLY
    project_keys: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.check_size(self._title, "attention_size", self.attention_size)

    @property
    def key_size(self) -> int:
        """The size of the keys: A."""
        return self.attention_size

    def _shapes(self, query_size: int) -> dict[str, tuple[int, ...]]:
        size = self.attention_size
        shapes: dict[str, tuple[int, ...]] = {"query_kernel": (query_size, size)}
        shapes |= {"key_kernel": (self.encoder_size, size)} if self.project_keys else {}
        shapes |= {"bias": (size,)} if self.use_bias else {}
        return shapes | {"score_kernel": (size,)}

    def _scores(
        self,
        params: dict[str, Array],
        encoded: dict[str, Array],
        query: Array,
        context: Array,
        state: tuple[Array, ...],
    ) -> Array:
        projected = with_bias(project(query, params["query_kernel"]), params)
        preactivation = encoded["keys"] + projected[..., None, :]
        for term in self._extra_terms(params, encoded, context, state):
            preactivation = preactivation + term
        preactivation = name(preactivation.astype(query.dtype), "attention")
        return product("...a,a->...", jnp.tanh(preactivation), params["score_kernel"])

    def _extra_terms(
        self, params: dict[str, Array], encoded: dict[str, Array], context: Array, state: tuple[Array, ...]
    ) -> tuple[Array, ...]:
        """Terms to add inside tanh, each `(N, L, A)` or `(N, 1, A)`."""
        return ()


@dataclass(frozen=True, repr=False)
class RecurrentAdditive(Additive):
    """Additive attention that also scores with the previous context.

        k_l = enc_l W_k                                            once, before the loop
        e_l = v . tanh(k_l + h W_q + context_{t-1} W_c + b)        (the argument of tanh is named "attention")
        a = softmax(e)
        context = sum_l a_l enc_l

    Parameters: those of `Additive`, and `"context_kernel"` W_c `(E, A)`.
    Carry: only the context.

    Args:
        encoder_size: E, the size of the encoder's outputs.
        attention_size: A, the size of queries and keys.
        kernel_init: initializer of the kernels.
        bias_init: initializer of the bias.
        use_bias: whether there is a bias.
        dtype: the dtype of the computation. None: the promoted dtype of query, encoder outputs and parameters. Scores
            and softmax are at least float32.
        param_dtype: the dtype of the parameters.
        project_keys: whether there is W_k. If not, give `over` the keys.

    Raises:
        ValueError: if a size is invalid.
        TypeError: if a dtype is not floating.

    Example:
        >>> import jax
        >>> from rnnscan import attention
        >>> mechanism = attention.RecurrentAdditive(encoder_size=6, attention_size=5)
        >>> mechanism.init(jax.random.key(0), query_size=4)["context_kernel"].shape
        (6, 5)

    Source: Caffe2's `AttentionType.Recurrent`, with the sum of its three biases inside tanh as one bias.
    """

    def _shapes(self, query_size: int) -> dict[str, tuple[int, ...]]:
        return super()._shapes(query_size) | {"context_kernel": (self.encoder_size, self.attention_size)}

    def _extra_terms(
        self, params: dict[str, Array], encoded: dict[str, Array], context: Array, state: tuple[Array, ...]
    ) -> tuple[Array, ...]:
        return (project(context, params["context_kernel"])[..., None, :],)


@dataclass(frozen=True, repr=False)
class Coverage(Additive):
    """Additive attention that also scores with the weights so far on each step of the encoder.

        k_l = enc_l W_k        u_l = enc_l W_u + b_u               once, before the loop
        e_l = v . tanh(k_l + h W_q + b + coverage_l u_l)           (the argument of tanh is named "attention")
        a = softmax(e)
        context = sum_l a_l enc_l
        coverage' = coverage + a

    Parameters: those of `Additive`, and `"coverage_kernel"` W_u `(E, A)`, `"coverage_bias"` b_u `(A,)`.
    Carry: the context and `coverage` `(N, L)`, initially zero, at least float32.

    Args:
        encoder_size: E, the size of the encoder's outputs.
        attention_size: A, the size of queries and keys.
        kernel_init: initializer of the kernels.
        bias_init: initializer of the biases.
        use_bias: whether there are biases.
        dtype: the dtype of the computation. None: the promoted dtype of query, encoder outputs and parameters. Scores
            and softmax are at least float32.
        param_dtype: the dtype of the parameters.
        project_keys: whether there is W_k. If not, give `over` the keys.

    Raises:
        ValueError: if a size is invalid.
        TypeError: if a dtype is not floating.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import rnnscan as rs
        >>> from rnnscan import attention
        >>> decoder = attention.decoder(rs.cells.GRU(4), attention.Coverage(encoder_size=6, attention_size=5))
        >>> params = decoder.init(jax.random.key(0), input_size=3)
        >>> cell = decoder.over(params, jnp.ones((7, 2, 6)))
        >>> (hidden,), context, coverage = cell.initial_carry(jnp.ones((2, 3)))
        >>> context.shape, coverage.shape
        ((2, 6), (2, 7))

    Source: Tu et al. 2016, "Modeling Coverage for Neural Machine Translation", section 3.1. The vector u_l for each
    step of the encoder is that of Caffe2's `AttentionType.SoftCoverage`.
    """

    state_names: ClassVar[tuple[str, ...]] = ("coverage",)

    def encode(
        self,
        params: dict[str, Array],
        values: Float[Array, "*batch length features"],
        keys: Float[Array, "*batch length keys"] | None,
    ) -> dict[str, Array]:
        """Values, keys, and the vectors u that coverage scales."""
        vectors = project(values, params["coverage_kernel"])
        if self.use_bias:
            vectors = vectors + over_rows(params["coverage_bias"], vectors)
        dtype = jnp.result_type(values, params["coverage_kernel"])
        return super().encode(params, values, keys) | {"coverage": vectors.astype(dtype)}

    def initial_state(self, x: Array, length: Any) -> tuple[Array, ...]:
        """The coverage `(N, L)`: zeros, at least float32 because it sums over all steps."""
        dtype: Any = at_least_float32(x.dtype)
        return (zeros_sharded_like(x, (*x.shape[:-1], length), dtype),)

    def _shapes(self, query_size: int) -> dict[str, tuple[int, ...]]:
        shapes = super()._shapes(query_size) | {"coverage_kernel": (self.encoder_size, self.attention_size)}
        return shapes | ({"coverage_bias": (self.attention_size,)} if self.use_bias else {})

    def _extra_terms(
        self, params: dict[str, Array], encoded: dict[str, Array], context: Array, state: tuple[Array, ...]
    ) -> tuple[Array, ...]:
        (coverage,) = state
        return (coverage[..., None] * encoded["coverage"],)

    def _new_state(self, state: tuple[Array, ...], weights: Array) -> tuple[Array, ...]:
        (coverage,) = state
        return (coverage + weights,)
