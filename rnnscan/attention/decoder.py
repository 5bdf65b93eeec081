"""decoder(): a cell with attention over an encoder's outputs."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Integer

from rnnscan._util import pytrees
from rnnscan._util.arguments import check_key, check_step_input
from rnnscan._util.messages import describe, describe_shape, listing
from rnnscan._util.zeros import zeros_sharded_like
from rnnscan.attention.encoder import batch_first, check_encoder, valid_by_row
from rnnscan.attention.mechanism import Mechanism
from rnnscan.compose.output import extras_of, output_of
from rnnscan.paths import part as path_part
from rnnscan.protocols import Cell, ComposableCell, check_cell
from rnnscan.randomness import RandomStep, with_key


@dataclass(frozen=True)
class Decoder:
    """The configuration of a cell with attention. Made by `decoder`; `over` makes a cell from it."""

    cell: ComposableCell
    attention: Mechanism

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the inner cell's intermediates, and "attention"."""
        return tuple(dict.fromkeys((*self.cell.names, *self.attention.names)))

    @property
    def output_size(self) -> int:
        """The size of the output's last axis: the inner cell's plus the context's."""
        return self.cell.output_size + self.attention.context_size

    def init(self, key: Array, input_size: int) -> dict[str, Any]:
        """Make parameters: `{"cell": ..., "attention": ...}`. The cell's are for the concatenated input and context."""
        check_key("decoder", key)
        cell_key, attention_key = jax.random.split(key)
        return {
            "cell": self.cell.init(cell_key, input_size + self.attention.context_size),
            "attention": self.attention.init(attention_key, self.cell.output_size),
        }

    def over(
        self,
        params: dict[str, Any],
        encoder_outputs: Float[Array, "length *batch features"],
        *,
        encoder_lengths: Integer[Array, "*batch"] | None = None,
        keys: Float[Array, "length *batch keys"] | None = None,
    ) -> "AttentionCell":
        """Make the cell that attends to an encoder's outputs.

        Keys and other functions of the encoder's outputs are computed here, once instead of at every step.

        Args:
            params: the parameters that `init` made.
            encoder_outputs: `(L, N, E)`, time-major.
            encoder_lengths: `(N,)` integers. Step l of row n is valid if `l < encoder_lengths[n]`. None: all are valid.
                A row of length 0 has weights and a context of zeros. Padding values, even NaN, affect neither values
                nor gradients.
            keys: `(L, N, K)`, time-major, to use instead of keys projected from the encoder's outputs. K is the
                mechanism's `key_size`.

        Returns:
            A cell over the decoder's inputs, for `params`.

        Raises:
            ValueError: if shapes do not fit each other, the parameters or the mechanism, or the mechanism needs `keys`.
            TypeError: if encoder outputs or keys are not floating, or lengths are not integers.
        """
        self.check_params(params)
        check_encoder(self.attention, encoder_outputs, encoder_lengths, keys)
        valid = None if encoder_lengths is None else valid_by_row(encoder_lengths, len(encoder_outputs))
        values = batch_first(encoder_outputs, valid)
        supplied = None if keys is None else batch_first(keys, valid)
        return AttentionCell(self, self.attention.encode(params["attention"], values, supplied), valid)

    def check_params(self, params: Any) -> None:
        """Check the parameters of the cell and of its attention."""
        if not isinstance(params, Mapping) or sorted(params) != ["attention", "cell"]:
            got = listing(params) if isinstance(params, Mapping) else describe(params)
            raise ValueError(
                f"attention.decoder: the parameters must be a dictionary of 'cell' and 'attention'; got {got}. "
                "Make them with decoder.init(key, input_size)."
            )
        self.attention.check_params(params["attention"], self.cell.output_size)


pytrees.register(Decoder, "cell")


