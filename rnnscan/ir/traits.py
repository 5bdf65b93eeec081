"""What JAX's primitives are: the one table that analyses, costs, graphs and predictions read.

A primitive that the table lacks is opaque: it runs as it is, step by step, and nothing is split or followed through it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from typing import Any, Literal

import jax
import jax.numpy as jnp


class Kind(Enum):
    """What a primitive does with the elements of its operands."""

    ELEMENTWISE = "computes each element from those at its place"
    SAME = "passes each element on, perhaps in another dtype"
    VIEW = "moves or repeats the elements of one operand"
    PART = "takes a part of one operand, at fixed places"
    JOIN = "concatenates or stacks operands"
    PRODUCT = "sums products along contracted axes"
    REDUCE = "combines the elements along axes"
    CUMULATIVE = "combines the elements up to each along an axis"
    SORT = "sorts"
    READ = "takes a part of one operand, by index"
    WRITE = "overwrites a part of one operand, by index"
    SCATTER = "overwrites, or adds to, many parts of one operand, by index"
    LOOP = "runs a body several times"
    BRANCH = "runs one of several bodies"
    CALL = "runs a body"
    KERNEL = "runs a kernel that is written by hand"
    PLACE = "says where elements lie"
    OPAQUE = "does anything else"


@dataclass(frozen=True)
class Traits:
    """The traits of a primitive.

    Attributes:
        kind: what it does with elements.
        linear: the operands in which it is linear, all of them together; None: in none, or in each alone.
        is_bilinear: whether it is linear in each of two operands alone.
        is_linear_in_integers: whether both hold for integers too. Sums and products of integers wrap around, so that
            they are exact modulo 2^n, but a quotient is rounded.
        is_transcendental: whether it takes many operations for each element.
        is_free: whether XLA's result is the operand's memory.
        is_batchable: whether it may be batched over time, its bodies aside. A vmapped cond runs all branches, and a
            vmapped while loop runs until its last row is done.
        has_one_dtype: whether operands and results of an elementwise operation have one dtype.
        derivative_reads: what JAX's derivative reads where it is not linear: operands, results or both.
    """

    kind: Kind = Kind.OPAQUE
    linear: slice | None = None
    is_bilinear: bool = False
    is_linear_in_integers: bool = True
    is_transcendental: bool = False
    is_free: bool = False
    is_batchable: bool = True
    has_one_dtype: bool = False
    derivative_reads: Literal["operands", "results", "both"] = "operands"

    @property
    def is_elementwise(self) -> bool:
        """Whether each element of the result depends on the elements at its place alone."""
        return self.kind in (Kind.ELEMENTWISE, Kind.SAME)

    @property
    def is_linear(self) -> bool:
        """Whether it is linear in all operands together."""
        return self.linear == _ALL

    def linear_in(self, operands: Sequence[bool]) -> list[bool] | None:
        """The operands in which it is linear, all of them together, with the marked ones among them.

        Args:
            operands: for each operand whether it is marked.

        Returns:
            For each operand whether it is one of them; None if it is not linear in the marked ones.
        """
        if self.is_bilinear:
            return list(operands) if operands.count(True) == 1 else None
        positions = range(len(operands))
        linear = [position in self.linear_positions(len(operands)) for position in positions]
        return linear if all(linear[position] for position in positions if operands[position]) else None

    def of(self, operands: Sequence[Any], results: Sequence[Any]) -> "Traits":
        """These traits for some dtypes of operands and results: without linearity where it does not hold for them.

        It holds up to rounding for inexact numbers, and exactly for integers of one dtype. It does not hold for
        booleans, nor for casts from complex to real numbers, and to or from integers.
        """
        if self.linear is None and not self.is_bilinear:
            return self
        positions = range(len(operands)) if self.is_bilinear else self.linear_positions(len(operands))
        dtypes = {*results, *(operands[position] for position in positions)}
        if all(jnp.issubdtype(dtype, jnp.inexact) for dtype in dtypes):
            from_complex, to_complex = (
                any(jnp.issubdtype(dtype, jnp.complexfloating) for dtype in group) for group in (operands, results)
            )
            holds = to_complex or not from_complex
        else:
            are_integers = all(jnp.issubdtype(dtype, jnp.integer) for dtype in dtypes)
            holds = self.is_linear_in_integers and are_integers and len(dtypes) == 1
        return self if holds else replace(self, linear=None, is_bilinear=False)

    def linear_positions(self, count: int) -> Sequence[int]:
        """The positions of the operands in which it is linear, all of them together, if it has so many."""
        return () if self.linear is None else range(count)[self.linear]


# Since jax 0.11 the derivatives of max and min read no result, and since 0.12 that of expm1.
_IS_0_11, _IS_0_12 = (jax.__version_info__ >= version for version in ((0, 11), (0, 12)))
_ALL = slice(None)
_FIRST, _FIRST_TWO, _FIRST_AND_THIRD, _BUT_FIRST = slice(1), slice(2), slice(0, 3, 2), slice(1, None)


def _rows() -> Iterator[tuple[Traits, str]]:
    """Traits, and the names of the primitives that have them."""
    elementwise = Traits(Kind.ELEMENTWISE, has_one_dtype=True)
    function = replace(elementwise, is_transcendental=True)
    mixed = replace(elementwise, has_one_dtype=False)
    yield replace(elementwise, linear=_ALL), "add add_any sub neg"
    yield replace(elementwise, is_bilinear=True), "mul"
    yield replace(elementwise, linear=_FIRST, is_linear_in_integers=False), "div"
    yield replace(elementwise, derivative_reads="operands" if _IS_0_11 else "both"), "max min"
    yield elementwise, "rem sign clamp nextafter square one_minus_square integer_pow floor ceil round"
    yield elementwise, "and or xor not population_count clz mulhi shift_left shift_right_logical shift_right_arithmetic"
    yield replace(function, derivative_reads="results"), "exp exp2 logistic sqrt cbrt tan tanh erf_inv"
    yield replace(function, derivative_reads="operands" if _IS_0_12 else "results"), "expm1"
    yield replace(function, derivative_reads="both"), "rsqrt bessel_i0e bessel_i1e"
    yield function, "log log2 log1p sin cos asin acos atan atan2 sinh cosh asinh acosh atanh erf erfc"
    yield function, "lgamma digamma polygamma zeta igamma igammac regularized_incomplete_beta"
    yield replace(function, has_one_dtype=False, derivative_reads="both"), "pow"
    yield mixed, "eq ne lt le gt ge eq_to le_to lt_to is_finite abs real imag conj complex"
    yield replace(mixed, linear=_BUT_FIRST), "select_n"
    same = Traits(Kind.SAME, linear=_ALL, has_one_dtype=True)
    yield same, "name"
    yield replace(same, is_free=True), "copy stop_gradient"
    yield replace(same, has_one_dtype=False), "convert_element_type"
    yield replace(same, linear=None), "reduce_precision"
    view = Traits(Kind.VIEW, linear=_ALL)
    yield view, "broadcast_in_dim transpose rev tile"
    yield replace(view, is_free=True), "reshape squeeze"
    yield Traits(Kind.PART, linear=_ALL), "slice split unstack"
    yield Traits(Kind.JOIN, linear=_ALL), "concatenate stack pad"
    yield Traits(Kind.PRODUCT, is_bilinear=True), "dot_general conv_general_dilated"
    yield Traits(Kind.REDUCE, linear=_ALL), "reduce_sum"
    yield Traits(Kind.REDUCE, derivative_reads="both"), "reduce_max reduce_min"
    yield Traits(Kind.REDUCE), "reduce_prod reduce_and reduce_or reduce_xor argmax argmin"
    yield Traits(Kind.CUMULATIVE, linear=_ALL), "cumsum"
    yield Traits(Kind.CUMULATIVE), "cumprod cummax cummin cumlogsumexp"
    yield Traits(Kind.SORT, is_batchable=False), "sort"
    yield Traits(Kind.SORT), "top_k"
    yield Traits(Kind.READ, linear=_FIRST), "gather dynamic_slice"
    yield Traits(Kind.WRITE, linear=_FIRST_TWO), "dynamic_update_slice"
    yield Traits(Kind.SCATTER, linear=_FIRST_AND_THIRD), "scatter scatter-add scatter-sub"
    yield Traits(Kind.SCATTER), "scatter-mul"
    yield Traits(Kind.SCATTER, derivative_reads="both"), "scatter-min scatter-max"
    yield Traits(Kind.LOOP, is_batchable=False), "scan while"
    yield Traits(Kind.BRANCH, is_batchable=False), "cond"
    yield Traits(Kind.CALL), "jit closed_call remat2 custom_jvp_call"
    yield Traits(Kind.CALL), " ".join(("rnnscan_call", *SCANS))
    yield Traits(Kind.CALL, is_batchable=False), "custom_vjp_call"
    yield Traits(Kind.KERNEL, is_batchable=False), "pallas_call"
    yield Traits(Kind.PLACE, linear=_ALL), "sharding_constraint reshard pvary pcast"
    yield Traits(linear=_ALL), "psum psum_invariant"
    yield Traits(is_free=True), "optimization_barrier"
    # The rules of other factors read what is not a result: `cholesky` the result without its upper triangle.
    yield Traits(derivative_reads="results"), "qr"
    yield Traits(derivative_reads="both"), "triangular_solve"
    yield from ((Traits(), names) for names in _OPAQUE)


# Scans of rnnscan within a step.
SCANS = frozenset({"rnnscan_scan", "rnnscan_joint_scan", "rnnscan_linear_scan", "rnnscan_cotangent_scan"})
# They are batched over time, and do what no kind above says.
_OPAQUE = (
    "random_bits random_clone random_fold_in random_gamma random_seed random_split random_unwrap random_wrap",
    "threefry2x32 igamma_grad_a random_gamma_grad",
    "iota empty bitcast_convert_type to_edtype from_edtype",
    "reduce reduce_window reduce_window_max reduce_window_min reduce_window_sum",
    "select_and_gather_add select_and_scatter select_and_scatter_add approx_top_k fft ragged_dot_general",
    "cholesky cholesky_update eig eigh hessenberg householder_product geqrf geqp3 ormqr lu lu_pivots_to_permutation",
    "schur svd symmetric_product tridiagonal tridiagonal_solve custom_linear_solve",
    "bcoo_dot_general bcoo_extract bcoo_fromdense bcoo_todense bcoo_transpose bcsr_dot_general bcsr_fromdense",
    "all_gather all_gather_invariant all_to_all axis_index pmax pmin ppermute reduce_scatter",
    "composite device_put dimension_size layout_constraint platform_index shard_map",
    "rnnscan_matrix_states",
)


TRAITS: Mapping[str, Traits] = {name: traits for traits, names in _rows() for name in names.split()}
_UNKNOWN = Traits(is_batchable=False)


def names_of(*kinds: Kind) -> list[str]:
    """The names of the primitives of some kinds."""
    return [name for name, traits in TRAITS.items() if traits.kind in kinds]


def traits_of(name: str) -> Traits:
    """The traits of a primitive, by its name."""
    return TRAITS.get(name, _UNKNOWN)


@cache
def traits_for(name: str, operands: tuple[Any, ...], results: tuple[Any, ...]) -> Traits:
    """The traits of a primitive, by its name, for operands and results of some dtypes."""
    return traits_of(name).of(operands, results)
