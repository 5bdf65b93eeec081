"""Run a call with a type of JAX's high level in its carry, inputs or outputs: by one plain `lax.scan`."""

from functools import partial
from typing import Any

from jax import lax

from rnnscan import _checks as checks
from rnnscan._util.high_types import HighTypeError, high_type_reason
from rnnscan._util.sources import named_after
from rnnscan.engine.call.route import refuse_fission, refuse_parallel
from rnnscan.protocols import Cell, check_cell
from rnnscan.scan_observer import plans_are_observed


# The options of `scan` that run the cell on other values than its arguments, which must be arrays.
_NEED_ARRAYS = ("seq_lengths", "mask", "reset", "reset_to", "truncate", "key")


def run_plain(cell: Any, arrays: dict[str, Any], options: dict[str, Any], reason: str) -> tuple[Any, Any]:
    """Run a call of `scan`.

    Args:
        cell: the cell.
        arrays: `params`, `carry`, `xs` and other arguments of `scan` that hold arrays.
        options: the others.
        reason: why no other engine can.

    Returns:
        The final carry and the stacked y.

    Raises:
        ValueError: if an option cannot be honored.
        HighTypeError: if a report wants the plan of the call, which has none.
    """
    if plans_are_observed():
        raise HighTypeError(reason)
    check_cell("scan", cell, Cell)
    checks.check_params(arrays["params"])
    checks.check_reverse("scan", options["reverse"])
    checks.check_options(**{name: options[name] for name in ("memory", "unroll", "truncate", "padding", "engine")})
    _check_options({**arrays, **options}, reason)
    xs = arrays["xs"] if high_type_reason(xs=arrays["xs"]) else checks.as_arrays(arrays["xs"], "xs")
    length = steps_of(xs, options["length"])

    def step(carry: Any, x: Any) -> tuple[Any, Any]:
        return checks.pair(cell(arrays["params"], carry, x))

    scan = partial(lax.scan, length=length, reverse=options["reverse"], unroll=options["unroll"])
    final, ys = scan(named_after(step, cell), arrays["carry"], xs)
    return final, ys


def _check_options(options: dict[str, Any], reason: str) -> None:
    refuse_parallel(options["parallel"], reason)
    if options["engine"] == "fission":
        refuse_fission(reason)
    memory = options["memory"]
    if memory is not None and memory.asks_to_recompute:
        raise ValueError(
            f"scan: such a call has plain autodiff, because {reason}; got {memory!r}. Leave out `recompute`, `segment` "
            "and `offload`, or close over the value."
        )
    for name in _NEED_ARRAYS:
        if options.get(name) is not None:
            raise ValueError(
                f"scan: `{name}` needs arrays, but {reason}. Leave it out, or close over the value, or pass it in "
                "`params`."
            )


def steps_of(xs: Any, length: Any) -> Any:
    """The number of steps, of arrays or of `length`: JAX reads it from no other type."""
    reason = high_type_reason(xs=xs)
    if reason and length is None:
        raise ValueError(f"scan: the number of steps must be known, but {reason}. Pass `length`.")
    return checks.sequence_length(None if reason else xs, length)