@partial(jax.tree_util.register_dataclass, data_fields=["encoded", "valid"], meta_fields=["decoder"])
@dataclass(frozen=True, repr=False, eq=False)
class AttentionCell:
    """A cell that attends to an encoder's outputs. Made by `Decoder.over`.

    It is a pytree, whose leaves are the encoded outputs and their mask, so it can be an argument under `jax.jit`.

    Attributes:
        decoder: the configuration.
        encoded: arrays `(N, L, ...)` that the mechanism computed from the encoder's outputs.
        valid: the boolean mask of the encoder's valid steps, `(N, L)`. None: all are valid.
    """

    decoder: Decoder
    # Not annotated as arrays, because JAX rebuilds pytrees with placeholder leaves.
    encoded: Any
    valid: Any

    def __repr__(self) -> str:
        """The configuration, and the type of the encoded values."""
        return f"AttentionCell({self.decoder}, values={describe(self.encoded['values'])})"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the inner cell's intermediates, and "attention"."""
        return self.decoder.names

    @property
    def output_size(self) -> int:
        """The size of the output's last axis: the inner cell's plus the context's."""
        return self.decoder.output_size

    def init(self, key: Array, input_size: int) -> dict[str, Any]:
        """Make parameters of the decoder. The keys in this cell still belong to the parameters given to `over`."""
        return self.decoder.init(key, input_size)

    def initial_carry(self, x: Array) -> tuple[Any, ...]:
        """The inner cell's carry, a context of zeros, and the mechanism's state, typed like one step's input."""
        check_step_input("decoder", x)
        context = self._initial_context(x)
        inputs = _concatenate(x, context)
        state = self.decoder.attention.initial_state(inputs, self._shape[-1])
        return (self.decoder.cell.initial_carry(inputs), context, *state)

    def __call__(self, params: dict[str, Any], carry: tuple[Any, ...], x: Array) -> tuple[tuple[Any, ...], Any]:
        """One step: `(params, carry, x) -> (carry, (output, weights, *extras of the inner cell))`."""
        return self._step(self.decoder.cell, params, carry, x)

    def with_key(self, key: Array, params: dict[str, Any], x: Array) -> RandomStep:
        """Bind the key to the inner cell."""
        inner = with_key(self.decoder.cell, key, params["cell"], _concatenate(x, self._initial_context(x)))

        def step(params: Any, carry: Any, scanned: tuple[Any, Any]) -> tuple[Any, Any]:
            x, index = scanned
            return self._step(lambda params, carry, inputs: inner(params, carry, (inputs, index)), params, carry, x)

        return step

    def _step(
        self, cell: Cell, params: dict[str, Any], carry: tuple[Any, ...], x: Array
    ) -> tuple[tuple[Any, ...], tuple[Array, ...]]:
        self.decoder.check_params(params)
        self._check(carry, x)
        inner_carry, context, *state = carry
        with path_part("cell"):
            new_inner, y = cell(params["cell"], inner_carry, _concatenate(x, context))
        hidden = output_of(y)
        new_context, new_state, weights = self.decoder.attention.attend(
            params["attention"], self.encoded, self.valid, hidden, context, tuple(state)
        )
        attended = [new.astype(old.dtype) for new, old in zip((new_context, *new_state), carry[1:], strict=True)]
        output = jnp.concatenate([hidden, new_context.astype(hidden.dtype)], axis=-1)
        return (new_inner, *attended), (output, weights.astype(hidden.dtype), *extras_of(y))

    @property
    def _shape(self) -> tuple[Any, ...]:
        """The batch size and the encoder's length: `(N, L)`."""
        return self.encoded["values"].shape[:-1]

    def _initial_context(self, x: Array) -> Array:
        floating = jnp.issubdtype(x.dtype, jnp.floating)
        dtype = x.dtype if floating else self.encoded["values"].dtype
        return zeros_sharded_like(x, (*x.shape[:-1], self.decoder.attention.context_size), dtype)

    def _check(self, carry: Any, x: Array) -> None:
        batch, length = self._shape[:-1], self._shape[-1]
        if x.shape[:-1] != batch:
            raise ValueError(
                f"attention.decoder: one step's input must be {describe_shape((*batch, 'D'))}, with the batch of the "
                f"encoder's outputs; got {describe(x)}. Both are time-major: (T, N, D) and (L, N, E)."
            )
        states = self.decoder.attention.state_names
        if not isinstance(carry, tuple) or len(carry) != 2 + len(states):
            parts = ", ".join(("the inner cell's carry", "context", *states))
            raise TypeError(
                f"attention.decoder: the carry must be the tuple of {parts}; got {jax.tree.structure(carry)}. "
                "Start from cell.initial_carry(x)."
            )
        sizes = self.decoder.attention.context_size, *[length] * len(states)
        for part, size, leaf in zip(("context", *states), sizes, carry[1:], strict=True):
            if jnp.shape(leaf) != (*batch, size) or not jnp.issubdtype(leaf.dtype, jnp.floating):
                raise ValueError(
                    f"attention.decoder: {part} in the carry must be floating, {describe_shape((*batch, size))}; got "
                    f"{describe(leaf)}. Batch, hidden size or the encoder's length may differ: start from "
                    "cell.initial_carry(x)."
                )


