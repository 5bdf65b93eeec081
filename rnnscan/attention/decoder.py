"""decoder(): any cell, with attention over an encoder's outputs."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Integer

from rnnscan import _pytrees as pytrees
from rnnscan._messages import describe, describe_shape, listing
from rnnscan._zeros import zeros_beside
from rnnscan.attention.encoder import batch_first, check_encoder, valid_by_row
from rnnscan.attention.mechanism import Mechanism
from rnnscan.compose.output import extras_of, output_of
from rnnscan.compose.random import RandomStep, with_key
from rnnscan.protocols import Cell, ComposableCell, check_cell


@dataclass(frozen=True)
class Decoder:
    """A cell and its attention: configuration only. Made by `decoder`; `over` makes a cell of it."""

    cell: ComposableCell
    attention: Mechanism

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the inner cell's intermediates, and "attention"."""
        return tuple(dict.fromkeys((*self.cell.names, *self.attention.names)))

    @property
    def output_size(self) -> int:
        """The size of the output's last axis: the inner cell's, and the context's."""
        return self.cell.output_size + self.attention.context_size

    def init(self, key: Array, input_size: int) -> dict[str, Any]:
        """Make parameters: `{"cell": ..., "attention": ...}`, the cell's for the input and the context side by side."""
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
        """The cell that attends to an encoder's outputs.

        What is made of them alone, such as the keys, is made here, once, and not at every step.

        Args:
            params: the parameters that `init` made.
            encoder_outputs: `(L, N, E)`, time-major.
            encoder_lengths: `(N,)` integers: step l of row n is valid where `l < encoder_lengths[n]`; None: all are. 0
                is allowed: such a row has weights and a context of zeros. What the padding holds, NaN included, reaches
                neither values nor gradients.
            keys: `(L, N, K)`, time-major, in place of those that are projected from the encoder's outputs, K being the
                mechanism's `key_size`.

        Returns:
            A cell over the decoder's inputs, for `params`.

        Raises:
            ValueError: if shapes do not fit each other, the parameters or the mechanism, or keys are to be supplied and
                are not.
            TypeError: if encoder outputs or keys are not floating, or lengths no integers.
        """
        self.check_params(params)
        check_encoder(self.attention, encoder_outputs, encoder_lengths, keys)
        valid = None if encoder_lengths is None else valid_by_row(encoder_lengths, len(encoder_outputs))
        values = batch_first(encoder_outputs, valid)
        supplied = None if keys is None else batch_first(keys, valid)
        return AttentionCell(self, self.attention.encode(params["attention"], values, supplied), valid)

    def check_params(self, params: Any) -> None:
        """Refuse what are no parameters of a cell and of its attention."""
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

    It is a pytree of what was made of the encoder's outputs, so it can be an argument of a function under `jax.jit`.

    Attributes:
        decoder: the configuration.
        encoded: arrays `(N, L, ...)` that the mechanism made of the encoder's outputs.
        valid: `(N, L)` booleans, true where the encoder's steps are valid; None: everywhere.
    """

    decoder: Decoder
    # Not annotated as arrays: JAX puts other things in their place while it handles pytrees.
    encoded: Any
    valid: Any

    def __repr__(self) -> str:
        """The configuration, and the types of what it attends to."""
        return f"AttentionCell({self.decoder}, values={describe(self.encoded['values'])})"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the inner cell's intermediates, and "attention"."""
        return self.decoder.names

    @property
    def output_size(self) -> int:
        """The size of the output's last axis: the inner cell's, and the context's."""
        return self.decoder.output_size

    def init(self, key: Array, input_size: int) -> dict[str, Any]:
        """Make parameters: those of the decoder. The keys that this cell holds stay those of the parameters before."""
        return self.decoder.init(key, input_size)

    def initial_carry(self, x: Array) -> tuple[Any, ...]:
        """The inner cell's carry, a context of zeros, and what the mechanism carries; typed like one step's input."""
        context = self._initial_context(x)
        seen = _side_by_side(x, context)
        state = self.decoder.attention.initial_state(seen, self._shape[-1])
        return (self.decoder.cell.initial_carry(seen), context, *state)

    def __call__(self, params: dict[str, Any], carry: tuple[Any, ...], x: Array) -> tuple[tuple[Any, ...], Any]:
        """One step: `(params, carry, x) -> (carry, (output, weights))`, and after these what the inner cell adds."""
        return self._step(self.decoder.cell, params, carry, x)

    def with_key(self, key: Array, params: dict[str, Any], x: Array) -> RandomStep:
        """The inner cell's random choices; attention makes none."""
        seen = _side_by_side(x, self._initial_context(x))
        inner = with_key(self.decoder.cell, key, params["cell"], seen)

        def step(params: Any, carry: Any, scanned: tuple[Any, Any]) -> tuple[Any, Any]:
            x, index = scanned
            return self._step(lambda params, carry, seen: inner(params, carry, (seen, index)), params, carry, x)

        return step

    def _step(
        self, cell: Cell, params: dict[str, Any], carry: tuple[Any, ...], x: Array
    ) -> tuple[tuple[Any, ...], tuple[Array, ...]]:
        self.decoder.check_params(params)
        self._check(carry, x)
        inner_carry, context, *state = carry
        new_inner, y = cell(params["cell"], inner_carry, _side_by_side(x, context))
        hidden = output_of(y)
        new_context, new_state, weights = self.decoder.attention.attend(
            params["attention"], self.encoded, self.valid, hidden, context, tuple(state)
        )
        attended = [new.astype(old.dtype) for new, old in zip((new_context, *new_state), carry[1:], strict=True)]
        output = jnp.concatenate([hidden, new_context.astype(hidden.dtype)], axis=-1)
        return (new_inner, *attended), (output, weights.astype(hidden.dtype), *extras_of(y))

    @property
    def _shape(self) -> tuple[Any, ...]:
        """The batch and the number of the encoder's steps: `(N, L)`."""
        return self.encoded["values"].shape[:-1]

    def _initial_context(self, x: Array) -> Array:
        floating = jnp.issubdtype(x.dtype, jnp.floating)
        dtype = x.dtype if floating else self.encoded["values"].dtype
        return zeros_beside(x, (*x.shape[:-1], self.decoder.attention.context_size), dtype)

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
                    f"{describe(leaf)}. A carry of another batch or hidden size does not fit, nor one of another "
                    "encoder's length: start from cell.initial_carry(x)."
                )


