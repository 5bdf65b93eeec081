"""A call of each primitive in the table of traits."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import primitives

from rnnscan.ir.program import Constant, Equation, Value, evaluate, read
from rnnscan.ir.trace import Inliner
from rnnscan.ir.traits import SCANS, TRAITS, Traits


X, Y, POSITIVE = (np.linspace(low, high, 12).reshape(3, 4) for low, high in ((-0.8, 0.9), (0.7, -0.4), (0.3, 0.9)))
INTS = np.arange(12).reshape(3, 4)

SQUARE = X @ X.T + 2 * np.eye(len(X))

# Factors of matrices, and what solves with them.
FACTORS: dict[str, Callable[[], Any]] = {
    "qr": lambda: lax.linalg.qr(SQUARE, full_matrices=False),
    "triangular_solve": lambda: lax.linalg.triangular_solve(SQUARE, X, left_side=True, lower=True),
}
# A call of each primitive. One that needs several devices, or is of another version of JAX, has none.
CALLS: dict[str, Callable[[], Any]] = {
    **FACTORS,
    **{name: partial(getattr(lax, name), X, Y) for name in ("add", "sub", "mul", "div", "rem", "max", "min", "atan2")},
    **{name: partial(getattr(lax, name), X, Y) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    **{
        name: partial(getattr(lax, name), X)
        for name in (
            *(
                "neg",
                "sign",
                "square",
                "floor",
                "ceil",
                "round",
                "exp",
                "exp2",
                "expm1",
                "cbrt",
                "tanh",
                "sinh",
                "cosh",
            ),
            *("asinh", "atanh", "sin", "cos", "tan", "asin", "acos", "atan", "erf", "erfc", "erf_inv", "abs"),
            *("is_finite", "logistic", "lgamma", "digamma", "bessel_i0e", "bessel_i1e"),
        )
    },
    **{name: partial(getattr(lax, name), POSITIVE) for name in ("log", "log1p", "sqrt", "rsqrt")},
    **{name: partial(getattr(lax, name), POSITIVE, POSITIVE) for name in ("pow", "igamma", "igammac")},
    **{name: partial(getattr(lax, f"bitwise_{name}"), INTS, INTS + 1) for name in ("and", "or", "xor")},
    **{
        name: partial(getattr(lax, name), INTS, INTS % 3)
        for name in ("shift_left", "shift_right_logical", "shift_right_arithmetic")
    },
    **{name: partial(getattr(lax, name), X, axis=1) for name in ("cumsum", "cumprod", "cummax", "cummin")},
    **{f"reduce_{name}": partial(getattr(lax, f"reduce_{name}"), X, (1,)) for name in ("sum", "max", "min", "prod")},
    "add_any": lambda: jax.linear_transpose(lambda x: 2 * x + 3 * x, X)(X)[0],
    "clamp": lambda: lax.clamp(-0.5, X, 0.5),
    "nextafter": lambda: lax.nextafter(X, Y),
    "integer_pow": lambda: lax.integer_pow(X, 3),
    "acosh": lambda: lax.acosh(1 + POSITIVE),
    "polygamma": lambda: lax.polygamma(1 + INTS.astype(float), POSITIVE),
    "zeta": lambda: lax.zeta(1 + POSITIVE, POSITIVE),
    "regularized_incomplete_beta": lambda: lax.betainc(POSITIVE, POSITIVE, POSITIVE),
    "not": lambda: lax.bitwise_not(INTS),
    "population_count": lambda: lax.population_count(INTS),
    "clz": lambda: lax.clz(INTS),
    **({"mulhi": lambda: lax.mulhi(INTS, INTS + 1)} if hasattr(lax, "mulhi") else {}),
    "eq_to": lambda: primitives.eq_to_p.bind(X, Y),
    "le_to": lambda: primitives.le_to_p.bind(X, Y),
    "lt_to": lambda: primitives.lt_to_p.bind(X, Y),
    "real": lambda: lax.real(X + 1j * Y),
    "imag": lambda: lax.imag(X + 1j * Y),
    "conj": lambda: lax.conj(X + 1j * Y),
    "complex": lambda: lax.complex(X, Y),
    "select_n": lambda: lax.select_n(X > 0, X, Y),
    "copy": lambda: lax.copy_p.bind(X) if hasattr(lax, "copy_p") else jnp.copy(X),
    "stop_gradient": lambda: lax.stop_gradient(X),
    "convert_element_type": lambda: lax.convert_element_type(jnp.asarray(X), np.float16),
    "reduce_precision": lambda: lax.reduce_precision(X, 5, 10),
    "broadcast_in_dim": lambda: lax.broadcast_in_dim(X, (2, 3, 4), (1, 2)),
    "transpose": lambda: lax.transpose(X, (1, 0)),
    "rev": lambda: lax.rev(X, (1,)),
    "tile": lambda: lax.tile(X, (2, 1)),
    "reshape": lambda: lax.reshape(X, (4, 3)),
    "squeeze": lambda: lax.squeeze(X[None], (0,)),
    "slice": lambda: lax.slice(X, (0, 1), (2, 4)),
    "split": lambda: lax.split(X, (1, 3), axis=1),
    "concatenate": lambda: lax.concatenate([X, Y], 1),
    "pad": lambda: lax.pad(X, 0.5, [(1, 0, 0), (0, 2, 1)]),
    "dot_general": lambda: lax.dot(X, Y.T),
    "conv_general_dilated": lambda: lax.conv(X[None, None], Y[None, None], (1, 1), "SAME"),
    "reduce_and": lambda: lax.reduce_and(X > 0, (1,)),
    "reduce_or": lambda: lax.reduce_or(X > 0, (1,)),
    "reduce_xor": lambda: lax.reduce_xor(X > 0, (1,)),
    "argmax": lambda: lax.argmax(X, 1, np.int32),
    "argmin": lambda: lax.argmin(X, 1, np.int32),
    "cumlogsumexp": lambda: lax.cumlogsumexp(X, 1),
    "sort": lambda: lax.sort(X),
    "top_k": lambda: lax.top_k(X, 2),
    "gather": lambda: jnp.asarray(X)[jnp.array([0, 2])],
    "dynamic_slice": lambda: lax.dynamic_slice(X, (1, 1), (2, 2)),
    "dynamic_update_slice": lambda: lax.dynamic_update_slice(X, Y[:1], (1, 0)),
    "scatter": lambda: jnp.asarray(X).at[jnp.array([0, 2])].set(Y[:2], unique_indices=True),
    "scatter-add": lambda: jnp.asarray(X).at[jnp.array([0, 2])].add(Y[:2]),
    "scatter-mul": lambda: jnp.asarray(X).at[jnp.array([0, 2])].mul(Y[:2]),
    "scatter-min": lambda: jnp.asarray(X).at[jnp.array([0, 2])].min(Y[:2]),
    "scatter-max": lambda: jnp.asarray(X).at[jnp.array([0, 2])].max(Y[:2]),
    "optimization_barrier": lambda: lax.optimization_barrier(X),
    "scan": lambda: lax.scan(lambda carry, x: (carry + x, carry), X[0], X),
    "while": lambda: lax.while_loop(lambda x: x.sum() < 9, lambda x: x + 1, X),
    "cond": lambda: lax.cond(X.sum() > jnp.zeros(()), lambda x: x, lambda x: 2 * x, X),
    "jit": lambda: jax.jit(lambda x: x + 1)(X),
    "remat2": lambda: jax.checkpoint(lambda x: x + 1)(X),
    "custom_jvp_call": lambda: jax.nn.relu(X),
}


# Another version of JAX, several devices or a kernel of a user's.
WITHOUT_CALL = {
    *("stack", "unstack", "name", "scatter-sub", "log2", "one_minus_square"),
    *("closed_call", "custom_vjp_call", "rnnscan_call", *SCANS),
    *({"mulhi"} - set(CALLS)),  # jax 0.10.0 has none
    *("pallas_call", "sharding_constraint", "reshard", "pvary", "pcast", "psum", "psum_invariant"),
    # Nothing is claimed of these, but that they are batched over time.
    *(name for name, traits in TRAITS.items() if traits == Traits()),
}


def equation_of(name: str) -> tuple[Equation, list[Any]]:
    """The first equation of a primitive in its call, and its operands."""
    inliner = Inliner(whole={name})
    closed = jax.make_jaxpr(CALLS[name])()
    inliner.inline(closed.jaxpr, [Constant(const) for const in closed.consts], [])
    equations, values = inliner.equations, dict[Value, Any]()
    place = next(place for place, equation in enumerate(equations) if equation.name == name)
    evaluate(equations[:place], values)
    return equations[place], [jnp.asarray(read(atom, values)) for atom in equations[place].inputs]