def decoder(cell: ComposableCell, attention: Mechanism) -> Decoder:
    """Add attention over an encoder's outputs to a cell.

        h_t = cell([x_t; context_{t-1}])          one step of the cell
        context_t, a_t = attention(h_t)           weights a_t over the encoder's steps, for the query h_t
        y_t = [h_t; context_t], a_t

    As in Caffe2, the cell steps first, and its output is the query. Caffe2 concatenates the context with the hidden
    state, and rnnscan with the input. The results are equal: the weights of the context are rows of the kernel instead
    of the recurrent kernel.

    Carry: the tuple `(inner carry, context)`, with the context `(N, C)` initially zero. `attention.Coverage` adds
    `coverage` `(N, L)`. `rnnscan.scan` with `seq_lengths` holds all of them in padding.
    Output: the pair of `(N, H + C)` and the weights `(N, L)`, or `(N, heads, L)`.

    The cell that `over` makes composes like any other. `dropout`, `residual`, `windowed`, `bidirectional`, and the next
    layer of a `stack` or `chain`, take the `(N, H + C)` output and leave the weights unchanged. A stack or chain with
    another layer on top returns only that layer's y. Put `zoneout` around the inner cell. In a composition, give `over`
    the decoder's own parameters, such as `params["layer_0"]`, because it projects the keys with them.

    Args:
        cell: a cell over features, such as one of `rnnscan.cells`, a stack, a cell with dropout or zoneout, or the cell
            of another decoder. Its y is the query. Dropout of its input also drops units of the context.
        attention: an `Additive`, `RecurrentAdditive`, `Dot`, `Coverage` or `MultiHead`.

    Returns:
        A configuration. `init(key, input_size)` makes parameters, and `over(params, encoder_outputs)` makes a cell.

    Raises:
        TypeError: if `cell` is not a cell, or `attention` is not a mechanism.
        ValueError: if the mechanism does not support the size of the cell's output.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import rnnscan as rs
        >>> from rnnscan import attention
        >>> decoder = attention.decoder(rs.cells.LSTM(4), attention.Additive(encoder_size=6, attention_size=5))
        >>> params = decoder.init(jax.random.key(0), input_size=3)
        >>> encoder_outputs, xs = jnp.ones((7, 2, 6)), jnp.ones((9, 2, 3))
        >>> cell = decoder.over(params, encoder_outputs, encoder_lengths=jnp.array([7, 5]))
        >>> memory = rs.Memory(recompute=("attention",))
        >>> carry, (ys, weights) = rs.scan(cell, params, cell.initial_carry(xs[0]), xs, memory=memory)
        >>> ys.shape, weights.shape
        ((9, 2, 10), (9, 2, 7))

    Source: Bahdanau et al. 2014, "Neural Machine Translation by Jointly Learning to Align and Translate". The order of
    computation is that of Luong et al. 2015, "Effective Approaches to Attention-based Neural Machine Translation",
    section 3, but the input feeding passes on the context instead of the attentional state, as in Caffe2's
    `AttentionCell`.
    """
    check_cell("attention.decoder", cell)
    if not isinstance(attention, Mechanism):
        raise TypeError(
            "attention.decoder: `attention` must be a mechanism, such as attention.Additive(encoder_size, "
            f"attention_size); got {attention!r}. The cell comes first: decoder(cell, attention)."
        )
    attention.check_query_size(cell.output_size)
    return Decoder(cell, attention)


def _concatenate(x: Array, context: Array) -> Array:
    dtype = x.dtype if jnp.issubdtype(x.dtype, jnp.floating) else context.dtype
    return jnp.concatenate([x.astype(dtype), context.astype(dtype)], axis=-1)
