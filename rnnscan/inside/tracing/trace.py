"""trace(): the values inside of scans, and their cotangents."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jaxtyping import Array

from rnnscan._util.messages import describe_tree, is_float
from rnnscan._util.zeros import zeros_of_value
from rnnscan.inside.tracing.recorder import Choice, Recorder, ScanFacts, Traced
from rnnscan.inside.tracing.result import Trace, ValueFacts
from rnnscan.inside.tracing.selection import check_memory, chosen_paths, chosen_rows, chosen_steps
from rnnscan.inside.tracing.sites import Site, paths_of
from rnnscan.inside.tracing.subjects import Subject, no_scan, subject_of
from rnnscan.inside.tracing.traced_scan import run_traced


def trace(
    cell: Any,
    *arguments: Any,
    names: Sequence[str] | str | None = None,
    steps: Iterable[int] | int | None = None,
    rows: Iterable[int] | int | None = None,
    loss: Callable[[Any], Array] | None = None,
    **options: Any,
) -> Trace:
    """Show the values inside of scans: named ones, carries and outputs; with `loss`, their cotangents too.

    These calls are traced:

    - a cell: `trace(cell, params, carry, xs)`, with the options of `scan`;
    - a net: `trace(net, params, xs, carry=None)`, with the options of its call;
    - a function that runs scans, nets or `recurrent_net`: `trace(function, *arguments)`;
    - a module of Flax linen: `trace(module, variables, inputs)`, or of nnx: `trace(module, inputs)`.

    The call runs as it would without `trace`, with its padding, resets and memory choice. Each value is stacked over
    the steps, in the order of the inputs: `(T, ...)`, or `(len(steps), ...)`. Only the chosen values, steps and rows
    are stored. It works under `jax.jit` and `jax.vmap`, and compiles at each call outside of `jax.jit`.

    A path names a value: the parts of nets and cells, as in the parameters, and the name: `"net_0/layer_1/gates"`. Each
    scan also has `"carry"`, after each step, and `"y"`. The leaves of a pytree have their places, `"carry[0]"`, and so
    have several values of one name, `"gates[1]"`. Where a function runs several scans, the path has their order,
    `"scan_1/gates"`. Inner scans have one axis more, `"scan/gates"` `(T, T_inner, ...)`.

    At a padded step, names and y are zero, as far as they have rows, and the carry is held, as `padding` says. The
    cotangent of a value is the gradient of the loss with respect to it: that of a carry counts all later steps, but not
    the output of its own step, even where that is the same number.

    Args:
        cell: a cell, a net, a function that runs scans, or a module of Flax.
        arguments: its arguments.
        names: the values to store, by path or by the end of a path. A name that several cells have means all of them,
            as in `Memory`. None: all.
        steps: the steps of the outermost scans to store, from 0 to T - 1; None: all.
        rows: the rows of the batch to store, from 0 to N - 1; None: all. Values whose first axis is not that of the
            rows are stored whole.
        loss: a function of the results, `(carry, ys)` for a cell or a net, that returns a scalar; None: no cotangents.
        options: the other arguments of the call, by name.

    Returns:
        A `Trace`: a mapping from paths to arrays. `cotangents` has the same paths. `summary()` is a table, and `draw()`
        a picture.

    Raises:
        TypeError: if an argument has a wrong type, or the call does not take an option.
        ValueError: if nothing has one of the names, a step or row is out of range, the loss is not a scalar, the
            function runs no scan, or the values need more memory than the machine has.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import rnnscan as rs
        >>> cell, xs = rs.cells.LSTM(4), jnp.ones((6, 2, 3))  # six steps, two rows, three features
        >>> params = cell.init(jax.random.key(0), input_size=3)
        >>> carry, loss = cell.initial_carry(xs[0]), lambda results: results[1].sum()
        >>> trace = rs.trace(cell, params, carry, xs, names=("gates", "carry"), loss=loss)
        >>> {path: value.shape for path, value in trace.items()}
        {'gates': (6, 2, 16), 'carry[0]': (6, 2, 4), 'carry[1]': (6, 2, 4)}
        >>> trace.cotangents["gates"].shape
        (6, 2, 16)
    """
    subject = subject_of(cell, arguments, options)
    survey = _survey(subject)
    chosen = chosen_paths(names, survey.paths, survey.untraced)
    sites = [survey.paths[path] for path in chosen]
    steps, rows = chosen_steps(steps, survey.scans), chosen_rows(rows, survey.scans)
    if loss is not None:
        _check_loss(loss, survey.results)
    recorder = Recorder(Choice(frozenset(sites), steps, rows, loss is not None), run_traced)
    arrays = subject.arrays()
    traced = recorder.trace(subject.of_arrays, *arrays)

    def run(consts: Sequence[Any], arrays: Sequence[Any]) -> tuple[list[Any], list[Any], Any]:
        if loss is None:
            _, values, _ = traced.run(arrays, consts=consts)
            return [values[site] for site in sites], [None] * len(sites), None
        zeros = _zeros(traced, consts, arrays)

        def loss_of(added: Sequence[Any]) -> tuple[Any, list[Any]]:
            results, values, _ = traced.run(arrays, dict(zip(zeros, added, strict=True)), consts=consts)
            return loss(results), [values[site] for site in sites]

        (value, chosen), cotangents = jax.value_and_grad(loss_of, has_aux=True)([*zeros.values()])
        by_site = dict(zip(zeros, cotangents, strict=True))
        return chosen, [by_site.get(site) for site in sites], value

    with jax.disable_jit(False):
        types = jax.eval_shape(run, traced.closed.consts, arrays)
        most = max(scan.length for scan in survey.scans)
        check_memory(
            dict(zip(chosen, types[0], strict=True)), most if steps is None else len(steps), 1 + (loss is not None)
        )
        values, cotangents, value = jax.jit(run)(traced.closed.consts, arrays)
    ranks, reversed_scans = recorder.ranks(), {scan.levels for scan in survey.scans if scan.reverse}
    return Trace(
        arrays=tuple(values),
        cotangent_arrays=tuple(cotangents),
        loss=value,
        subject=subject.words,
        steps=tuple(range(most)) if steps is None else steps,
        rows=rows,
        facts=tuple(
            (path, ValueFacts(site.kind, ranks[_inner(site)], site.levels[:1] in reversed_scans))
            for path, site in zip(chosen, sites, strict=True)
        ),
        reasons=tuple(survey.untraced.items()),
    )


def _zeros(traced: Traced, consts: Sequence[Any], arrays: Sequence[Any]) -> dict[Site, Any]:
    """What is added to the values of sites, without a run of the function, whose effects happen once."""
    sites = list[Site]()

    def zeros(consts: Sequence[Any], arrays: Sequence[Any]) -> list[Any]:
        _, _, zeros = traced.run(arrays, consts=consts)
        sites[:] = zeros
        return [*zeros.values()]

    types = jax.make_jaxpr(zeros)(consts, arrays).out_avals
    return {site: zeros_of_value(aval) for site, aval in zip(sites, types, strict=True)}


def _inner(site: Site) -> Site:
    return Site(**{**vars(site), "repeats": site.repeats[:-1]})


@dataclass(frozen=True)
class _Survey:
    """What a trace of the call tells, before anything is computed.

    Attributes:
        paths: the sites by path.
        untraced: by path, why a value cannot be traced.
        scans: the outermost scans.
        results: the types of the results.
    """

    paths: dict[str, Site]
    untraced: dict[str, str]
    scans: list[ScanFacts]
    results: Any


def _survey(subject: Subject) -> _Survey:
    recorder, sites = Recorder(Choice(), run_traced), list[Site]()
    arrays = subject.arrays()
    traced = recorder.trace(subject.of_arrays, *arrays)
    if not recorder.scans:
        raise no_scan(subject.words)

    def run(*arrays: Any) -> Any:
        results, values, _ = traced.run(arrays)
        sites[:] = values
        return results

    results = jax.eval_shape(run, *arrays)
    paths = paths_of([*sites, *recorder.untraced])
    untraced = {path: recorder.untraced[site] for path, site in paths.items() if site in recorder.untraced}
    return _Survey(
        {path: site for path, site in paths.items() if path not in untraced}, untraced, recorder.scans, results
    )


def _check_loss(loss: Any, results: Any) -> None:
    if not callable(loss):
        raise TypeError(f"trace: `loss` must be a function of the results; got {loss!r}.")
    value = jax.eval_shape(loss, results)
    if not hasattr(value, "shape") or value.shape != () or not is_float(value):
        raise ValueError(
            f"trace: `loss` must return a floating scalar, of the results {describe_tree(results)}; got "
            f"{describe_tree(value)}. Take a mean or a sum."
        )
