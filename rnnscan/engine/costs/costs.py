"""What it costs to batch an equation over the steps of a chunk. Each number has its measurement."""

from collections.abc import Callable, Collection, Iterable, Sequence, Set
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

import jax
import jax.numpy as jnp

from rnnscan.engine.costs.frontier import Frontier
from rnnscan.ir.bodies import bodies_of, equations_of
from rnnscan.ir.contraction import operations_of
from rnnscan.ir.jaxprs import inner_jaxprs
from rnnscan.ir.program import Equation, Value, total_bytes
from rnnscan.ir.traits import SCANS, Kind


# The most bytes that a function may make of each byte that it reads. An HMM's exp of `a[:, :, None] + A` makes 32.
_GROWTH = 4
# A product with a vector does two operations per element, and batching gains nothing. With a matrix of 16 columns or
# more it does 4 per byte.
_OPERATIONS_PER_BYTE = 4
# The tanh of an additive attention makes 78 times the bytes that the next product moves; a gate at most four times.
_FEEDING_BYTES = 8
# A gate of an LSTM at (N, H) = (64, 512) makes 128 KiB per step, and 2 MiB per chunk of 16, half of a core's share of
# the last-level cache. The tanh of an attention over 200 positions makes 1.6 MiB per step.
_CACHED_BYTES = 256 << 10
# The functions of an LSTM's kept gates, 8 to 32 KiB each: batched, its training takes 0.78 to 0.86 of the time.
_LEAST_FUNCTION_BYTES = 4 << 10


# XLA writes the results of these to memory. It fuses most other operations with their readers.
_WRITTEN = frozenset(
    {Kind.PRODUCT, Kind.REDUCE, Kind.CUMULATIVE, Kind.SORT, Kind.SCATTER, Kind.LOOP, Kind.BRANCH, Kind.KERNEL}
)


def is_written(equation: Equation) -> bool:
    """Whether XLA writes the result of an equation to memory."""
    # A broadcast is fused, but not with costly operands.
    return equation.kind in _WRITTEN or equation.name in ("gather", "reduce_window", "broadcast_in_dim")


def has_transcendental(equation: Equation) -> bool:
    """Whether an equation is a function with many operations per element, or has one in its body."""
    if equation.traits.is_transcendental:
        return True
    return any(has_transcendental(inner) for body in bodies_of(equation) for inner in body)


def unbatchable(equation: Equation) -> bool:
    """Whether an equation must run step by step, because batching changes its cost or its random bits.

    So must a call, such as a function with a rule for its derivative or a linear solve, that has such an equation in a
    body.
    """
    if not equation.traits.is_batchable or has_other_keys(equation):
        return True
    if equation.kind not in (Kind.CALL, Kind.OPAQUE):
        return False
    if equation not in _have_unbatchable:
        _have_unbatchable[equation] = _has_unbatchable(equation)
    return _have_unbatchable[equation]


_have_unbatchable: WeakKeyDictionary[Equation, bool] = WeakKeyDictionary()


def _has_unbatchable(equation: Equation, harmless: tuple[Kind, ...] = (Kind.SORT,)) -> bool:
    """Whether a body of an equation has an equation that must run step by step.

    Args:
        equation: the equation.
        harmless: kinds that need not. A batched sort does no more than many, and `jnp.linalg.solve` sorts pivots. A
            scan within a step is batched with its loops, which run as often for one step as for many.
    """
    if equation.name == "rnnscan_call" or equation.name in SCANS:
        harmless = (*harmless, Kind.LOOP)
    inner = (each for jaxpr in inner_jaxprs(equation.params) for each in equations_of(jaxpr))
    return any(
        not (each.traits.is_batchable or each.kind in harmless)
        or has_other_keys(each)
        or _has_unbatchable(each, harmless)
        for each in inner
    )


