"""Random small cells with products, factors, solves, sorts and reductions equal `lax.scan`."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import rnnscan as rs
from tiers import variants


def positive(matrix):
    return matrix @ matrix.T / len(matrix) + jnp.eye(len(matrix))


def bounded(matrix):
    return jnp.tanh(matrix) + 2 * jnp.eye(len(matrix))


# A matrix and another one -> a matrix of the same size.
OPERATIONS: dict[str, Callable] = {
    "product": lambda a, b: a @ b / len(a),
    "transposed product": lambda a, b: a.T @ b / len(a),
    "einsum": lambda a, b: jnp.einsum("ij,kj,k->ik", a, b, b[0]) / len(a),
    "batched product": lambda a, b: jnp.einsum("bi,bij->bj", a, b[None] * a[:, :1, None]) / len(a),
    "matrix and vector": lambda a, b: a + (a @ b[0])[:, None] / len(a),
    "cholesky": lambda a, b: jnp.linalg.cholesky(positive(a)) + b,
    "cho_solve": lambda a, b: jax.scipy.linalg.cho_solve((jnp.linalg.cholesky(positive(a)), True), b),
    "solve": lambda a, b: jnp.linalg.solve(bounded(a), b),
    "solve of a vector": lambda a, b: a + jnp.linalg.solve(bounded(a), b[0]),
    "inv": lambda a, b: jnp.linalg.inv(bounded(a)) + b,
    "logdet": lambda a, b: b * jnp.linalg.slogdet(positive(a))[1] / len(a),
    "det": lambda a, b: b + jnp.tanh(jnp.linalg.det(bounded(a))),
    "qr": lambda a, b: jnp.linalg.qr(jnp.concatenate([bounded(a), b]))[1] + b,
    "q": lambda a, b: jnp.linalg.qr(bounded(a))[0] + b,
    "diag": lambda a, b: a + jnp.diag(jnp.diag(b)),
    "trace": lambda a, b: a * jnp.trace(b) / len(a),
    "outer": lambda a, b: jnp.outer(a[0], b[:, -1]),
    "sort": lambda a, b: jnp.sort(a, 0) - b,
    "median": lambda a, b: b - jnp.median(a, 1),
    "set": lambda a, b: a.at[0].set(b[-1]),
    "logsumexp": lambda a, b: b - jax.nn.logsumexp(a, 1, keepdims=True),
    "softmax": lambda a, b: jax.nn.softmax(a, 1) * b,
    "max": lambda a, b: a - jnp.max(b, 0),
    "norm": lambda a, b: a / (1 + jnp.linalg.norm(b)),
    "cumsum": lambda a, b: jnp.cumsum(a, 1) / len(a) - b,
    "where": lambda a, b: jnp.where(a > b, jnp.sin(a), b),
    "tanh": lambda a, b: jnp.tanh(a + b),
    "multiply": lambda a, b: jnp.tanh(a) * b,
    "branch": lambda a, b: lax.cond(a[0, 0] > 0, lambda: a @ b / len(a), lambda: b),
    "loop": lambda a, b: lax.fori_loop(0, 2, lambda _, c: jnp.tanh(c @ b), a),
}


class Case:
    """A random cell of matrices, with its arguments."""

    def __init__(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        self.size, leaves = int(random.integers(1, 6)), int(random.integers(1, 4))
        self.length = int(random.integers(1, 7))
        self.operations = [
            (str(random.choice([*OPERATIONS])), int(random.integers(100)), int(random.integers(100)))
            for _ in range(random.integers(2, 8))
        ]
        self.reads = [int(random.integers(100)) for _ in range(leaves + 1)]

        def draw(*shape):
            return jnp.asarray(random.normal(size=shape))

        self.params = [draw(self.size, self.size) for _ in range(2)]
        self.carry = [draw(self.size, self.size) for _ in range(leaves)]
        self.xs = draw(self.length, self.size, self.size)

    def cell(self, params, carry, x):
        values = [x, *params, *carry]
        for name, first, second in self.operations:
            values.append(OPERATIONS[name](values[-1 - first % len(values)], values[-1 - second % len(values)]))
        new = [jnp.tanh(values[-1 - read % len(values)] + old) for read, old in zip(self.reads, carry, strict=False)]
        return new, values[-1 - self.reads[-1] % len(values)][0]


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("seed", variants(list(range(300)), [*range(0, 300, 60), 100]))
def test_values_and_derivatives_are_those_of_lax_scan(seed):
    case = Case(seed)
    arguments = (case.params, case.carry, case.xs)
    # Cumulative sums take a kernel longer.
    assert ("one kernel" in str(rs.explain(case.cell, *arguments))) == (seed != 53)

    def ours(params, carry, xs):
        return rs.scan(case.cell, params, carry, xs)

    def plain(params, carry, xs):
        return lax.scan(partial(case.cell, params), carry, xs)

    def results(run):
        def loss(*arguments):
            return sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(run(*arguments)))

        gradient = jax.grad(loss, (0, 1, 2))
        tangents = jax.tree.map(jnp.cos, arguments)
        rows = jax.vmap(gradient, (None, None, 0))(case.params, case.carry, jnp.stack([case.xs, -case.xs]))
        return run(*arguments), gradient(*arguments), jax.jvp(gradient, arguments, tangents)[1], rows

    got, expected = (jax.jit(partial(results, run))() for run in (ours, plain))
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        scale = max(1.0, float(jnp.max(jnp.abs(other))))
        np.testing.assert_allclose(one / scale, other / scale, rtol=1e-7, atol=1e-9)
