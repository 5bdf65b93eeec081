"""What counts as a cell."""

from functools import partial, wraps

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs
from rnnscan import attention, cells
from rnnscan.protocols import check_cell


pytestmark = pytest.mark.typed  # `make test` runs these with the run-time type checks.


def decay(params, carry, x):
    carry = params * carry + x
    return carry, carry


def with_parameters(function):
    """A wrapper that adds the parameters to a function of `lax.scan`."""

    @wraps(function)
    def step(params, carry, x):
        return function(params * carry, x)

    return step


def decoder():
    maker = attention.decoder(cells.GRU(4), attention.Dot(4))
    shapes = jax.eval_shape(lambda: maker.init(jax.random.key(0), input_size=3))
    return maker.over(jax.tree.map(lambda leaf: np.ones(leaf.shape, leaf.dtype), shapes), jnp.ones((5, 2, 4)))


LIBRARY = {name: kind(4) for name, kind in vars(cells).items() if isinstance(kind, type)}
COMPOSED = {
    "stack": rs.stack(cells.LSTM(4), cells.GRU(4)),
    "residual": rs.residual(cells.GRU(4)),
    "dropout": rs.dropout(cells.GRU(4), 0.1),
    "zoneout": rs.zoneout(cells.GRU(4), 0.1),
    "windowed": rs.windowed(cells.GRU(4), 2),
    "adaptive_computation": rs.adaptive_computation(cells.GRU(4), 2),
    "attention": decoder(),
}


@pytest.mark.parametrize("name", [*LIBRARY, *COMPOSED])
def test_cells_of_the_library_compose(name):
    cell = {**LIBRARY, **COMPOSED}[name]
    assert isinstance(cell, rs.ComposableCell)
    check_cell("stack", cell)


@pytest.mark.parametrize(
    "cell",
    [
        decay,
        lambda params, carry, x: (carry, x),
        lambda *arguments: arguments[1:],
        partial(lambda rate, params, carry, x: (carry, x), 0.5),
        jax.jit(decay),
        jax.checkpoint(decay),
        with_parameters(lambda carry, x: (carry + x, carry)),
    ],
    ids=["function", "lambda", "star", "partial", "jit", "checkpoint", "wrapper"],
)
def test_callables_are_cells(cell):
    assert isinstance(cell, rs.Cell)
    assert not isinstance(cell, rs.InitializableCell)
    check_cell("scan", cell, rs.Cell)
    rs.scan(cell, jnp.ones(2), jnp.ones(2), jnp.ones((3, 2)))


NOT_CELLS = {
    "a number": (3, r"got int\. The cell comes first"),
    "an array": (jnp.ones(3, jnp.int32), r"got int32\[3\]\. The cell comes first"),
    "a class": (cells.GRU, r"got the class GRU\. Pass an object"),
    "a net": (rs.layer(cells.GRU(4)), r"got the net Layer\(.* Pass its cell"),
    "a decoder": (attention.decoder(cells.GRU(4), attention.Dot(4)), r"got Decoder"),
    "of two arguments": (lambda carry, x: (carry, x), r"takes two arguments, as the function of jax\.lax\.scan"),
    "of four arguments": (lambda a, b, c, d: (a, b), r"Bind further arguments"),
}


@pytest.mark.parametrize("name", NOT_CELLS)
def test_what_scan_refuses(name):
    value, message = NOT_CELLS[name]
    with pytest.raises(TypeError, match=r"^scan: a cell must be callable as cell\(params, carry, x\); .*" + message):
        check_cell("scan", value, rs.Cell)


NOT_COMPOSABLE = {
    "a function": (decay, r"got function, without 'init', .* A plain function goes into scan"),
    "a decoder": (attention.decoder(cells.GRU(4), attention.Dot(4)), r"decoder\.over\(params, encoder_outputs\)"),
    "a list": ([cells.GRU(4)], r"got list, without .* one by one"),
    "a net": (rs.layer(cells.GRU(4)), r"got the net Layer\("),
    "a class": (cells.GRU, r"got the class GRU"),
}


@pytest.mark.parametrize("name", NOT_COMPOSABLE)
def test_what_a_composition_refuses(name):
    value, message = NOT_COMPOSABLE[name]
    with pytest.raises(
        TypeError, match=r"^stack: .* with `init`, `initial_carry`, `names` and `output_size`; .*" + message
    ):
        check_cell("stack", value)
