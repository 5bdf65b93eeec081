"""The cell arguments of commands: a cell of the library, or of a module."""

from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

import jax
import jax.numpy as jnp
import typer

from rnnscan import cells
from rnnscan._util.messages import listing, nearest
from rnnscan.cli.modules import import_attribute
from rnnscan.nets.base import Net
from rnnscan.protocols import ComposableCell, check_cell


UNITS = 256

AnyCell: TypeAlias = Annotated[
    str, typer.Argument(metavar="CELL", help="A cell of the library, such as LSTM, or module:attribute.")
]
Hidden: TypeAlias = Annotated[
    int | None, typer.Option(help="Units of a cell of the library.", show_default=str(UNITS), min=1)
]
Inputs: TypeAlias = Annotated[int, typer.Option(help="Features of one step's input.", min=1)]
Batch: TypeAlias = Annotated[int, typer.Option(help="Rows of a batch.", min=1)]
Length: TypeAlias = Annotated[int, typer.Option(help="Time steps.", min=1)]


@dataclass(frozen=True)
class Example:
    """A cell and its arguments; `example_of` makes shapes only."""

    cell: ComposableCell
    params: Any
    carry: Any
    xs: Any

    def with_arrays(self) -> "Example":
        """The same with random parameters and inputs."""
        xs = jax.random.normal(jax.random.key(1), self.xs.shape, self.xs.dtype)
        params = self.cell.init(jax.random.key(0), self.xs.shape[-1])
        return Example(self.cell, params, self.cell.initial_carry(xs[0]), xs)


def example_of(cell: str, *, hidden: int | None, inputs: int, batch: int, length: int) -> Example:
    """A cell and the shapes of its arguments.

    Args:
        cell: the name of a cell of `rnnscan.cells`, or `module:attribute` of a cell with `init` and `initial_carry`.
            The working directory is on the module path.
        hidden: units of a cell of the library; None: 256.
        inputs: D.
        batch: N.
        length: T.

    Raises:
        ValueError: if the cell, module or attribute does not exist, the cell cannot take the input, or `hidden` is
            given for a module's cell.
        TypeError: if the attribute is not a cell.

    Example:
        >>> example_of("GRU", hidden=8, inputs=4, batch=2, length=16).xs.shape
        (16, 2, 4)
    """
    if ":" in cell and hidden is not None:
        raise ValueError(
            f"rnnscan: --hidden must be given with a cell of the library; got --hidden {hidden} and {cell!r}. Leave "
            "--hidden out."
        )
    rnn_cell = import_attribute(cell, "CELL") if ":" in cell else _of_library(cell, hidden or UNITS)
    check_cell("rnnscan", rnn_cell)
    x = jax.ShapeDtypeStruct((batch, inputs), jnp.float32)
    return Example(
        cell=rnn_cell,
        params=jax.eval_shape(lambda: rnn_cell.init(jax.random.key(0), inputs)),
        carry=jax.eval_shape(rnn_cell.initial_carry, x),
        xs=jax.ShapeDtypeStruct((length, *x.shape), x.dtype),
    )


def arguments_of(
    cell: str, *, hidden: int | None, inputs: int, batch: int, length: int, units: int = UNITS
) -> tuple[Any, ...]:
    """The arguments of a function such as `rnnscan.check`: a cell or net with random parameters, or a module's own.

    Args:
        cell: as in `example_of`, or `module:attribute` of a net, or of a tuple with the arguments.
        hidden: units of a cell of the library; None: `units`.
        inputs: D.
        batch: N.
        length: T.
        units: units of a cell of the library where `hidden` is None.

    Returns:
        `(cell, params, None, xs)`, `(net, params, xs)`, or the tuple. `xs` is a `jax.ShapeDtypeStruct`.

    Raises:
        ValueError: as `example_of` does.
        TypeError: if the attribute is nothing of the kind.
    """
    attribute = import_attribute(cell, "CELL") if ":" in cell else None
    if isinstance(attribute, tuple):
        return attribute
    if isinstance(attribute, Net):
        net: Any = attribute
        return net, net.init(jax.random.key(0), inputs), jax.ShapeDtypeStruct((length, batch, inputs), jnp.float32)
    units = units if hidden is None else hidden
    example = example_of(cell, hidden=hidden if ":" in cell else units, inputs=inputs, batch=batch, length=length)
    return example.cell, example.cell.init(jax.random.key(0), inputs), None, example.xs


def with_inputs(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Arguments of a cell, net or function to run: random arrays for types, and the cell's own carry for None."""

    def draw(leaf: Any) -> Any:
        if not isinstance(leaf, jax.ShapeDtypeStruct):
            return leaf
        return jax.random.normal(jax.random.key(1), leaf.shape).astype(leaf.dtype)

    model, *others = jax.tree.map(draw, arguments)
    if len(others) == 3 and others[1] is None and hasattr(model, "initial_carry"):
        others[1] = model.initial_carry(jax.tree.map(lambda leaf: leaf[0], others[2]))
    return model, *others


def _of_library(cell: str, hidden: int) -> Any:
    known = {name: value for name, value in vars(cells).items() if isinstance(value, type)}
    names = {name.lower(): value for name, value in known.items()}
    if cell.lower() not in names:
        raise ValueError(
            f"rnnscan: CELL must be one of {listing(known)}, or module:attribute; got {cell!r}.{nearest(cell, known)}"
        )
    return names[cell.lower()](hidden)
