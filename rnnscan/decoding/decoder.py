"""decoder(): a decoder of tokens, made of a cell or net over features."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from jaxtyping import Array, Int

from rnnscan._util import pytrees
from rnnscan._util.messages import describe, listing
from rnnscan._util.ranks import over_rows
from rnnscan.compose.output import extras_of, output_of
from rnnscan.nets.base import Net
from rnnscan.nets.pieces import check_runs_in_pieces
from rnnscan.protocols import Cell, check_cell


@dataclass(frozen=True)
class CellDecoder:
    """A cell or net between an embedding and logits. Made by `decoder`.

    It is a pytree with the leaves of its cell, such as the encoder's outputs in an attention cell, so it can be an
    argument under `jax.jit`.
    """

    cell: Any
    embed: Callable[[Any, Any], Any] | None = None
    project: Callable[[Any, Any], Any] | None = None
    has_aux: bool = False

    def __call__(self, params: Mapping[str, Any], carry: Any, token: Int[Array, " rows"]) -> tuple[Any, Any]:
        """One step: `(params, carry, token) -> (carry, logits)`, or `(carry, (logits, aux))`."""
        self._check(params)
        x = params["embed"][token] if self.embed is None else self.embed(params, token)
        if isinstance(self.cell, Net):
            carry, y = self.cell.step(params["cell"], x, carry=carry)
        else:
            carry, y = self.cell(params["cell"], carry, x)
        output = output_of(y)
        logits = _dense(params["project"], output) if self.project is None else self.project(params, output)
        return carry, (logits, self._aux(y)) if self.has_aux else logits

    def _aux(self, y: Any) -> Any:
        extras = extras_of(y)
        if not extras:
            raise TypeError(
                f"decoding.decoder: has_aux=True needs a cell whose y is a tuple, (output, weights); got {describe(y)}"
                ". Leave out `has_aux`, or decode an attention decoder's cell."
            )
        return extras[0] if len(extras) == 1 else extras

    def _check(self, params: Any) -> None:
        needed = ["cell"]
        needed += ["embed"] if self.embed is None else []
        needed += ["project"] if self.project is None else []
        if not isinstance(params, Mapping) or not params.keys() >= set(needed):
            got = listing(params) if isinstance(params, Mapping) else describe(params)
            raise ValueError(
                f"decoding.decoder: the parameters must be a dictionary with {listing(needed)}; got {got}. 'cell' has "
                "the cell's or net's parameters, 'embed' a table (V, E), 'project' a 'kernel' (P, V) and a 'bias'."
            )


pytrees.register(CellDecoder, "cell")


def decoder(
    cell: Cell | Net,
    *,
    embed: Callable[[Any, Any], Any] | None = None,
    project: Callable[[Any, Any], Any] | None = None,
    has_aux: bool = False,
) -> CellDecoder:
    """Make a decoder for `decode` of a cell or net over features.

        x_t = embed(params, y_{t-1})
        carry, h_t = cell(params["cell"], carry, x_t)
        logits_t = project(params, h_t)

    A plain function `decoder(params, carry, token) -> (carry, logits)` does as well.

    Args:
        cell: a cell, such as a stack or the cell of an attention decoder, or a net that runs in pieces. If its y is a
            tuple, the first value is h.
        embed: `embed(params, tokens) -> x`, from int32 `(N,)` to `(N, E)`. None: the rows of the table
            `params["embed"]`, `(V, E)`.
        project: `project(params, h) -> logits`, from `(N, P)` to `(N, V)`. None: a dense layer, with
            `params["project"]["kernel"]` `(P, V)` and an optional `"bias"` `(V,)`.
        has_aux: whether to return the other values of y as aux, such as attention weights. Give `decode` the same.

    Returns:
        A decoder. Its parameters are a dictionary with `"cell"`, and `"embed"` and `"project"` where these are not
        functions. Its carry is that of the cell or net.

    Raises:
        TypeError: if `cell` is not a cell or a net, or `embed` or `project` not a function.
        ValueError: if a net does not run in pieces.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import rnnscan as rs
        >>> model = rs.train.LanguageModel(hidden=8, layers=4, embedding=4)
        >>> params = model.init(jax.random.key(0))
        >>> params = {"embed": params["embedding"], "cell": params["cells"], "project": params["head"]}
        >>> decoder = rs.decoding.decoder(model.cells)
        >>> decoded = rs.decode(decoder, params, model.initial_carry(2), start=10, end=None, max_steps=5)
        >>> decoded.tokens.shape
        (5, 2)
    """
    if isinstance(cell, Net):
        check_runs_in_pieces("decoding.decoder", cell)
    else:
        check_cell("decoding.decoder", cell, Cell)
    for argument, function in (("embed", embed), ("project", project)):
        if function is not None and not callable(function):
            raise TypeError(
                f"decoding.decoder: `{argument}` must be a function of parameters and values, or None; got "
                f"{describe(function)}. Put arrays into the parameters."
            )
    return CellDecoder(cell, embed, project, has_aux)


def _dense(params: Mapping[str, Any], output: Array) -> Array:
    logits = output @ params["kernel"]
    return logits + over_rows(params["bias"], logits) if "bias" in params else logits