def has_other_keys(equation: Equation) -> bool:
    """Whether an operation has keys of an implementation such as "rbg", which draws other bits under vmap."""
    dtypes = [atom.dtype for atom in (*equation.inputs, *equation.outputs) if hasattr(atom, "dtype")]
    return any(jnp.issubdtype(dtype, jax.dtypes.prng_key) and dtype != _threefry() for dtype in dtypes)


@cache
def _threefry() -> Any:
    """The dtype of threefry keys, which draw the same bits under vmap."""
    return jax.eval_shape(lambda: jax.random.key(0, impl="threefry2x32")).dtype


def should_batch_product(
    equation: Equation, find: Callable[[], Frontier], fixed: Collection[Value], shared: Set[Equation]
) -> bool:
    """In a loop, a product reads and packs its fixed operand at each step. At once, its result is stacked."""
    varying = [value for value in equation.reads if value not in fixed]
    if len(varying) != 1:
        return False
    moved = varying[0].nbytes + equation.outputs[0].nbytes
    if operations_of(equation) < _OPERATIONS_PER_BYTE * moved:
        return False
    if equation in shared:
        return find().largest <= _FEEDING_BYTES * moved
    most = total_bytes(value for value in equation.reads if value in fixed) - equation.outputs[0].nbytes
    return most > 0 and find().moved < most and find().largest <= _FEEDING_BYTES * moved


def should_batch_function(equation: Equation, find: Callable[[], Frontier]) -> bool:
    """A batched function uses all cores. It pays behind batched products, and for kept values of some KiB."""
    made = equation.outputs[0].nbytes
    if made > _CACHED_BYTES:
        return False
    its = find()
    follows = bool(its.materialized) and its.moved <= made
    pays = follows or _reads_kept_values(its, made)
    return pays and made <= _GROWTH * its.read and its.largest <= _FEEDING_BYTES * made


def _reads_kept_values(its: Frontier, made: int) -> bool:
    """Whether a function of some KiB reads kept values, as those of gates do: no loop or product makes them."""
    is_cheap = not its.stacked and not its.has_product and its.moved <= _GROWTH * made
    return is_cheap and made >= _LEAST_FUNCTION_BYTES


def is_cut_from_a_stack(find: Callable[[], Frontier]) -> bool:
    """Whether the parts of batched values are cut out in the batch too.

    A loop that cuts the gates of a step out of their stack is not vectorized: a ParaGRU takes 2.9 of plain's forward
    time so, and 0.92 with a stack for each gate.
    """
    its = find()
    return bool(its.materialized) and not its.moved


def is_bounded(equation: Equation, find: Callable[[], Frontier]) -> bool:
    """Whether a batched equation makes no values that are much larger than what it reads, but by a product.

    The scores of an attention are made from values that are 200 times as large as the query, for as many positions.
    """
    its, made = find(), total_bytes(equation.outputs)
    is_product = equation.kind is Kind.PRODUCT
    is_small = is_product or made <= _FEEDING_BYTES * its.read
    return is_small and its.largest <= _FEEDING_BYTES * max(made, its.read)


def too_large_to_stack(values: Iterable[Value], carry: Iterable[Value]) -> bool:
    """Whether values are much larger than a step's carry."""
    return total_bytes(values) > _FEEDING_BYTES * total_bytes(carry)


def work_of_products(equations: Iterable[Equation], fixed: Collection[Value]) -> tuple[int, int]:
    """The operations of products with operands that are the same at every step, and the bytes of these."""
    operations = matrices = 0
    for equation in equations:
        own = total_bytes(value for value in equation.reads if value in fixed)
        if own and equation.kind is Kind.PRODUCT:
            operations, matrices = operations + operations_of(equation), matrices + own
    return operations, matrices


def too_large(feeding: Sequence[Equation], moved: int) -> bool:
    """Whether one of the equations makes a value that is much larger than the bytes that move for it."""
    return any(output.nbytes > _FEEDING_BYTES * moved for equation in feeding for output in equation.outputs)
