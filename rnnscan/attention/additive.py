"""Additive attention, also with the context of the step before, and with the coverage of what was attended to."""

from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from rnnscan._zeros import zeros_beside
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

    What is named is `(N, L, A)` at each step, by far the largest of a decoder: `Memory(recompute=("attention",))` drops
    it, for a sum and a tanh on the backward pass.

    Parameters: `"query_kernel"` W_q `(H, A)`, `"key_kernel"` W_k `(E, A)`, `"bias"` b `(A,)` and `"score_kernel"` v
    `(A,)`. A bias of the keys would be one with b, and one of the scores would change no weight.
    Carry: nothing beside the context.

    Args:
        encoder_size: E, the size of the encoder's outputs.
        attention_size: A, the size of queries and keys.
        kernel_init: initializer of the kernels.
        bias_init: initializer of the bias.
        use_bias: whether there is a bias.
        dtype: of the computation; None: as query, encoder outputs and parameters promote. Scores and their softmax are
            in at least float32.
        param_dtype: of the parameters.
        project_keys: False: keys are always supplied, and there is no W_k.

    Raises:
        ValueError: if a size cannot be.
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
    and 6 and appendix A.1.2, there with the state before the step; with the one after it, as here, Caffe2's "Regular".
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
        for seen in self._seen_beside(params, encoded, context, state):
            preactivation = preactivation + seen
        preactivation = name(preactivation.astype(query.dtype), "attention")
        return product("...a,a->...", jnp.tanh(preactivation), params["score_kernel"])

    def _seen_beside(
        self, params: dict[str, Array], encoded: dict[str, Array], context: Array, state: tuple[Array, ...]
    ) -> tuple[Array, ...]:
        """What is added to keys and query within tanh, for every step of the encoder, `(N, L, A)` or `(N, 1, A)`."""
        return ()


@dataclass(frozen=True, repr=False)
class RecurrentAdditive(Additive):
    """Additive attention that sees the context of the step before.

        k_l = enc_l W_k                                            once, before the loop
        e_l = v . tanh(k_l + h W_q + context_{t-1} W_c + b)        (the argument of tanh is named "attention")
        a = softmax(e)
        context = sum_l a_l enc_l

    Parameters: those of `Additive`, and `"context_kernel"` W_c `(E, A)`.
    Carry: nothing beside the context.

    Args:
        encoder_size: E, the size of the encoder's outputs.
        attention_size: A, the size of queries and keys.
        kernel_init: initializer of the kernels.
        bias_init: initializer of the bias.
        use_bias: whether there is a bias.
        dtype: of the computation; None: as query, encoder outputs and parameters promote. Scores and their softmax are
            in at least float32.
        param_dtype: of the parameters.
        project_keys: False: keys are always supplied, and there is no W_k.

    Raises:
        ValueError: if a size cannot be.
        TypeError: if a dtype is not floating.

    Example:
        >>> import jax
        >>> from rnnscan import attention
        >>> mechanism = attention.RecurrentAdditive(encoder_size=6, attention_size=5)
        >>> mechanism.init(jax.random.key(0), query_size=4)["context_kernel"].shape
        (6, 5)

    Source: Caffe2's `AttentionType.Recurrent`, whose three biases within tanh are one here.
    """

    def _shapes(self, query_size: int) -> dict[str, tuple[int, ...]]:
        return super()._shapes(query_size) | {"context_kernel": (self.encoder_size, self.attention_size)}

    def _seen_beside(
        self, params: dict[str, Array], encoded: dict[str, Array], context: Array, state: tuple[Array, ...]
    ) -> tuple[Array, ...]:
        return (project(context, params["context_kernel"])[..., None, :],)


@dataclass(frozen=True, repr=False)
class Coverage(Additive):
    """Additive attention that sees how much it has attended to each step of the encoder.

        k_l = enc_l W_k        u_l = enc_l W_u + b_u               once, before the loop
        e_l = v . tanh(k_l + h W_q + b + coverage_l u_l)           (the argument of tanh is named "attention")
        a = softmax(e)
        context = sum_l a_l enc_l
        coverage' = coverage + a

    Parameters: those of `Additive`, and `"coverage_kernel"` W_u `(E, A)`, `"coverage_bias"` b_u `(A,)`.
    Carry: `coverage` `(N, L)` beside the context, zeros at the beginning, in at least float32.

    Args:
        encoder_size: E, the size of the encoder's outputs.
        attention_size: A, the size of queries and keys.
        kernel_init: initializer of the kernels.
        bias_init: initializer of the biases.
        use_bias: whether there are biases.
        dtype: of the computation; None: as query, encoder outputs and parameters promote. Scores and their softmax are
            in at least float32.
        param_dtype: of the parameters.
        project_keys: False: keys are always supplied, and there is no W_k.

    Raises:
        ValueError: if a size cannot be.
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

    Source: Tu et al. 2016, "Modeling Coverage for Neural Machine Translation", section 3.1; as here, with a vector for
    each step of the encoder, Caffe2's `AttentionType.SoftCoverage`.
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
            vectors = vectors + params["coverage_bias"]
        dtype = jnp.result_type(values, params["coverage_kernel"])
        return super().encode(params, values, keys) | {"coverage": vectors.astype(dtype)}

    def initial_state(self, x: Array, length: Any) -> tuple[Array, ...]:
        """The coverage `(N, L)`: zeros. It is a sum over all steps, so it is of at least 32 bits."""
        dtype: Any = jnp.promote_types(x.dtype, jnp.float32)
        return (zeros_beside(x, (*x.shape[:-1], length), dtype),)

    def _shapes(self, query_size: int) -> dict[str, tuple[int, ...]]:
        shapes = super()._shapes(query_size) | {"coverage_kernel": (self.encoder_size, self.attention_size)}
        return shapes | ({"coverage_bias": (self.attention_size,)} if self.use_bias else {})

    def _seen_beside(
        self, params: dict[str, Array], encoded: dict[str, Array], context: Array, state: tuple[Array, ...]
    ) -> tuple[Array, ...]:
        (coverage,) = state
        return (coverage[..., None] * encoded["coverage"],)

    def _new_state(self, state: tuple[Array, ...], weights: Array) -> tuple[Array, ...]:
        (coverage,) = state
        return (coverage + weights,)
