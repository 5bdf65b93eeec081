"""The simple recurrent unit: an elementwise recurrence with a highway connection."""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from rnnscan._util.ranks import over_rows
from rnnscan.cells import checks, initializers
from rnnscan.cells.activations import Activation, activate
from rnnscan.cells.base import Carry, Params
from rnnscan.cells.dense import InputKernelCell, project
from rnnscan.cells.initializers import Initializer
from rnnscan.naming import name


@dataclass(frozen=True, repr=False)
class SRU(InputKernelCell):
    """The simple recurrent unit.

        [u a_f a_r s] = x W + [0 b_f b_r 0]          (named "gates"); s = x if D = H
        f = sigmoid(a_f)    r = sigmoid(a_r)
        c' = f * c + (1 - f) * u
        y = r * activation(c') + (1 - r) * highway_scale * s

    `recurrent_vectors` adds v_f * c and v_r * c to a_f and a_r.

    Without recurrent vectors c' is elementwise linear in c, so the engine batches the matrix
    products over all steps.

    Parameters: `"kernel"` W `(H, 3H)` if D = H, otherwise `(D, 4H)`, and `"bias"` `(2H,)`; block order u, f, r, s.
    With `recurrent_vectors`, `"recurrent_vectors"` `(2H,)`, order f, r.
    Carry: the tuple `(c,)`, c `(N, H)`.

    Args:
        hidden_size: H, the number of units.
        kernel_init: initializer of each block of the kernel.
        bias_init: initializer of the bias.
        use_bias: whether there are biases.
        dtype: the dtype of the computation and of y. None: the promoted dtype of input and parameters.
        param_dtype: the dtype of the parameters.
        carry_dtype: the dtype of the initial carry. None: the input's. Float32 keeps c exact in a bfloat16 computation.
        recurrent_vectors: whether the gates read the state c elementwise, as in the paper's final form.
        vector_init: initializer of each of the two recurrent vectors, as a row `(1, H)`.
        activation: for c' in y, a name of `rnnscan.cells.activations` or a function. The paper's final form has none.
        highway_bias: added by `init` to b_r. Unused without biases.
        highway_scale: the factor of s in y. With sqrt(1 + 2 exp(highway_bias)), y initially has the variance of x, at
            any depth.

    Raises:
        ValueError: if a size, a scale or a name is invalid, or an argument of a step does not fit the parameters.
        TypeError: if a dtype is not floating, or the carry is not a tuple of floating arrays.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from rnnscan import cells
        >>> cell = cells.SRU(4)
        >>> x = jnp.ones((2, 3))
        >>> (state,), y = cell(cell.init(jax.random.key(0), input_size=3), cell.initial_carry(x), x)
        >>> state.shape, y.shape
        ((2, 4), (2, 4))

    Source: Lei et al. 2018, "Simple Recurrent Units for Highly Parallelizable Recurrence", equations 1 to 4 and section
    3.2, where highway_scale is alpha. Without recurrent vectors: the first version of the paper, "Training RNNs as Fast
    as CNNs", 2017.
    """

    carry_names: ClassVar[tuple[str, ...]] = ("cell",)
    names: ClassVar[tuple[str, ...]] = ("gates",)
    output_part: ClassVar[int | None] = None
    parameter_options: ClassVar[tuple[str, ...]] = ("recurrent_vectors", "use_bias")

    _: KW_ONLY
    recurrent_vectors: bool = False
    vector_init: Initializer = initializers.lecun_normal
    activation: Activation = "identity"
    highway_bias: float = 0.0
    highway_scale: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.highway_scale > 0:
            raise ValueError(f"SRU: `highway_scale` must be a number above 0; got {self.highway_scale!r}.")

    def _make(self, key: Array, input_size: int) -> Params:
        kernel_key, bias_key, vector_key = jax.random.split(key, 3)
        units, dtype = self.hidden_size, self.param_dtype
        blocks = self._blocks(input_size)
        params = {"kernel": initializers.by_block(self.kernel_init, kernel_key, input_size, units, blocks, dtype)}
        if self.use_bias:
            params["bias"] = self.bias_init(bias_key, (2 * units,), dtype).at[units:].add(self.highway_bias)
        if self.recurrent_vectors:
            params["recurrent_vectors"] = initializers.by_block(self.vector_init, vector_key, 1, units, 2, dtype)[0]
        return params

    def __call__(
        self, params: Params, carry: Carry, x: Num[Array, "*batch features"]
    ) -> tuple[Carry, Float[Array, "*batch hidden"]]:
        """One step: `(params, carry, x) -> (carry, y)`."""
        weights, _, x = self._enter(params, carry, x)
        candidate, gates, highway = self._products(weights, x)
        if self.recurrent_vectors:
            gates = gates + (over_rows(weights["recurrent_vectors"], gates) * jnp.tile(carry[0], 2)).astype(gates.dtype)
        forget, reset = jnp.split(jax.nn.sigmoid(gates), 2, axis=-1)
        # The state accumulates over the whole sequence, so it is updated in its own dtype, not in the gates'.
        state = (forget * carry[0] + (1 - forget) * candidate).astype(carry[0].dtype)
        y = reset * activate(self.activation, state) + (1 - reset) * self.highway_scale * highway
        return (state,), y.astype(x.dtype)

    def _products(self, weights: Params, x: Array) -> tuple[Array, Array, Array]:
        """Compute u, the two gates before the sigmoid, and s."""
        products = project(x, weights["kernel"])
        first, last = self.hidden_size, 3 * self.hidden_size
        gates = products[..., first:last]
        if self.use_bias:
            gates += over_rows(weights["bias"], gates)
        projected = [z.astype(x.dtype) for z in (products[..., :first], gates, products[..., last:])]
        if self._blocks(x.shape[-1]) == 4:
            candidate, gates, highway = name(projected, "gates")
            return candidate, gates, highway
        candidate, gates = name(projected[:2], "gates")
        return candidate, gates, x

    def _blocks(self, input_size: int) -> int:
        """The number of blocks of the kernel. The fourth projects an x whose size is not H."""
        return 3 if input_size == self.hidden_size else 4

    def _shapes(self) -> dict[str, tuple[Any, ...]]:
        return self._shapes_with(blocks=3)

    def _shapes_with(self, blocks: int) -> dict[str, tuple[Any, ...]]:
        units = self.hidden_size
        shapes: dict[str, tuple[Any, ...]] = {"kernel": ("D", blocks * units)}
        if self.use_bias:
            shapes["bias"] = (2 * units,)
        return shapes | ({"recurrent_vectors": (2 * units,)} if self.recurrent_vectors else {})

    def _check_params(self, params: Any) -> int:
        shapes = self._shapes_with(self._blocks(self._rows(params)))
        likely_cause = self._likely_cause
        return checks.check_params("SRU", f"{self.hidden_size} units", shapes, params, likely_cause=likely_cause)

    def _likely_cause(self, params: Any) -> str:
        # The options determine only the other parameters, so they are compared with a kernel of three blocks.
        kernel = jax.ShapeDtypeStruct((self._rows(params), 3 * self.hidden_size), self.param_dtype)
        return super()._likely_cause({**params, "kernel": kernel})

    def _rows(self, params: Any) -> int:
        """The input size by the kernel, or H without one."""
        shape = getattr(params["kernel"], "shape", ()) if isinstance(params, Mapping) and "kernel" in params else ()
        return shape[0] if shape else self.hidden_size
