"""Compare many random cells: `PYTHONPATH=tests:tests/support python -m fuzz --count 5000`."""

import traceback
import warnings
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Annotated

import conftest  # noqa: F401  It sets the flags of XLA, before JAX makes its backend.
import jax
import typer
from tqdm import tqdm

from fuzz.compare import Comparison, UnequalError, check
from fuzz.many_rows import check_rows
from fuzz.orders import RefusedError, check_order
from fuzz.planted import PlantedCase, check_planted
from fuzz.programs import changed
from fuzz.programs import programs as programs_of
from fuzz.random_cells import FEATURES, Case


# What is compiled is used once, and would fill the memory.
CELLS_BETWEEN_CLEARING = 200


def main(
    start: Annotated[int, typer.Option(help="The first seed.")] = 0,
    count: Annotated[int, typer.Option(help="How many seeds.", min=1)] = 1_000,
    platform: Annotated[
        list[str] | None, typer.Option(help="Whose choices the engine makes; may be repeated. None: as drawn.")
    ] = None,
    orders: Annotated[bool, typer.Option(help="Run each cell under a random order of transformations.")] = False,
    rows: Annotated[bool, typer.Option(help="Run cells with a product and a sum for each of many rows.")] = False,
    planted: Annotated[bool, typer.Option(help="Plant NaN, inf and overflows in the arguments.")] = False,
    programs: Annotated[
        Path | None,
        typer.Option(help="Compare the cells' programs with those of this file, or write it. Runs nothing."),
    ] = None,
    show: Annotated[bool, typer.Option(help="Show each cell, and where each failure comes from.")] = False,
) -> None:
    """Run random cells by the fission engine and plainly; show which seeds differ, and what the cells had."""
    warnings.simplefilter("error")
    if programs is not None:
        _compare_programs(range(start, start + count), programs)
        return
    counts: Counter[str] = Counter()
    failed = []
    for seed in tqdm(range(start, start + count), unit="cell", disable=show):
        if show and not rows:
            _show(PlantedCase if planted else Case, seed)
        try:
            if rows:
                counts.update(check_rows(seed))
            elif orders:
                counts.update(check_order(seed))
            else:
                counts.update((check_planted if planted else check)(seed, platform or ()))
        except RefusedError:
            counts["refused"] += 1
        except UnequalError as error:
            failed.append(seed)
            tqdm.write(str(error))
            if show:
                traceback.print_exception(error)
        if (seed - start) % CELLS_BETWEEN_CLEARING == CELLS_BETWEEN_CLEARING - 1:
            jax.clear_caches()
    for feature in [*counts] if orders or rows or planted else FEATURES:
        print(f"{counts[feature]:6}  {feature}")
    print(f"{count - len(failed)} of {count} cells are equal." + (f" Not: {failed}" if failed else ""))
    if failed:
        raise typer.Exit(1)


def _compare_programs(seeds: range, file: Path) -> None:
    found = dict(chain.from_iterable(map(programs_of, tqdm(seeds, unit="cell"))))
    different = changed(found, file)
    for name in different:
        print(f"changed: {name}")
    print(f"{len(found) - len(different)} of {len(found)} programs are those of {file}.")
    if different:
        raise typer.Exit(1)


def _show(kind: type[Case], seed: int) -> None:
    with jax.enable_x64(True):
        case = kind.of(seed)
        print(f"seed {seed}: length {case.length}, batch {case.batch}, unroll {case.unroll}, {case.memory}")
        print(f"options {case.rows | case.order}\ncarry {case.kinds}\nfeatures {sorted(Comparison(case).features)}")
        arguments = case.arguments
        x = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), arguments["xs"])
        print(jax.make_jaxpr(case.cell(arguments["closed"]))(arguments["params"], arguments["carry"], x))


if __name__ == "__main__":
    typer.run(main)
