"""A rare branch, or a loop whose length its data decide, stays rare in the bodies of calls too."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rnnscan as rs


WEIGHT = jnp.eye(4) / 2


def branch(x: Any, flag: Any) -> Any:
    return jax.lax.cond(flag > 0, lambda x: jnp.tanh(WEIGHT @ x), lambda x: x, x)


def loop(x: Any, flag: Any) -> Any:
    return jax.lax.while_loop(lambda s: s[0] < flag, lambda s: (s[0] + 1, WEIGHT @ s[1]), (0, x))[1]


def with_jvp(function: Any) -> Any:
    call = jax.custom_jvp(function)
    call.defjvp(lambda primals, tangents: (call(*primals), tangents[0]))
    return call


def solve(x: Any, flag: Any) -> Any:
    return jax.scipy.sparse.linalg.cg(lambda v: v + WEIGHT @ v, jax.lax.stop_gradient(x), maxiter=9)[0]


def callback(x: Any, flag: Any) -> Any:
    x = jax.lax.stop_gradient(x)
    return jax.pure_callback(lambda x: np.asarray(x) * 2, x, x, vmap_method="sequential")


def scan(function: Any) -> Any:
    step = lambda _, carry, x: (function(carry + x[0], x[1]), None)  # noqa: E731
    return lambda x, flag: rs.scan(step, None, x, (jnp.ones((2, 4)), flag[None] + jnp.arange(2)))[0]


CALLS = {
    "branch": branch,
    "branch in jit": jax.jit(branch),
    "branch in a rule": with_jvp(branch),
    "branch in a rule in a rule": with_jvp(with_jvp(branch)),
    "branch in a checkpoint in a rule": with_jvp(jax.checkpoint(branch)),
    "loop": loop,
    "loop in a rule": with_jvp(loop),
    "linear solve with a loop": solve,
    "branch in a scan": lambda x, flag: rs.scan(lambda _, c, z: (branch(c + z, flag), None), None, x, jnp.ones((2, 4)))[
        0
    ],
    "callback, which no table has": callback,
}
BATCHED = {
    "rule": with_jvp(lambda x, flag: jnp.tanh(x * flag)),
    "linear solve": lambda x, flag: 2 * jnp.linalg.solve(WEIGHT + jnp.outer(x, x), x),
    "scan": scan(lambda x, flag: jnp.sin(x * flag)),
    "random numbers": lambda x, flag: x + jax.random.normal(jax.random.fold_in(jax.random.key(0), flag), (4,)),
}
# The carry is not linear in itself, so that it has a loop of its own.
XS = jnp.linspace(-1, 1, 80).reshape(20, 4), jnp.arange(20) % 7 // 6


def at_once(call: Any) -> bool:
    """Whether a call of the inputs is batched over time with a GPU's choices."""

    def cell(_: None, carry: Any, x: Any) -> Any:
        carry = jnp.tanh(carry * 0.9 + rs.name(call(*x), "called"))
        return carry, carry

    arguments = cell, None, jnp.zeros(4), XS
    with rs.tuned_for("gpu"):
        report = rs.explain(*arguments)
        np.testing.assert_allclose(rs.scan(*arguments)[1], rs.scan(*arguments, engine="lax")[1], rtol=1e-5, atol=1e-6)
    (row,) = [row for row in str(report).splitlines() if " called " in row]
    return "at once" in row


@pytest.mark.parametrize("name", CALLS)
def test_what_cannot_be_batched_runs_step_by_step(name: str):
    assert not at_once(CALLS[name])


@pytest.mark.parametrize("name", BATCHED)
def test_the_rest_runs_at_once(name: str):
    assert at_once(BATCHED[name])
