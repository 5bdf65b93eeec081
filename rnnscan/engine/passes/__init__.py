"""Passes that rewrite a step's program. Each is a function from a `Program` to an equal `Program`.

The passes run in the order of the three lists: on the step in which matrix states are searched, on the forward step,
and on its vjp. A new pass is one file here and one line in a list. A pass that a platform decides about gets its
heuristics.
"""

from dataclasses import replace
from functools import partial, reduce

from rnnscan.engine.costs.heuristics import Heuristics
from rnnscan.engine.one_kernel.written_out import written_out
from rnnscan.engine.passes.concatenate_pads import concatenate_pads
from rnnscan.engine.passes.contract_sums import contract_sums
from rnnscan.engine.passes.half_powers import half_powers
from rnnscan.engine.passes.join_products import join_products
from rnnscan.engine.passes.join_sums import join_sums
from rnnscan.engine.passes.merge_products import merge_products
from rnnscan.engine.passes.outer_products import outer_products
from rnnscan.engine.passes.remove_repeats import remove_repeated_products, remove_repeats
from rnnscan.engine.passes.repeat_vectors import repeat_vectors
from rnnscan.engine.passes.scatter_into_sums import scatter_into_sums, scatter_slices
from rnnscan.engine.passes.sigmoids import sigmoids
from rnnscan.engine.passes.store_transposed import store_transposed
from rnnscan.engine.passes.sum_rows import sum_rows
from rnnscan.engine.passes.swap_products import swap_products
from rnnscan.engine.passes.wide_products import wide_products
from rnnscan.ir.program import Pass, Program


MATRIX_STATES: tuple[Pass, ...] = (outer_products,)


def forward(heuristics: Heuristics) -> tuple[Pass, ...]:
    """The passes on the forward step."""
    return (
        half_powers,
        sigmoids,
        remove_repeated_products,  # XLA could not, once join_products has made both a part of one product.
        *([written_out] if heuristics.runs_in_a_kernel else []),
        join_products,
        *([repeat_vectors] if heuristics.runs_whole and heuristics.whole else []),
    )


def backward(heuristics: Heuristics) -> tuple[Pass, ...]:
    """The passes on the vjp of a step."""
    if heuristics.runs_whole:  # JAX has written it for one loop.
        return (written_out,) if heuristics.runs_in_a_kernel else (repeat_vectors, sum_rows)
    return (
        half_powers,
        sigmoids,
        remove_repeats,
        join_sums,
        scatter_slices,
        scatter_into_sums,
        swap_products,
        wide_products,
        concatenate_pads,
        *([partial(contract_sums, machine=heuristics.machine)] if heuristics.contracts_sums else []),
        *([store_transposed] if heuristics.transpose_weights else []),
        partial(merge_products, heuristics=heuristics),
        remove_repeats,  # merge_products repeats concatenations if several sums share an x or a weight.
        join_products,
    )


def every(heuristics: Heuristics) -> dict[str, Pass]:
    """All passes by name, in the order in which the engine first runs them."""
    optional = replace(heuristics, transpose_weights=True, contracts_sums=True)
    passes = (*MATRIX_STATES, *forward(heuristics), *backward(optional), written_out)
    return {getattr(run, "func", run).__name__: run for run in passes}


def apply(passes: tuple[Pass, ...], program: Program) -> Program:
    """Run passes one after the other.

    A program whose equations were traced under several settings, such as `compute_on` in a part of the step, stays as
    it is: a pass may merge equations of two settings.
    """
    settings = {equation.origin.settings for equation in program.equations} - {None}
    return program if len(settings) > 1 else reduce(lambda program, run: run(program), passes, program)
