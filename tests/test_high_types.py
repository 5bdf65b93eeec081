"""Values of a type of JAX's high level in params, carry, xs and ys: as in `lax.scan`, whose own loop runs them."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import hijax

import rnnscan as rs
from rnnscan.newton import Newton
from tiers import variants


WEIGHT, START, XS = jnp.linspace(0.3, 0.6, 3), jnp.linspace(0.1, 0.3, 3), jnp.linspace(-1.0, 1.0, 15).reshape(5, 3)
STEPS = len(XS)
# jax 0.12 has another name.
Operation: Any = getattr(hijax, "HiPrim", None) or hijax.VJPHiPrimitive


class Scaled:
    """An array, divided by a scale for each row."""

    def __init__(self, array, scale):
        self.array, self.scale = array, scale


@dataclass(frozen=True)
class ScaledType(hijax.HiType):
    shape: tuple[int, ...]

    def lo_ty(self):
        return [hijax.ShapedArray(shape, jnp.dtype("float32")) for shape in (self.shape, self.shape[:-1])]

    def lower_val(self, value):
        return [value.array, value.scale]

    def raise_val(self, *values):
        return Scaled(*values)

    def to_tangent_aval(self):
        return hijax.ShapedArray(self.shape, jnp.dtype("float32"))

    def leading_axis_spec(self):
        return True

    def dec_rank(self, size, spec):
        return ScaledType(self.shape[1:])

    def inc_rank(self, size, spec):
        return ScaledType((size, *self.shape))

    def str_short(self, short_dtypes=False, **_):
        return f"Scaled{list(self.shape)}"


hijax.register_hitype(Scaled, lambda value: ScaledType(jnp.shape(value.array)))


class Conversion(Operation):
    """To or from `Scaled`: its derivative is the identity."""

    def __init__(self, aval, result):
        self.in_avals, self.out_aval, self.params = (aval,), result, {}
        super().__init__()

    def vjp_fwd(self, _, value):
        return self(value), None

    def vjp_bwd_retval(self, _, cotangent):
        return (cotangent,)

    def jvp(self, primals, tangents):
        return self(*primals), tangents[0]


class Make(Conversion):
    def expand(self, array):
        scale = 1 + jnp.max(jnp.abs(array), -1)
        return Scaled(array / scale[..., None], scale)


class Read(Conversion):
    def expand(self, value):
        return value.array * value.scale[..., None]


def make(array):
    return Make(jax.typeof(array), ScaledType(array.shape))(array)


def read(value):
    aval = jax.typeof(value)
    return Read(aval, hijax.ShapedArray(aval.shape, jnp.dtype("float32")))(value)


def plain(cell, params, carry, xs, **options):
    return lax.scan(partial(cell, params), carry, xs, **options)


def in_params(scan, weight, xs):
    def cell(params, carry, x):
        hidden = jnp.tanh(carry * read(params["weight"]) + x)
        return hidden, hidden

    return scan(cell, {"weight": make(weight)}, START, xs)[1].sum()


def closed_over(scan, weight, xs):
    value = make(weight)

    def cell(params, carry, x):
        hidden = jnp.tanh(carry * read(value) + x)
        return hidden, hidden

    return scan(cell, None, START, xs)[1].sum()


def in_carry(scan, weight, xs):
    def cell(params, carry, x):
        hidden = jnp.tanh(read(carry[0]) * params + x)
        return (make(hidden), carry[1] + 1), hidden

    (final, count), ys = scan(cell, weight, (make(START), 0.0), xs)
    return ys.sum() + read(final).sum() + count


def in_xs(scan, weight, xs):
    def cell(params, carry, x):
        hidden = jnp.tanh(carry * params + read(x[0]) * x[1])
        return hidden, hidden

    return scan(cell, weight, START, (make(xs), xs), length=STEPS)[1].sum()


def in_ys(scan, weight, xs):
    def cell(params, carry, x):
        hidden = jnp.tanh(carry * params + x)
        return hidden, {"made": make(hidden), "hidden": hidden}

    ys = scan(cell, weight, START, xs)[1]
    return read(ys["made"]).sum() + ys["hidden"].sum()


PLACES = {"params": in_params, "closure": closed_over, "carry": in_carry, "xs": in_xs, "ys": in_ys}
SCANNED = {place: PLACES[place] for place in ("carry", "xs", "ys")}
TRANSFORMED = {
    "value": lambda run: run(WEIGHT, XS),
    "jit": lambda run: jax.jit(run)(WEIGHT, XS),
    "grad": lambda run: jax.grad(run, (0, 1))(WEIGHT, XS),
    "jit of grad": lambda run: jax.jit(jax.grad(run, (0, 1)))(WEIGHT, XS),
    "jvp": lambda run: jax.jvp(run, (WEIGHT, XS), (WEIGHT, XS)),
}
OPTIONS = [{}, {"memory": None}, {"engine": "lax"}, {"reverse": True, "unroll": 2}]


@pytest.mark.parametrize("transformed", variants([*TRANSFORMED], ["value", "jit of grad", "jvp"]))
@pytest.mark.parametrize("place", PLACES)
def test_values_of_the_high_level_are_those_of_a_plain_scan(place, transformed):
    for options in OPTIONS:
        of_plain = {name: value for name, value in options.items() if name in ("reverse", "unroll")}
        run, transform = PLACES[place], TRANSFORMED[transformed]
        try:
            expected = transform(partial(run, partial(plain, **of_plain)))
        except AttributeError as error:  # jax 0.10 has no such carry under `jit`.
            assert jax.__version_info__ < (0, 12)
            pytest.skip(f"lax.scan: {error}")
        found = transform(partial(run, partial(rs.scan, **options)))
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5), found, expected)


@pytest.mark.parametrize("place", SCANNED)
def test_explain_says_that_a_plain_scan_runs_them(place):
    found = []

    def explain(*arguments, **options):
        found.append(rs.explain(*arguments, **options))
        return rs.scan(*arguments, **options)

    SCANNED[place](explain, WEIGHT, XS)
    assert (found[0].engine, found[0].length) == ("lax", STEPS)
    assert "has a type of JAX's high level, ScaledType" in found[0].reason
    assert f"engine: lax, because {found[0].reason}" in str(found[0])


REFUSED = {
    'engine="fission" cannot run this call, because': {"engine": "fission"},
    "`parallel` needs the fission engine": {"parallel": Newton()},
    "such a call has plain autodiff": {"memory": rs.Memory(segment="sqrt")},
    "`mask` needs arrays": {"mask": jnp.ones((STEPS, 3), bool)},
    "`truncate` needs arrays": {"truncate": 2},
    "`key` needs arrays": {"key": jax.random.key(0)},
    "`unroll` must be a number": {"unroll": 0},
}


@pytest.mark.parametrize("message", REFUSED)
@pytest.mark.parametrize("place", SCANNED)
def test_options_that_a_plain_scan_has_not_are_refused(place, message):
    with pytest.raises(ValueError, match=message):
        SCANNED[place](partial(rs.scan, **REFUSED[message]), WEIGHT, XS)


def test_inputs_need_a_length():
    cell = lambda _, carry, x: (carry + read(x), None)  # noqa: E731
    with pytest.raises(ValueError, match=r"`xs` has a type of JAX's high level, .*Pass `length`"):
        rs.scan(cell, None, START, make(XS))


def step(params, carry, x):
    return make(read(carry) + x), None


OTHERS = {
    "memory_report": lambda: rs.memory_report(step, None, make(START), XS),
    "a budget": lambda: rs.scan(step, None, make(START), XS, memory=rs.Memory.fit(10**6)),
    "newton_iterations": lambda: rs.newton_iterations(step, None, make(START), XS),
    "while_net": lambda: rs.while_net(
        lambda _, carry: carry[0] < 3,
        lambda _, carry: (carry[0] + 1, step(None, carry[1], 1.0)[0]),
        (0, make(START)),
        params=None,
        max_steps=5,
    ),
}


@pytest.mark.parametrize("other", OTHERS)
def test_other_functions_refuse_them(other):
    with pytest.raises(TypeError, match=r"has a type of JAX's high level, .* no other function takes it"):
        OTHERS[other]()
