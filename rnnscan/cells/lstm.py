"""The LSTM, optionally with peepholes, a projection, coupled gates and a clipped cell state."""

from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from rnnscan.cells import checks, initializers
from rnnscan.cells.activations import activate
from rnnscan.cells.base import Carry, Params
from rnnscan.cells.dense import project, with_bias
from rnnscan.cells.initializers import Initializer
from rnnscan.cells.memory_cell import MemoryCell
from rnnscan.naming import name


@dataclass(frozen=True, repr=False)
class LSTM(MemoryCell):
    """Long short-term memory.

        [z_i z_f z_g z_o] = x W + h U + b          (named "gates")
        i = sigmoid(z_i)    f = sigmoid(z_f)    g = tanh(z_g)    o = sigmoid(z_o)
        c' = f * c + i * g
        h' = o * tanh(c')
        y = h'

    `peepholes` adds p_i * c, p_f * c and p_o * c' to z_i, z_f and z_o. `coupled_gates` sets i = 1 - f, without z_i.
    `proj_size` sets h' = (o * tanh(c')) R.

    Parameters: `"kernel"` W `(D, 4H)`, `"recurrent_kernel"` U `(H, 4H)`, `"bias"` b `(4H,)`; gate order i, f, g, o.
    With `peepholes`, `"peepholes"` `(3H,)`, order i, f, o. With `coupled_gates`, there are no blocks of i. With
    `proj_size` P, `"projection_kernel"` R `(H, P)`, and U is `(P, 4H)`.
    Carry: the tuple `(h, c)`, h `(N, H)` or `(N, P)`, and c `(N, H)`, as in torch, Keras and cuDNN. Flax has `(c, h)`.

    Args:
        hidden_size: H, the number of units.
        kernel_init: initializer of each gate's input kernel.
        recurrent_init: initializer of each gate's recurrent kernel, and of the projection.
        bias_init: initializer of the bias.
        use_bias: whether there is a bias.
        dtype: the dtype of the computation and of y. None: the promoted dtype of input and parameters.
        param_dtype: the dtype of the parameters.
        carry_dtype: the dtype of the initial carry. None: the input's. Float32 keeps c exact in a bfloat16 computation.
        forget_bias: added by `init` to the forget gate's bias. Nothing is added at run time, so weights convert to and
            from other libraries unchanged. Unused without a bias.
        activation: for g and c', a name of `rnnscan.cells.activations` or a function.
        gate_activation: for i, f and o. "hard_sigmoid" has the slope of DL4J and ONNX.
        peepholes: whether the gates read the cell state, elementwise.
        peephole_init: initializer of the peepholes.
        coupled_gates: whether i = 1 - f.
        proj_size: P, the size of h and y. None: H, without a projection.
        cell_clip: the largest magnitude of c'. None: no limit.

    Raises:
        ValueError: if a size or a name is invalid, or an argument of a step does not fit the parameters.
        TypeError: if a dtype is not floating, or the carry is not a tuple of floating arrays.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from rnnscan import cells
        >>> cell = cells.LSTM(4)
        >>> x = jnp.ones((2, 3))
        >>> (hidden, state), y = cell(cell.init(jax.random.key(0), input_size=3), cell.initial_carry(x), x)
        >>> hidden.shape, state.shape, y.shape
        ((2, 4), (2, 4), (2, 4))

    Source: Hochreiter and Schmidhuber 1997, "Long Short-Term Memory"; forget gates: Gers et al. 2000, "Learning to
    Forget: Continual Prediction with LSTM"; peepholes: Gers and Schmidhuber 2000, "Recurrent Nets that Time and Count";
    projection: Sak et al. 2014, "Long Short-Term Memory Based Recurrent Neural Network Architectures for Large
    Vocabulary Speech Recognition"; forget_bias: Jozefowicz et al. 2015, "An Empirical Exploration of Recurrent Network
    Architectures"; coupled gates: Greff et al. 2015, "LSTM: A Search Space Odyssey". `torch.nn.LSTM` has two biases;
    here they are one.
    """

    parameter_options: ClassVar[tuple[str, ...]] = ("peepholes", "coupled_gates", "use_bias")

    _: KW_ONLY
    peepholes: bool = False
    peephole_init: Initializer = initializers.zeros
    coupled_gates: bool = False
    proj_size: int | None = None
    cell_clip: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.proj_size is not None:
            checks.check_size("LSTM", "proj_size", self.proj_size)
        if self.cell_clip is not None and not self.cell_clip > 0:
            raise ValueError(f"LSTM: `cell_clip` must be a number above 0, or None; got {self.cell_clip!r}.")

    @property
    def blocks(self) -> int:
        """The number of gates with weights."""
        return 3 if self.coupled_gates else 4

    @property
    def _forget_block(self) -> slice:
        first = 0 if self.coupled_gates else self.hidden_size
        return slice(first, first + self.hidden_size)

    @property
    def output_size(self) -> int:
        """The size of y's last axis: P with a projection, otherwise H."""
        return self.hidden_size if self.proj_size is None else self.proj_size

    def _make(self, key: Array, input_size: int) -> Params:
        params = self._add_forget_bias(super()._make(key, input_size))
        units = self.hidden_size
        peephole_key, projection_key = jax.random.split(jax.random.fold_in(key, 1))
        if self.peepholes:
            params["peepholes"] = self.peephole_init(peephole_key, (units * (self.blocks - 1),), self.param_dtype)
        if self.proj_size is not None:
            params["projection_kernel"] = self.recurrent_init(projection_key, (units, self.proj_size), self.param_dtype)
        return params

    def __call__(
        self, params: Params, carry: Carry, x: Num[Array, "*batch features"], *, recurrent_mask: Array | None = None
    ) -> tuple[Carry, Float[Array, "*batch hidden"]]:
        """One step: `(params, carry, x) -> (carry, y)`."""
        weights, (hidden, _), x = self._enter(params, carry, x, recurrent_mask)
        projected = project(x, weights["kernel"]) + project(hidden, weights["recurrent_kernel"])
        gates = name(with_bias(projected, weights).astype(x.dtype), "gates")
        # The cell state accumulates over the whole sequence, so it is updated in its own dtype, not in the gates'.
        state, output_gate = self._update_state(gates, weights.get("peepholes"), carry[1])
        hidden = output_gate * activate(self.activation, state)
        if self.proj_size is not None:
            hidden = project(hidden.astype(x.dtype), weights["projection_kernel"])
        return (hidden.astype(carry[0].dtype), state), hidden.astype(x.dtype)

    def _update_state(self, gates: Array, peepholes: Array | None, state: Array) -> tuple[Array, Array]:
        """The new state, and the output gate."""
        *input_gate, forget_gate, candidate, output_gate = jnp.split(gates, self.blocks, axis=-1)
        diagonals: list[Array | None] = [None] * (self.blocks - 1)
        if peepholes is not None:
            diagonals = [*jnp.split(peepholes, self.blocks - 1)]
        *input_peephole, forget_peephole, output_peephole = diagonals
        forget = self._gate(forget_gate, forget_peephole, state)
        write = 1 - forget if self.coupled_gates else self._gate(input_gate[0], input_peephole[0], state)
        new_state = forget * state + write * activate(self.activation, candidate)
        if self.cell_clip is not None:
            new_state = jnp.clip(new_state, -self.cell_clip, self.cell_clip)
        new_state = new_state.astype(state.dtype)
        return new_state, self._gate(output_gate, output_peephole, new_state)

    def _gate(self, gate: Array, peephole: Array | None, state: Array) -> Array:
        preactivation = gate if peephole is None else gate + (peephole * state).astype(gate.dtype)
        return activate(self.gate_activation, preactivation)

    def _shapes(self) -> dict[str, tuple[Any, ...]]:
        shapes = super()._shapes()
        if self.peepholes:
            shapes["peepholes"] = (self.hidden_size * (self.blocks - 1),)
        if self.proj_size is not None:
            shapes["projection_kernel"] = (self.hidden_size, self.proj_size)
        return shapes

    def _carry_shapes(self, x: Array) -> tuple[tuple[Any, ...], ...]:
        return (*x.shape[:-1], self.output_size), (*x.shape[:-1], self.hidden_size)
