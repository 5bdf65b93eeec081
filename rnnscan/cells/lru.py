"""The linear recurrent unit: a diagonal complex linear recurrence."""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from math import pi
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Num

from rnnscan._util.dtypes import at_least_float32
from rnnscan._util.ranks import over_rows
from rnnscan.cells import checks, initializers
from rnnscan.cells.base import Carry, Cell, Params
from rnnscan.cells.dense import project
from rnnscan.cells.initializers import Initializer
from rnnscan.naming import name


@dataclass(frozen=True, repr=False)
class LRU(Cell):
    """The linear recurrent unit.

        a = exp(-exp(v) + i exp(p))
        s' = a * s + exp(g) * (x B)          x B named "projected"
        y = Re(s' C) + x K          with skip="matrix"
        y = Re(s' C) + k * x        with skip="vector"

    s' is elementwise linear in s, so the engine batches the matrix products over all steps.
    s, a, B and C are complex. The parameters are real, for any optimizer. With `skip="vector"`, D must be H.

    Parameters: `"log_decay"` v, `"log_phase"` p and `"log_scale"` g, each `(S,)`; `"input_kernel_real"` and
    `"input_kernel_imag"` of B `(D, S)`; `"output_kernel_real"` and `"output_kernel_imag"` of C `(S, H)`;
    `"skip_kernel"` K `(D, H)`, or `"skip"` k `(H,)`.
    Carry: the tuple `(s,)`, s `(N, S)`, complex64 or complex128.

    Args:
        hidden_size: H, the size of y.
        kernel_init: initializer of the kernels. The real and imaginary parts of B are divided by sqrt(2).
        dtype: the dtype of the computation and of y. None: the promoted dtype of input and parameters. a and the state
            are at least float32.
        param_dtype: the dtype of the parameters.
        carry_dtype: the dtype of the real and imaginary parts of the initial carry, which is at least complex64. None:
            the input's.
        state_size: S, the number of complex states. None: H.
        r_min: the smallest initial magnitude of a.
        r_max: the largest initial magnitude of a. `init` draws a uniformly from the ring between the two.
        max_phase: the largest initial phase of a.
        skip: "matrix", or "vector", which public LRU code has. `init` draws a vector from the standard normal.

    Raises:
        ValueError: if a size, a number or a name is invalid, or an argument of a step does not fit the parameters.
        TypeError: if a dtype is not floating, or the carry is not a tuple of complex arrays.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from rnnscan import cells
        >>> cell = cells.LRU(4, state_size=8)
        >>> x = jnp.ones((2, 3))
        >>> (state,), y = cell(cell.init(jax.random.key(0), input_size=3), cell.initial_carry(x), x)
        >>> state.shape, state.dtype.name, y.shape
        ((2, 8), 'complex64', (2, 4))

    Source: Orvieto et al. 2023, "Resurrecting Recurrent Neural Networks for Long Sequences", section 3 and appendix A.
    There v, p and g are the logarithms of nu, theta and gamma, and K is D. `skip="vector"` is that of `lru/model.py` in
    `NicolasZucchet/minimal-LRU`: its `nu_log`, `theta_log` and `gamma_log` are v, p and g, its `B_re`, `B_im`, `C_re`
    and `C_im` are the transposes of B and C, and `D` is k.
    """

    carry_names: ClassVar[tuple[str, ...]] = ("state",)
    names: ClassVar[tuple[str, ...]] = ("projected",)
    complex_parts: ClassVar[frozenset[str]] = frozenset({"state"})
    output_part: ClassVar[int | None] = None
    parameter_choices: ClassVar[Mapping[str, tuple[str, ...]]] = {"skip": ("matrix", "vector")}

    _: KW_ONLY
    kernel_init: Initializer = initializers.lecun_normal
    state_size: int | None = None
    r_min: float = 0.0
    r_max: float = 1.0
    max_phase: float = 2 * pi
    skip: str = "matrix"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.state_size is not None:
            checks.check_size("LRU", "state_size", self.state_size)
        if not 0 <= self.r_min < self.r_max <= 1:
            raise ValueError(
                "LRU: `r_min` and `r_max` must be two ascending numbers from 0 to 1; got "
                f"{self.r_min!r} and {self.r_max!r}."
            )
        if not self.max_phase > 0:
            raise ValueError(f"LRU: `max_phase` must be a number above 0; got {self.max_phase!r}.")
        checks.check_choice("LRU", "skip", self.skip, self.parameter_choices["skip"])

    @property
    def one_feature_per_unit(self) -> bool:
        """Whether y reads x feature by feature."""
        return self.skip == "vector"

    @property
    def states(self) -> int:
        """S, the number of complex states."""
        return self.hidden_size if self.state_size is None else self.state_size

    def _make(self, key: Array, input_size: int) -> Params:
        decay_key, phase_key, *kernel_keys, skip_key = jax.random.split(key, 7)
        dtype, states = self.param_dtype, self.states
        # Above 0, for the logarithms.
        least = jnp.finfo(jnp.float32).tiny
        area = jax.random.uniform(decay_key, (states,), minval=least)
        turn = jax.random.uniform(phase_key, (states,), minval=least)
        decay = -0.5 * jnp.log(area * (self.r_max**2 - self.r_min**2) + self.r_min**2)
        params = {
            "log_decay": jnp.log(decay).astype(dtype),
            "log_phase": jnp.log(self.max_phase * turn).astype(dtype),
            # sqrt(1 - |a|**2) gives the state the variance of its input.
            "log_scale": (0.5 * jnp.log(-jnp.expm1(-2 * decay))).astype(dtype),
        }
        shapes = {"input_kernel": (input_size, states), "output_kernel": (states, self.hidden_size)}
        kernels = [(f"{kernel}_{part}", shape) for kernel, shape in shapes.items() for part in ("real", "imag")]
        for (kernel, shape), kernel_key in zip(kernels, kernel_keys, strict=True):
            params[kernel] = self.kernel_init(kernel_key, shape, dtype)
        for part in ("real", "imag"):
            params[f"input_kernel_{part}"] /= 2**0.5
        if self.skip == "vector":
            params["skip"] = jax.random.normal(skip_key, (self.hidden_size,), jnp.float32).astype(dtype)
        else:
            params["skip_kernel"] = self.kernel_init(skip_key, (input_size, self.hidden_size), dtype)
        return params

    def __call__(
        self, params: Params, carry: Carry, x: Num[Array, "*batch features"]
    ) -> tuple[Carry, Float[Array, "*batch hidden"]]:
        """One step: `(params, carry, x) -> (carry, y)`."""
        weights, _, x = self._enter(params, carry, x)
        projected = name(
            tuple(project(x, weights[f"input_kernel_{part}"]).astype(x.dtype) for part in ("real", "imag")), "projected"
        )
        # Errors of a grow with its powers over time, so its parameters are not cast to a narrower dtype.
        wide = at_least_float32(x.dtype)
        log_decay, log_phase, log_scale = (params[f"log_{of}"].astype(wide) for of in ("decay", "phase", "scale"))
        factor = jnp.exp(lax.complex(-jnp.exp(log_decay), jnp.exp(log_phase)))
        scale = jnp.exp(log_scale)
        update = lax.complex(*(over_rows(scale, part) * part.astype(wide) for part in projected))
        state = (over_rows(factor, carry[0]) * carry[0] + update).astype(carry[0].dtype)
        y = project(state.real.astype(x.dtype), weights["output_kernel_real"])
        y -= project(state.imag.astype(x.dtype), weights["output_kernel_imag"])
        y += over_rows(weights["skip"], x) * x if self.skip == "vector" else project(x, weights["skip_kernel"])
        return (state,), y.astype(x.dtype)

    def _shapes(self) -> dict[str, tuple[Any, ...]]:
        states, units = self.states, self.hidden_size
        return {
            "log_decay": (states,),
            "log_phase": (states,),
            "log_scale": (states,),
            "input_kernel_real": ("D", states),
            "input_kernel_imag": ("D", states),
            "output_kernel_real": (states, units),
            "output_kernel_imag": (states, units),
        } | ({"skip": (units,)} if self.skip == "vector" else {"skip_kernel": ("D", units)})

    def _carry_shapes(self, x: Array) -> tuple[tuple[Any, ...], ...]:
        return ((*x.shape[:-1], self.states),)
