"""The probes of a CPU, one or more for each constant of `Machine`. Most compare two loops of the same steps."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial, reduce
from itertools import chain
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, nn
from jax.scipy import special

from benchmarks.cost_model.probe import Probe, Sizes, loop
from rnnscan.engine.run.runner import written


Array = jax.Array
Unary = Callable[[Array], Array]

_FUNCTIONS: dict[str, dict[str, Unary]] = {
    "ns_per_exp": {
        "exp": jnp.exp,
        "log": jnp.log,
        "tanh": jnp.tanh,
        "logistic": nn.sigmoid,
        "erf": special.erf,
        "sqrt": jnp.sqrt,
    },
    "ns_per_exp_in_short_row": {"exp": jnp.exp, "tanh": jnp.tanh, "logistic": nn.sigmoid},
    "ns_per_function": {"log1p": jnp.log1p, "expm1": jnp.expm1, "sinh": jnp.sinh, "erfc": special.erfc},
    "ns_per_sine": {"sin": jnp.sin, "cos": jnp.cos},
    "ns_per_power": {"pow": lambda a: a**1.7, "cbrt": jnp.cbrt, "lgamma": special.gammaln, "atan": jnp.arctan},
}
# One of `SHORT_ROWS` of the cost model.
_SHORT_ROW = 16
# Keeping a value must spare 1.5 times the time of writing and reading it.
_LEAST_GAIN = 1.5


def cpu_probes(sizes: Sizes) -> list[Probe]:
    """All probes."""
    probes = (_equations, _functions, _moves, _products, _small_loops, _kept, _written)
    return [*chain.from_iterable(each(sizes) for each in probes)]


def _compared(field: str, title: str, more: Unary, fewer: Unary, carry: Array, steps: int, units: float) -> Probe:
    """A probe of what one loop does more in each step than another."""
    return Probe(field, title, [(1, loop(more, carry, steps)), (-1, loop(fewer, carry, steps))], steps * units)


def _mixed(a: Array) -> Array:
    """Arithmetic that keeps values between 1 / 4 and 3 / 4."""
    return jnp.minimum(jnp.abs(a), 1.0) * 0.5 + 0.25


def _spread(size: int) -> Array:
    return jnp.linspace(0.1, 0.9, size)


def _repeated(function: Unary, times: int) -> Unary:
    def repeat(a: Array) -> Array:
        for _ in range(times):
            a = function(a)
        return a

    return repeat


def _equations(sizes: Sizes) -> Iterator[Probe]:
    def normalized(a: Array) -> Array:
        a = a - jnp.mean(a, -1, keepdims=True)
        return a * lax.rsqrt(jnp.mean(a**2, -1, keepdims=True) + 0.1) + 0.5

    rows = _spread(256).reshape(4, 64)
    count = len(jax.make_jaxpr(normalized)(rows).eqns)
    fewer, more = _repeated(normalized, 1), _repeated(normalized, 3)
    yield _compared("ns_per_equation", "those of a layer norm", more, fewer, rows, sizes.steps, 2 * count)
    fewer, more = _repeated(_mixed, 2), _repeated(_mixed, 10)
    elements = sizes.elements
    yield _compared("ns_per_element", "abs, min, mul, add", more, fewer, _spread(elements), sizes.steps, 32 * elements)


def _functions(sizes: Sizes) -> Iterator[Probe]:
    for field, functions in _FUNCTIONS.items():
        carry = _spread(sizes.elements)
        carry = carry.reshape(-1, _SHORT_ROW) if field.endswith("in_short_row") else carry
        for title, function in functions.items():
            more = _repeated(lambda a, function=function: function(_mixed(a)), 2)
            fewer = _repeated(_mixed, 2)
            yield _compared(field, title, more, fewer, carry, sizes.steps, 2 * sizes.elements)


def _moves(sizes: Sizes) -> Iterator[Probe]:
    elements, steps = sizes.elements, max(2, sizes.steps // 8)
    carry, places = _spread(elements), jnp.asarray(np.random.default_rng(0).permutation(elements))

    def permuted(a: Array) -> Array:
        return a[places]

    yield _compared("ns_per_moved", "gather", _repeated(permuted, 3), permuted, carry, steps, 2 * elements)
    scattered = lambda a: jnp.zeros_like(a).at[places].add(a)  # noqa: E731
    yield _compared("ns_per_moved", "scatter-add", _repeated(scattered, 3), scattered, carry, steps, 2 * elements)
    key = jax.random.key(0)
    noisy = lambda a: a + jax.random.uniform(jax.random.fold_in(key, a[0].astype(int)), a.shape)  # noqa: E731
    yield _compared("ns_per_random", "uniform", noisy, _mixed, carry, steps, elements)
    yield _compared(
        "ns_per_sorted", "sort", lambda a: jnp.sort(permuted(a)), permuted, carry, max(2, steps // 4), elements
    )
    summed = lambda a: 0.1 * jnp.cumsum(a)  # noqa: E731
    yield _compared("ns_per_sorted", "cumsum", _repeated(summed, 3), summed, carry, steps, 2 * elements)


def _products(sizes: Sizes) -> Iterator[Probe]:
    width, steps = sizes.width, sizes.steps

    def products(times: int, side: int) -> Callable[[], Any]:
        return loop(_repeated(lambda a: a @ a, times), jnp.eye(side), steps)

    smallest, small, large = (max(2, width // part) for part in (16, 8, 4))
    title = f"{smallest} x {smallest}"
    yield Probe("ns_per_product", title, [(1, products(3, smallest)), (-1, products(1, smallest))], 2 * steps)
    programs = [(1, products(3, large)), (-1, products(1, large)), (-1, products(3, small)), (1, products(1, small))]
    title = f"{large} x {large} beside {small} x {small}"
    yield Probe("ns_per_operation", title, programs, 4 * steps * (large**3 - small**3))
    matrices = jnp.stack([jnp.eye(large)] * 8)
    for title, subscripts, operand in (
        ("batched", "bij,bjk->bik", matrices),
        ("batched, with vectors", "bij,bj->bi", matrices[0, :8]),
    ):
        apply = lambda a, subscripts=subscripts: jnp.einsum(subscripts, matrices, a)  # noqa: E731
        more, fewer = _repeated(apply, 3), _repeated(apply, 1)
        yield _compared("ns_per_operation", title, more, fewer, operand, steps, 4 * large * operand.size)
    matrix = jnp.full((width, width), 0.01)
    tall = jnp.full((sizes.rows, width), 0.1)
    programs = [(1, lambda: tall @ matrix), (-1, lambda: tall[: sizes.rows // 4] @ matrix)]
    yield Probe("ns_per_batched_operation", f"{width} x {width}", programs, 1.5 * sizes.rows * width**2)


def _small_loops(sizes: Sizes) -> Iterator[Probe]:
    """A step that calls a library, and one of a loop that XLA compiles to one kernel."""
    factor = partial(lax.linalg.cholesky, symmetrize_input=False)
    more, fewer = _repeated(factor, 3), _repeated(factor, 1)
    yield _compared("ns_per_call", "a Cholesky factor of 2 x 2", more, fewer, jnp.eye(2), sizes.steps, 2)
    side = max(2, sizes.width // 32)
    title, units = f"a Cholesky factor of {side} x {side}, with its call", 2 * side**2
    yield _compared("ns_per_factored", title, more, fewer, jnp.eye(side), sizes.steps, units)
    steps = 16 * sizes.steps

    def one_kernel(times: int) -> Callable[[], Any]:
        body = _repeated(_mixed, times)
        return lambda: lax.scan(lambda carry, _: (body(carry), None), _spread(4), None, steps)[0]

    title = "abs, min, mul, add of 4 elements"
    yield Probe("ns_per_equation_in_a_kernel", title, [(1, one_kernel(10)), (-1, one_kernel(2))], 32 * steps)


def _kept(sizes: Sizes) -> Iterator[Probe]:
    steps = max(2, sizes.steps // 2)

    def keeping(count: int, carry: Array) -> Callable[[], Any]:
        """Two loops over three carries. The first stacks so many of them, and the second reads the stacks."""

        def run() -> Any:
            carries = [carry * factor for factor in (0.5, 0.6, 0.7)]
            last, stacks = lax.scan(lambda all, _: ((new := [*map(_mixed, all)]), new[:count]), carries, None, steps)

            def read(all: list[Array], kept: list[Array]) -> tuple[list[Array], None]:
                return [0.5 * a + b for a, b in zip(all, [*kept, *last[count:]], strict=True)], None

            return lax.scan(read, last, stacks, reverse=True)[0]

        return run

    large = 2 * sizes.elements
    yield from _by_bytes("ns_per_kept", partial(keeping, 3), partial(keeping, 1), 2 * steps, large, _LEAST_GAIN)


def _written(sizes: Sizes) -> Iterator[Probe]:
    def writing(count: int, carry: Array) -> Callable[[], Any]:
        barriers = [written] * count + [lambda a: a] * (3 - count)
        return loop(lambda a: reduce(lambda a, barrier: _mixed(barrier(_mixed(a))), barriers, a), carry, sizes.steps)

    # XLA runs a first call beside the rest of the loop.
    units, large = 2 * sizes.steps, 4 * sizes.elements
    yield from _by_bytes("ns_per_written", partial(writing, 3), partial(writing, 1), units, large, 1.0)


def _by_bytes(
    field: str,
    more: Callable[[Array], Callable[[], Any]],
    fewer: Callable[[Array], Callable[[], Any]],
    units: int,
    elements: int,
    times: float,
) -> Iterator[Probe]:
    """The probes of `value + byte * nbytes`, on a line through few and many bytes."""
    few, many = _spread(max(1, elements // 16)), _spread(elements)
    of_few = [(times, more(few)), (-times, fewer(few))]
    of_many = [(times, more(many)), (-times, fewer(many))]
    title, between = f"{few.nbytes} and {many.nbytes} bytes", many.nbytes - few.nbytes
    at_zero = _scaled(of_few, many.nbytes / between) + _scaled(of_many, -few.nbytes / between)
    yield Probe(f"{field}_value", title, at_zero, units)
    yield Probe(f"{field}_byte", title, of_many + _scaled(of_few, -1), units * between)


def _scaled(
    programs: Sequence[tuple[float, Callable[[], Any]]], factor: float
) -> list[tuple[float, Callable[[], Any]]]:
    return [(factor * weight, program) for weight, program in programs]
