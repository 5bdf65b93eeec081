"""The selective state space of Mamba (S6): a linear recurrence whose step size, input and output read x."""

from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from rnnscan._util.dtypes import at_least_float32
from rnnscan._util.ranks import over_rows
from rnnscan.cells import checks, initializers
from rnnscan.cells.base import Carry, Cell, Params
from rnnscan.cells.dense import project
from rnnscan.cells.initializers import Initializer
from rnnscan.cells.step_sizes import check_range, step_bias
from rnnscan.naming import name


@dataclass(frozen=True, repr=False)
class S6(Cell):
    """The selective state space of Mamba (S6), with S states for each of its H channels.

        [r B C] = x W          (named "projected")
        dt = softplus(r W_d + b_d)          (its argument named "projected")
        A = -exp(L)
        s' = exp(dt A) * s + (exp(dt A) - 1) / A * (x B^T)     with discretization="zoh"
        s' = exp(dt A) * s + dt * (x B^T)                      with discretization="euler"
        y = s' C + skip * x

    Public Mamba weights need `discretization="euler"`.

    s' is elementwise linear in s, so the engine batches the matrix products over all steps. Its decay differs along
    both axes of the state. D must be H, because each channel of x has its own states.

    Parameters: `"kernel"` W `(H, rank + 2S)`, order r, B, C; `"step_kernel"` W_d `(rank, H)`, `"step_bias"` b_d `(H,)`,
    `"log_decay"` L `(H, S)`, `"skip"` `(H,)`.
    Carry: the tuple `(s,)`, s `(N, H, S)`.

    Args:
        hidden_size: H, the number of channels, and of features of x.
        kernel_init: initializer of each block of the kernel.
        dtype: the dtype of the computation and of y. None: the promoted dtype of input and parameters. dt and A are at
            least float32.
        param_dtype: the dtype of the parameters.
        carry_dtype: the dtype of the initial carry. None: the input's. The state needs float32 in a 16-bit computation.
        state_size: S, the number of states of each channel.
        rank: the rank of dt's product with x. None: H / 16, rounded up.
        step_range: the range of the initial dt for r = 0, from which `init` draws log-uniformly.
        discretization: "zoh", the zero-order hold of the paper's equation, or "euler", its first order in dt, which
            public Mamba code computes.

    Raises:
        ValueError: if a size, a range or a name is invalid, or an argument of a step does not fit the parameters.
        TypeError: if a dtype is not floating, or the carry is not a tuple of floating arrays.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from rnnscan import cells
        >>> cell = cells.S6(4, state_size=3)
        >>> x = jnp.ones((5, 4))
        >>> (state,), y = cell(cell.init(jax.random.key(0), input_size=4), cell.initial_carry(x), x)
        >>> state.shape, y.shape
        ((5, 4, 3), (5, 4))

    Source: Gu and Dao 2023, "Mamba: Linear-Time Sequence Modeling with Selective State Spaces", equation 4 (zero-order
    hold) and algorithm 2, with the real initial A = -(1, ..., S) and the dt of section 3.6. The skip connection, the
    initial b_d and W_d, and "euler" are those of the authors' code: `selective_scan_ref` in
    `mamba_ssm/ops/selective_scan_interface.py` of `state-spaces/mamba`. Its `x_proj.weight` and `dt_proj.weight` are
    the transposes of W and W_d; `A_log` is L, `D` is the skip.
    """

    carry_names: ClassVar[tuple[str, ...]] = ("state",)
    names: ClassVar[tuple[str, ...]] = ("projected",)
    one_feature_per_unit: ClassVar[bool] = True
    output_part: ClassVar[int | None] = None

    _: KW_ONLY
    kernel_init: Initializer = initializers.lecun_normal
    state_size: int = 16
    rank: int | None = None
    step_range: tuple[float, float] = (0.001, 0.1)
    discretization: str = "zoh"

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.check_size("S6", "state_size", self.state_size)
        if self.rank is not None:
            checks.check_size("S6", "rank", self.rank)
        check_range("S6", "step_range", self.step_range)
        checks.check_choice("S6", "discretization", self.discretization, ("zoh", "euler"))

    @property
    def _rank(self) -> int:
        return -(-self.hidden_size // 16) if self.rank is None else self.rank

    def _make(self, key: Array, input_size: int) -> Params:
        *block_keys, step_key, bias_key = jax.random.split(key, 5)
        units, dtype, bound = self.hidden_size, self.param_dtype, self._rank**-0.5
        shapes = [(units, columns) for columns in (self._rank, self.state_size, self.state_size)]
        blocks = [self.kernel_init(*pair, dtype) for pair in zip(block_keys, shapes, strict=True)]
        step_kernel = jax.random.uniform(step_key, (self._rank, units), minval=-bound, maxval=bound)
        log_decay = jnp.log(jnp.arange(1, self.state_size + 1, dtype=jnp.float32))
        return {
            "kernel": jnp.concatenate(blocks, axis=1),
            "step_kernel": step_kernel.astype(dtype),
            "step_bias": step_bias(bias_key, units, self.step_range, dtype),
            "log_decay": jnp.tile(log_decay, (units, 1)).astype(dtype),
            "skip": jnp.ones(units, dtype),
        }

    def __call__(
        self, params: Params, carry: Carry, x: Num[Array, "*batch features"]
    ) -> tuple[Carry, Float[Array, "*batch hidden"]]:
        """One step: `(params, carry, x) -> (carry, y)`."""
        weights, _, x = self._enter(params, carry, x)
        ends = [self._rank, self._rank + self.state_size]
        narrow, write, read = jnp.split(project(x, weights["kernel"]).astype(x.dtype), ends, axis=-1)
        step = project(narrow, weights["step_kernel"]).astype(x.dtype)
        write, read, step = name((write, read, step), "projected")
        # Errors of the decay grow with its powers over time, so its parameters are not cast to a narrower dtype.
        wide = at_least_float32(x.dtype)
        step = jax.nn.softplus(step.astype(wide) + over_rows(params["step_bias"].astype(wide), step))
        rate = -jnp.exp(params["log_decay"].astype(wide))
        rate = over_rows(rate, carry[0])
        log_decay = step[..., None] * rate
        held = jnp.expm1(log_decay) / rate if self.discretization == "zoh" else step[..., None]
        update = held * (x[..., :, None].astype(wide) * write[..., None, :].astype(wide))
        state = (jnp.exp(log_decay) * carry[0] + update).astype(carry[0].dtype)
        output = jnp.einsum("...hs,...s->...h", state.astype(wide), read.astype(wide))
        return (state,), (output + over_rows(weights["skip"], x) * x).astype(x.dtype)

    def _shapes(self) -> dict[str, tuple[Any, ...]]:
        units = self.hidden_size
        return {
            "kernel": ("D", self._rank + 2 * self.state_size),
            "step_kernel": (self._rank, units),
            "step_bias": (units,),
            "log_decay": (units, self.state_size),
            "skip": (units,),
        }

    def _carry_shapes(self, x: Array) -> tuple[tuple[Any, ...], ...]:
        return ((*x.shape[:-1], self.hidden_size, self.state_size),)
