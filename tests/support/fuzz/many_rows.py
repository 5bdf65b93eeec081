"""Random cells with a small product and a reduction for each of more than 32,768 rows.

jaxlib before 0.11 miscompiles some of them (docs/versions.md; jax#39103), so a scan over all rows is compared with
`lax.scan` over few at a time.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import rnnscan as rs
from drawn import normal
from fuzz.compare import UnequalError
from slow_reference import assert_close


# 33 pieces are 32,769 rows, the fewest that jaxlib 0.10 gets wrong in float32; in float64 16,385 are.
ROWS_OF_A_PIECE = 993
TOLERANCE = {"float32": 1e-3, "float64": 1e-9}

PRODUCTS: dict[str, Callable[[Any, Any], Any]] = {
    "matrix @ row": lambda matrix, row: matrix @ row,
    "row @ matrix.T": lambda matrix, row: row @ matrix.T,
    "a sum of products": lambda matrix, row: jnp.sum(matrix * row, axis=-1),
}
REDUCTIONS: dict[str, Callable[[Any], Any]] = {
    "sum of squares": lambda values: jnp.sum(values**2),
    "sum": jnp.sum,
    "sum of sines": lambda values: jnp.sum(jnp.sin(values)),
    "maximum": jnp.max,
    "logsumexp": jax.nn.logsumexp,
}
# What of a row is multiplied.
OPERANDS: dict[str, Callable[[Any, Any], Any]] = {
    "the input": lambda carry, x: x,
    "the carry": lambda carry, x: carry,
    "both": lambda carry, x: carry + x,
}
BATCHES = ("vmap in the cell", "vmap of the scan")


def check_rows(seed: int) -> frozenset[str]:
    """Compare for one seed.

    Returns:
        The features of its cell.

    Raises:
        UnequalError: if results differ; it says how to replay it.
    """
    ManyRows(seed).check()
    return ManyRows(seed).features


@dataclass(frozen=True)
class ManyRows:
    """A random cell and its call.

    Attributes:
        seed: what all follows from.
    """

    seed: int

    def _draw(self, stream: int, choices: Any, p: Any = None) -> Any:
        return np.random.default_rng([self.seed, 30 + stream]).choice(list(choices), p=p).item()

    @property
    def features(self) -> frozenset[str]:
        """What is drawn, in words."""
        return frozenset({self.product, self.reduction, self.operand, self.dtype, self.batch})

    @property
    def product(self) -> str:
        return str(self._draw(0, PRODUCTS, p=[0.6, 0.2, 0.2]))

    @property
    def reduction(self) -> str:
        return str(self._draw(1, REDUCTIONS))

    @property
    def operand(self) -> str:
        return str(self._draw(2, OPERANDS))

    @property
    def dtype(self) -> str:
        return str(self._draw(3, TOLERANCE))

    @property
    def batch(self) -> str:
        return str(self._draw(4, BATCHES, p=[0.7, 0.3]))

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Steps, rows, the columns of the matrix and its rows. Those with 3 columns are the ones that went wrong."""
        rows = ROWS_OF_A_PIECE * self._draw(6, range(33, 41))
        return self._draw(5, [1, 2, 5]), rows, self._draw(7, [2, 3, 8], p=[0.2, 0.6, 0.2]), self._draw(8, range(1, 5))

    @property
    def is_miscompiled(self) -> bool:
        """Whether the installed jaxlib may get it wrong."""
        _, _, columns, units = self.sizes
        if self.product != "matrix @ row" or columns != 3 or units not in (2, 3):
            return False
        match version("jaxlib"):
            case "0.10.0" | "0.10.1":
                return self.reduction in ("sum", "maximum") and self.dtype == "float32"
            case "0.10.2":
                return self.reduction in ("sum", "maximum", "sum of squares")
        return False

    def arguments(self) -> tuple[Any, Any, Any]:
        """The matrix, carry and xs."""
        random = np.random.default_rng([self.seed, 40])
        steps, rows, columns, units = self.sizes
        shapes = [(units, columns), (rows, columns), (steps, rows, columns)]
        matrix, carry, xs = (normal(random, shape, jnp.dtype(self.dtype)) for shape in shapes)
        return matrix, carry, xs

    def row(self, matrix: Any, carry: Any, x: Any) -> tuple[Any, Any]:
        """One step of one row."""
        reduced = REDUCTIONS[self.reduction](PRODUCTS[self.product](matrix, OPERANDS[self.operand](carry, x)))
        return jnp.tanh(carry / 2 + x + reduced / 8), reduced

    def cell(self, matrix: Any, carry: Any, x: Any) -> tuple[Any, Any]:
        """One step of all rows."""
        return jax.vmap(self.row, (None, 0, 0))(matrix, carry, x)

    def by_rnnscan(self, matrix: Any, carry: Any, xs: Any) -> tuple[Any, Any]:
        if self.batch == "vmap in the cell":
            return rs.scan(self.cell, matrix, carry, xs)
        return jax.vmap(lambda carry, xs: rs.scan(self.row, matrix, carry, xs), (0, 1), (0, 1))(carry, xs)

    def by_lax(self, matrix: Any, carry: Any, xs: Any) -> tuple[Any, Any]:
        return jax.lax.scan(lambda carry, x: self.cell(matrix, carry, x), carry, xs)

    def check(self) -> None:
        """Compare results and gradients."""
        with jax.enable_x64(self.dtype == "float64"):
            matrix, carry, xs = self.arguments()
            actual = self._results_and_gradients(self.by_rnnscan)(matrix, carry, xs)
            of_piece = self._results_and_gradients(self.by_lax)
            pieces = [
                of_piece(matrix, carry[first : first + ROWS_OF_A_PIECE], xs[:, first : first + ROWS_OF_A_PIECE])
                for first in range(0, len(carry), ROWS_OF_A_PIECE)
            ]
            try:
                assert_close(actual, _joined(pieces), TOLERANCE[self.dtype])
            except AssertionError as error:
                raise UnequalError(
                    f"seed {self.seed}, {sorted(self.features)}, {self.sizes}: {error}\n"
                    f"Replay it: PYTHONPATH=tests:tests/support python -m fuzz --rows --start {self.seed} --count 1"
                ) from error

    def _results_and_gradients(self, run: Callable[..., Any]) -> Callable[..., dict[str, Any]]:
        """Those of a loss that is a sum over rows."""

        def loss(*arguments: Any) -> tuple[Any, Any]:
            carry, ys = run(*arguments)
            return (jnp.sum(jnp.sin(carry)) + jnp.sum(jnp.sin(ys))) / self.sizes[1], (carry, ys)

        def both(*arguments: Any) -> dict[str, Any]:
            (_, (carry, ys)), gradients = jax.value_and_grad(loss, (0, 1, 2), has_aux=True)(*arguments)
            return {"carry": carry, "ys": ys, "gradients": gradients}

        return jax.jit(both)


def _joined(pieces: list[dict[str, Any]]) -> dict[str, Any]:
    of_matrix, of_carry, of_xs = zip(*(piece["gradients"] for piece in pieces), strict=True)
    return {
        "carry": jnp.concatenate([piece["carry"] for piece in pieces]),
        "ys": jnp.concatenate([piece["ys"] for piece in pieces], axis=1),
        "gradients": (sum(of_matrix), jnp.concatenate(of_carry), jnp.concatenate(of_xs, axis=1)),
    }
