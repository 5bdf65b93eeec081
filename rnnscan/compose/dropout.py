"""Dropout: of outputs, of inputs, of what the recurrent product reads, and of weights."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array

from rnnscan._messages import listing, nearest
from rnnscan.compose.output import output_of, with_output
from rnnscan.compose.random import RandomStep, drop, with_key
from rnnscan.compose.wrapper import Wrapper, check_rate
from rnnscan.naming import unnamed
from rnnscan.protocols import ComposableCell, check_cell


Site = Literal["output", "input", "recurrent"]
Draw = Literal["step", "sequence"]


@dataclass(frozen=True)
class Dropout(Wrapper):
    """A cell of which something is dropped in training. Made by `dropout`."""

    rate: float
    on: Site = "output"
    each: Draw = "step"

    @property
    def output_part(self) -> int | None:
        """The part of the new carry that y is; none where y is dropped."""
        return None if self.on == "output" else super().output_part

    def __call__(self, params: Any, carry: Any, x: Any) -> tuple[Any, Any]:
        """One step without dropout: `(params, carry, x) -> (carry, y)`."""
        return self.cell(params, carry, x)

    def with_key(self, key: Array, params: Any, x: Any) -> RandomStep:
        """The step that drops, with the mask of each step or one for all of them."""
        own_key, inner_key = jax.random.split(key)
        inner: Any = self.cell if self.on == "recurrent" else with_key(self.cell, inner_key, params, x)
        mask = self._mask(own_key, self._dropped_shape(params, x))

        def step(params: Any, carry: Any, scanned: tuple[Any, Any]) -> tuple[Any, Any]:
            x, index = scanned
            if self.on == "recurrent":
                return inner(params, carry, x, recurrent_mask=drop(jnp.ones((), x.dtype), mask(index), self.rate))
            if self.on == "input":
                return inner(params, carry, (drop(x, mask(index), self.rate), index))
            carry, y = inner(params, carry, scanned)
            return carry, with_output(y, drop(output_of(y), mask(index), self.rate))

        return step

    def _mask(self, key: Array, shape: tuple[Any, ...]) -> Callable[[Any], Array]:
        """What is kept at a step."""
        if self.each == "sequence":
            kept = jax.random.bernoulli(key, 1 - self.rate, shape)
            return lambda index: kept
        return lambda index: jax.random.bernoulli(jax.random.fold_in(key, index), 1 - self.rate, shape)

    def _dropped_shape(self, params: Any, x: Any) -> tuple[Any, ...]:
        if self.on == "input":
            return x.shape
        carry = jax.eval_shape(self.cell.initial_carry, x)
        if self.on == "recurrent":
            return carry[0].shape
        # Where this is asked for within a step, what is traced for its shape alone has no names for it.
        with unnamed():
            return output_of(jax.eval_shape(self.cell, params, carry, x)[1]).shape


def dropout(cell: ComposableCell, rate: float, *, on: Site = "output", each: Draw = "step") -> Dropout:
    """Drop units of a cell in training: each is zero with probability `rate`, the others are scaled by 1 / (1 - rate).

    The choice is independent over rows and units, and over steps or not:

    | `on` | `each` | known as |
    | --- | --- | --- |
    | "output" | "step" | dropout between layers (torch, Zaremba et al. 2014); it never enters the recurrent path |
    | "input" | "step" | dropout of a layer's input (DL4J) |
    | "input" or "output" | "sequence" | variational dropout; Keras' `dropout=` is "input" |
    | "recurrent" | "sequence" | variational dropout of the state; Keras' `recurrent_dropout=` |
    | "recurrent" | "step" | as in Semeniuta et al. 2016, of the state that the product reads |

    "recurrent" drops h where the recurrent product reads it, and not where it is handed on, so a GRU's state does not
    fade. It is done in the cell, so it goes directly around a cell of `rnnscan.cells` that has such a product.

    Args:
        cell: a cell.
        rate: the probability, at least 0 and below 1.
        on: what is dropped.
        each: "step" for a mask of its own at each step, "sequence" for one mask.

    Where y is a tuple, as an attention decoder's, "output" drops units of its first value: the weights stay whole.

    Returns:
        A cell, with the parameters and the carry of the inner one. It evaluates without dropout; in training it gets a
        key from the net it is in, or from `with_key`.

    Raises:
        ValueError: if the rate is no probability below 1, or `on` or `each` is not known.
        TypeError: if it is no cell, or has no recurrent product of which something could be dropped.

    Example:
        >>> import rnnscan as rs
        >>> cell = rs.dropout(rs.dropout(rs.cells.LSTM(8), 0.2, on="recurrent", each="sequence"), 0.1)

    Source: Srivastava et al. 2014, "Dropout"; Zaremba et al. 2014, "Recurrent Neural Network Regularization"; Gal and
    Ghahramani 2015, "A Theoretically Grounded Application of Dropout in Recurrent Neural Networks".
    """
    check_cell("dropout", cell)
    check_rate("dropout", "rate", rate)
    for argument, value, known in (("on", on, get_args(Site)), ("each", each, get_args(Draw))):
        if value not in known:
            raise ValueError(
                f"dropout: `{argument}` must be one of {known}; got {value!r}.{nearest(str(value), known)}"
            )
    if on == "recurrent" and not getattr(cell, "takes_recurrent_mask", False):
        raise TypeError(
            f"dropout: on='recurrent' needs a cell with a recurrent product, directly inside; got {cell!r}. "
            "Other dropout goes around this one; for cells of your own, mask the state where the product reads it."
        )
    return Dropout(cell, rate, on, each)


def drop_weights(params: Any, key: Array, rate: float, *, names: Sequence[str] = ("recurrent_kernel",)) -> Any:
    """Drop single weights: each is zero with probability `rate`, and the others are scaled by 1 / (1 - rate).

    One choice for all steps and rows: call it once for a training step, on the parameters of a cell or of a net, and
    run these with what it returns. Gradients reach the parameters that were given.

    Args:
        params: a pytree of parameters.
        key: a PRNG key; each array derives its own from it.
        rate: the probability, at least 0 and below 1.
        names: the names of the parameters to drop from, wherever they are in the pytree.

    Returns:
        Parameters like those given.

    Raises:
        ValueError: if the rate is no probability below 1, or a name is not there.

    Example:
        >>> import jax
        >>> import rnnscan as rs
        >>> params = rs.cells.LSTM(8).init(jax.random.key(0), input_size=3)
        >>> dropped = rs.drop_weights(params, jax.random.key(1), rate=0.5)
        >>> bool((dropped["recurrent_kernel"] == 0).any()), bool((dropped["kernel"] == 0).any())
        (True, False)

    Source: Wan et al. 2013, "Regularization of Neural Networks using DropConnect"; on recurrent kernels Merity et al.
    2017, "Regularizing and Optimizing LSTM Language Models", section 2.
    """
    check_rate("drop_weights", "rate", rate)
    places = jax.tree_util.tree_flatten_with_path(params)[0]
    known = list(dict.fromkeys(_name(path) for path, _ in places))
    for name in names:
        if name not in known:
            raise ValueError(
                f"drop_weights: `names` must be names of parameters; got {name!r}, and there are {listing(known)}."
                f"{nearest(name, known)}"
            )
    leaves = [
        drop(leaf, jax.random.bernoulli(jax.random.fold_in(key, number), 1 - rate, leaf.shape), rate)
        if _name(path) in names
        else leaf
        for number, (path, leaf) in enumerate(places)
    ]
    return jax.tree.unflatten(jax.tree.structure(params), leaves)


def _name(path: Any) -> str:
    return str(getattr(path[-1], "key", path[-1])) if path else ""
