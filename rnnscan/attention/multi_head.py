"""Multi-head attention."""

from dataclasses import KW_ONLY, dataclass
from math import sqrt

import jax.numpy as jnp
from jaxtyping import Array, Float

from rnnscan._util.ranks import over_rows
from rnnscan.attention.mechanism import Mechanism, product
from rnnscan.cells import checks
from rnnscan.cells.dense import project, with_bias
from rnnscan.naming import name


@dataclass(frozen=True, repr=False)
class MultiHead(Mechanism):
    """Multi-head attention: scaled dot-product attention on projected queries, keys and values, in several heads.

        k_l = enc_l W_k        v_l = enc_l W_v                        once, before the loop
        q = h W_q + b
        e_il = k_il . q_i / sqrt(A / heads)                           (named "attention")
        a_i = softmax(e_i)
        context = [sum_l a_1l v_1l; sum_l a_2l v_2l; ...] W_o + b_o

    where k_i, v_i and q_i are the slices of head i. A row without valid steps of the encoder has a context of zeros,
    not b_o. The named value is `(N, heads, L)` at each step. No step computes a value of size `(N, L, A)`.

    Parameters: `"query_kernel"` W_q `(H, A)`, `"key_kernel"` W_k and `"value_kernel"` W_v `(E, A)`, `"output_kernel"`
    W_o `(A, E)`, `"bias"` b `(A,)`, `"output_bias"` b_o `(E,)`. Heads are blocks of columns, as in torch. A bias of the
    keys would not change the weights, and a bias b_v of the values is part of b_o as b_v W_o, since weights sum to 1.
    Carry: only the context.

    Args:
        encoder_size: E, the size of the encoder's outputs and of the context.
        attention_size: A, the size of queries, keys and values over all heads.
        heads: the number of heads, a divisor of A.
        kernel_init: initializer of the kernels.
        bias_init: initializer of the biases.
        use_bias: whether there are biases.
        dtype: the dtype of the computation. None: the promoted dtype of query, encoder outputs and parameters. Scores
            and softmax are at least float32.
        param_dtype: the dtype of the parameters.
        project_keys: whether there is W_k. If not, give `over` the keys `(L, N, A)`.

    Raises:
        ValueError: if a size is invalid, or the heads do not divide A.
        TypeError: if a dtype is not floating.

    Example:
        >>> import jax
        >>> from rnnscan import attention
        >>> mechanism = attention.MultiHead(encoder_size=6, attention_size=8, heads=2)
        >>> mechanism.init(jax.random.key(0), query_size=4)["output_kernel"].shape
        (8, 6)

    Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.2.2; `torch.nn.MultiheadAttention`.
    """

    attention_size: int
    heads: int
    _: KW_ONLY
    project_keys: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.check_size("MultiHead", "attention_size", self.attention_size)
        checks.check_size("MultiHead", "heads", self.heads)
        if self.attention_size % self.heads:
            raise ValueError(
                f"MultiHead: `heads` must divide `attention_size`; got heads={self.heads} and "
                f"attention_size={self.attention_size}. Give a multiple of the heads."
            )

    @property
    def key_size(self) -> int:
        """The size of the keys: A."""
        return self.attention_size

    def encode(
        self,
        params: dict[str, Array],
        values: Float[Array, "*batch length features"],
        keys: Float[Array, "*batch length keys"] | None,
    ) -> dict[str, Array]:
        """The projected values and keys."""
        dtype = jnp.result_type(values, params["value_kernel"])
        projected = project(values, params["value_kernel"]).astype(dtype)
        return {"values": projected, "keys": self._keys(params, values, keys)}

    def _shapes(self, query_size: int) -> dict[str, tuple[int, ...]]:
        outside, inside = self.encoder_size, self.attention_size
        shapes: dict[str, tuple[int, ...]] = {"query_kernel": (query_size, inside)}
        shapes |= {"key_kernel": (outside, inside)} if self.project_keys else {}
        shapes |= {"value_kernel": (outside, inside), "output_kernel": (inside, outside)}
        return shapes | ({"bias": (inside,), "output_bias": (outside,)} if self.use_bias else {})

    def _scores(
        self,
        params: dict[str, Array],
        encoded: dict[str, Array],
        query: Array,
        context: Array,
        state: tuple[Array, ...],
    ) -> Array:
        queries = with_bias(project(query, params["query_kernel"]), params) / sqrt(self.attention_size // self.heads)
        queries, keys = self._by_head(queries.astype(query.dtype)), self._by_head(encoded["keys"])
        return name(product("...lhd,...hd->...hl", keys, queries), "attention")

    def _context(
        self, params: dict[str, Array], encoded: dict[str, Array], valid: Array | None, weights: Array
    ) -> Array:
        attended = product("...hl,...lhd->...hd", weights, self._by_head(encoded["values"])).astype(weights.dtype)
        context = project(attended.reshape(*attended.shape[:-2], self.attention_size), params["output_kernel"])
        if not self.use_bias:
            return context
        context = context + over_rows(params["output_bias"], context)
        return context if valid is None else jnp.where(valid.any(axis=-1, keepdims=True), context, 0)

    def _by_head(self, projected: Array) -> Array:
        """Reshape `(..., A)` to `(..., heads, A / heads)`."""
        return projected.reshape(*projected.shape[:-1], self.heads, self.attention_size // self.heads)
