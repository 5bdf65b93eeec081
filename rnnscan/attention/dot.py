"""Dot-product attention."""

from dataclasses import KW_ONLY, dataclass
from math import sqrt

from jaxtyping import Array

from rnnscan.attention.mechanism import Mechanism, product
from rnnscan.cells.dense import project, with_bias
from rnnscan.naming import name


@dataclass(frozen=True, repr=False)
class Dot(Mechanism):
    """Dot-product attention.

        e_l = enc_l . q, or enc_l . q / sqrt(E) with scale          (named "attention")
        q = h, or h W_q + b with project_query
        a = softmax(e)
        context = sum_l a_l enc_l

    The named value is `(N, L)` at each step. No step computes a value of size `(N, L, E)`.

    Parameters: none. With `project_query`, `"query_kernel"` W_q `(H, E)` and `"bias"` b `(E,)`.
    Carry: only the context.

    Args:
        encoder_size: E, the size of the encoder's outputs.
        kernel_init: initializer of the kernel.
        bias_init: initializer of the bias.
        use_bias: whether there is a bias.
        dtype: the dtype of the computation. None: the promoted dtype of query, encoder outputs and parameters. Scores
            and softmax are at least float32.
        param_dtype: the dtype of the parameters.
        scale: whether scores are divided by sqrt(E).
        project_query: whether the query is projected. Needed if H is not E.

    Raises:
        ValueError: if a size is invalid; in `init`, if the query is not projected and H is not E.
        TypeError: if a dtype is not floating.

    Example:
        >>> import jax
        >>> from rnnscan import attention
        >>> attention.Dot(encoder_size=6).init(jax.random.key(0), query_size=6)
        {}
        >>> mechanism = attention.Dot(encoder_size=6, scale=True, project_query=True)
        >>> mechanism.init(jax.random.key(0), query_size=4)["query_kernel"].shape
        (4, 6)

    Source: Luong et al. 2015, "Effective Approaches to Attention-based Neural Machine Translation", section 3.1, "dot"
    and "general"; the scale is that of Vaswani et al. 2017, "Attention Is All You Need", equation 1. Caffe2's
    `AttentionType.Dot` has no scale, and projects if H is not E.
    """

    _: KW_ONLY
    scale: bool = False
    project_query: bool = False

    def check_query_size(self, query_size: int) -> None:
        """Check that the query can be multiplied with the encoder's outputs."""
        if not self.project_query and query_size != self.encoder_size:
            raise ValueError(
                f"Dot: without a projection the query must be as large as the encoder's outputs; got a query of "
                f"{query_size} and encoder_size={self.encoder_size}. Give project_query=True."
            )

    def _shapes(self, query_size: int) -> dict[str, tuple[int, ...]]:
        if not self.project_query:
            return {}
        shapes: dict[str, tuple[int, ...]] = {"query_kernel": (query_size, self.encoder_size)}
        return shapes | ({"bias": (self.encoder_size,)} if self.use_bias else {})

    def _keys(self, params: dict[str, Array], values: Array, keys: Array | None) -> Array:
        return values if keys is None else keys

    def _scores(
        self,
        params: dict[str, Array],
        encoded: dict[str, Array],
        query: Array,
        context: Array,
        state: tuple[Array, ...],
    ) -> Array:
        if self.project_query:
            query = with_bias(project(query, params["query_kernel"]), params).astype(query.dtype)
        if self.scale:
            query = query / sqrt(self.encoder_size)
        return name(product("...le,...e->...l", encoded["keys"], query), "attention")
