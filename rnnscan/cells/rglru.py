"""The real-gated linear recurrent unit."""

from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from rnnscan._util.dtypes import at_least_float32
from rnnscan._util.ranks import over_rows
from rnnscan.cells import checks
from rnnscan.cells.base import Carry, Params
from rnnscan.cells.dense import InputKernelCell, with_bias
from rnnscan.cells.heads import check_heads, initialize_heads, project_heads
from rnnscan.naming import name


@dataclass(frozen=True, repr=False)
class RGLRU(InputKernelCell):
    """The real-gated linear recurrent unit.

        [z_r z_i] = x W + b          (named "gates")
        r = sigmoid(z_r)    i = sigmoid(z_i)
        a = sigmoid(L) ** (exponent * r)
        h' = a * h + sqrt(1 - a**2) * (i * x)     with first_step="normalized", and after the first step
        h' = a * h + i * x                        with first_step="plain", at the first step of a sequence or document
        y = h'

    h' is elementwise linear in h, so the engine batches the matrix products over all steps. D must be H, because x is
    gated elementwise.

    Parameters: `"kernel"` W `(heads, H / heads, 2 H / heads)`, block-diagonal: one block `(H / heads, H / heads)` for
    each head and gate; `"bias"` b `(2H,)`; order r, i; `"decay"` L `(H,)`.
    Carry: the tuple `(h,)`, h `(N, H)`; with `first_step="plain"` the tuple `(h, started)`, started `(N,)` bool.

    Public RecurrentGemma weights need `first_step="plain"`. The carry then tells the cell where a sequence begins:
    `started` is false in `initial_carry`, so also where `reset` is true, and each step sets it. A carry that resumes a
    sequence has `started` true. A `reset_to` of your own must have it false.

    Args:
        hidden_size: H, the number of units, and of features of x.
        kernel_init: initializer of each block of the kernel.
        bias_init: initializer of the bias.
        use_bias: whether there is a bias.
        dtype: the dtype of the computation and of y. None: the promoted dtype of input and parameters. The decay a is
            at least float32.
        param_dtype: the dtype of the parameters.
        carry_dtype: the dtype of the initial carry. None: the input's. Float32 keeps h exact in a bfloat16 computation.
        heads: the number of blocks of x. The gates of a block read only that block.
        exponent: how fast a unit with an open gate forgets, c in the paper.
        decay_range: the range of the initial a for r = 1, from which `init` draws uniformly.
        first_step: "normalized" or "plain", whether the first step has the square root.

    Raises:
        ValueError: if a size, a number or a name is invalid, or an argument of a step does not fit the parameters.
        TypeError: if a dtype is not floating, or the carry is not a tuple of arrays of its dtypes.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from rnnscan import cells
        >>> cell = cells.RGLRU(4, heads=2)
        >>> x = jnp.ones((2, 4))
        >>> (hidden,), y = cell(cell.init(jax.random.key(0), input_size=4), cell.initial_carry(x), x)
        >>> hidden.shape, y.shape
        ((2, 4), (2, 4))

    Source: De et al. 2024, "Griffin: Mixing Gated Linear Recurrences with Local Attention for Efficient Language
    Models", equations 1 to 4. The heads and `first_step="plain"` are those of `RGLRU` in `recurrentgemma/jax/layers.py`
    of `google-deepmind/recurrentgemma`, where `segment_pos == 0` is the first step. Its `a_param` is -L. Each block of
    W joins that head of `a_gate.w` and of `input_gate.w` by columns; b is `a_gate.b`, then `input_gate.b`, flattened.
    """

    boolean_parts: ClassVar[frozenset[str]] = frozenset({"started"})
    names: ClassVar[tuple[str, ...]] = ("gates",)
    one_feature_per_unit: ClassVar[bool] = True

    _: KW_ONLY
    heads: int = 1
    exponent: float = 8.0
    decay_range: tuple[float, float] = (0.9, 0.999)
    first_step: str = "normalized"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_heads("RGLRU", self.hidden_size, self.heads)
        if not self.exponent > 0:
            raise ValueError(f"RGLRU: `exponent` must be a number above 0; got {self.exponent!r}.")
        span = self.decay_range
        if not isinstance(span, tuple) or len(span) != 2 or not 0 < span[0] <= span[1] < 1:
            raise ValueError(
                f"RGLRU: `decay_range` must be a tuple of two ascending numbers between 0 and 1; got {span!r}."
            )
        checks.check_choice("RGLRU", "first_step", self.first_step, ("normalized", "plain"))

    @property
    def carry_names(self) -> tuple[str, ...]:
        """The parts of the carry."""
        return ("hidden",) if self.first_step == "normalized" else ("hidden", "started")

    def _make(self, key: Array, input_size: int) -> Params:
        kernel_key, bias_key, decay_key = jax.random.split(key, 3)
        units, dtype = self.hidden_size, self.param_dtype
        low, high = self.decay_range
        log_decay = jnp.log(jax.random.uniform(decay_key, (units,), minval=low, maxval=high)) / self.exponent
        params = {
            "kernel": initialize_heads(self.kernel_init, kernel_key, units, self.heads, 2, dtype),
            # The inverse of log(sigmoid(L)).
            "decay": (log_decay - jnp.log(-jnp.expm1(log_decay))).astype(dtype),
        }
        if self.use_bias:
            params["bias"] = self.bias_init(bias_key, (2 * units,), dtype)
        return params

    def __call__(
        self, params: Params, carry: Carry, x: Num[Array, "*batch features"]
    ) -> tuple[Carry, Float[Array, "*batch hidden"]]:
        """One step: `(params, carry, x) -> (carry, y)`."""
        weights, _, x = self._enter(params, carry, x)
        gates = name(with_bias(project_heads(x, weights["kernel"]), weights).astype(x.dtype), "gates")
        recurrence_gate, input_gate = jnp.split(jax.nn.sigmoid(gates), 2, axis=-1)
        # For a near 1, 1 - a**2 loses all digits in 16 bits, so powers are computed as products of logarithms in 32.
        wide = at_least_float32(x.dtype)
        log_decay = (
            self.exponent
            * recurrence_gate.astype(wide)
            * over_rows(jax.nn.log_sigmoid(params["decay"].astype(wide)), x)
        )
        scale = _sqrt(-jnp.expm1(2 * log_decay))
        if self.first_step == "plain":
            scale = jnp.where(carry[1][..., None], scale, 1)
        hidden = (jnp.exp(log_decay) * carry[0] + scale * (input_gate * x)).astype(carry[0].dtype)
        return (hidden, *map(jnp.ones_like, carry[1:])), hidden.astype(x.dtype)

    def _carry_shapes(self, x: Array) -> tuple[tuple[Any, ...], ...]:
        batch = x.shape[:-1]
        return ((*batch, self.hidden_size), batch)[: len(self.carry_names)]

    def _shapes(self) -> dict[str, tuple[Any, ...]]:
        head = self.hidden_size // self.heads
        shapes: dict[str, tuple[Any, ...]] = {"kernel": (self.heads, head, 2 * head), "decay": ("D",)}
        return shapes | ({"bias": (2 * self.hidden_size,)} if self.use_bias else {})


def _sqrt(z: Array) -> Array:
    """The square root, with a gradient of 0 at 0. A closed gate would otherwise give 0 * inf."""
    return jnp.where(z > 0, jnp.sqrt(jnp.where(z > 0, z, 1)), 0)