def decoder(cell: ComposableCell, attention: Mechanism) -> Decoder:
    """Put attention over an encoder's outputs around a cell.

        h_t = cell([x_t; context_{t-1}])          one step of the cell, which makes its new carry
        context_t, a_t = attention(h_t)           weights a_t over the encoder's steps, with the query h_t
        y_t = [h_t; context_t], a_t

    This is Caffe2's order of computation: the cell steps first, and what it has made is the query. Caffe2 joins the
    context to the state that an LSTM's recurrent product reads, and here it is joined to the input: that is the same
    sum of products, with the context's weights being rows of the kernel in place of the recurrent kernel.

    Carry: the tuple `(the inner cell's carry, context)`, context `(N, C)` zeros at the beginning; with
    `attention.Coverage` `coverage` `(N, L)` too. `rnnscan.scan` with `seq_lengths` freezes all of them in padding.
    Output: the pair of `(N, H + C)` and the weights `(N, L)`, or `(N, heads, L)`.

    The cell that `over` makes composes like any other. `dropout`, `residual`, `windowed`, `bidirectional`, and the next
    layer of a `stack` or `chain`, take the `(N, H + C)` output and leave the weights unchanged. A stack or chain with
    another layer on top returns that layer's y alone. `zoneout` goes around the inner cell. `over` projects keys,
    so give it the decoder's own part of the composition's parameters, such as `params["layer_0"]`.

    Args:
        cell: a cell over features: one of `rnnscan.cells`, a stack, one with dropout or zoneout, another decoder's. Its
            y is the query. Dropout of its input drops units of the context too.
        attention: an `Additive`, `RecurrentAdditive`, `Dot`, `Coverage` or `MultiHead`.

    Returns:
        A configuration. `init(key, input_size)` makes parameters, and `over(params, encoder_outputs)` a cell.

    Raises:
        TypeError: if it is no cell, or no mechanism.
        ValueError: if the cell's output cannot be the mechanism's query.

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

    Source: Bahdanau et al. 2014, "Neural Machine Translation by Jointly Learning to Align and Translate"; the order of
    computation is that of Luong et al. 2015, "Effective Approaches to Attention-based Neural Machine Translation",
    section 3, with their input feeding of the context in place of their attentional state; Caffe2's `AttentionCell`.
    """
    check_cell("attention.decoder", cell)
    if not isinstance(attention, Mechanism):
        raise TypeError(
            "attention.decoder: `attention` must be a mechanism, such as attention.Additive(encoder_size, "
            f"attention_size); got {attention!r}. The cell comes first: decoder(cell, attention)."
        )
    attention.check_query_size(cell.output_size)
    return Decoder(cell, attention)


def _side_by_side(x: Array, context: Array) -> Array:
    dtype = x.dtype if jnp.issubdtype(x.dtype, jnp.floating) else context.dtype
    return jnp.concatenate([x.astype(dtype), context.astype(dtype)], axis=-1)
