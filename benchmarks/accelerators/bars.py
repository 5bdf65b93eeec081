"""The targets, and the figures reached."""

from collections.abc import Callable, Iterable, Mapping

from benchmarks.accelerators.choices import LONGEST_COMPILE, OWN, is_bought
from benchmarks.accelerators.figures import Figures
from benchmarks.accelerators.tables import Tables
from benchmarks.accelerators.target import UNITS, Platform
from benchmarks.bars import Bar


# workload -> row -> figures of the training step
Trained = Mapping[str, Mapping[str, Figures]]

_MIB = 2**20

LAUNCHES: tuple[tuple[tuple[str, ...], float], ...] = (
    (("lstm-small", "lstm-large", "gru-small", "gru-large"), 0.25),
    (("lstm-stack", "lstm-layer-norm", "slstm"), 0.30),
    (("attention",), 0.42),
    (("min-gru",), 0.012),
    (("lru", "rg-lru"), 0.02),
    (("mlstm",), 0.02),
)
# Of rnnscan-newton beside plain: launches on a GPU, cycles on a TPU.
NEWTON: dict[Platform, tuple[tuple[str, float], ...]] = {
    "gpu": (("para-gru", 0.01), ("para-lstm", 0.02)),
    "tpu": (("para-gru", 0.30), ("para-lstm", 0.60)),
}


def bars(platform: Platform, tables: Tables) -> list[Bar]:
    """The bars of a platform."""
    trained = tables.trained
    own = _launch_bars(trained) if platform == "gpu" else _cycle_bars(trained)
    memory = _temporary_on_gpu if platform == "gpu" else _temporary_on_tpu
    text = (
        "temporary bytes of rnnscan-all / the larger of 1.3 checkpoint and 0.35 plain"
        if platform == "gpu"
        else "temporary bytes of rnnscan-all / the larger of 1.3 checkpoint and checkpoint + 16 MiB"
    )
    found = [
        *own,
        *_newton_bars(platform, trained),
        _worst(text, trained, trained, memory, 1.0),
        _compile_bar(tables),
    ]
    return [bar for bar in found if bar is not None]


def over_plain(rows: Mapping[str, Figures]) -> float:
    """The cost of the worse of rnnscan's rows, over that of plain."""
    return max(rows[row].cost for row in OWN) / rows["plain"].cost


def over_the_cheaper(rows: Mapping[str, Figures]) -> float:
    """The same, over the cheaper of plain and checkpoint."""
    return max(rows[row].cost for row in OWN) / min(rows["plain"].cost, rows["checkpoint"].cost)


def _launch_bars(trained: Trained) -> Iterable[Bar | None]:
    for names, limit in LAUNCHES:
        yield _worst(f"launches / plain: {', '.join(names)}", trained, names, over_plain, limit)


def _cycle_bars(trained: Trained) -> Iterable[Bar | None]:
    text = "estimated cycles / the cheaper of plain and checkpoint"
    yield _worst(text, trained, trained, over_the_cheaper, 1.0)
    yield _worst("estimated cycles / plain: min-gru", trained, ("min-gru",), over_plain, 0.20)


def _newton_bars(platform: Platform, trained: Trained) -> Iterable[Bar | None]:
    for name, limit in NEWTON[platform]:
        yield _worst(f"{UNITS[platform]} of rnnscan-newton / plain: {name}", trained, (name,), _newton_cost, limit)
    names = [name for name, _ in NEWTON[platform]]
    yield _worst("temporary bytes of rnnscan-newton / plain", trained, names, _newton_temporary, 1.0)


def _newton_cost(rows: Mapping[str, Figures]) -> float:
    return rows["rnnscan-newton"].cost / rows["plain"].cost


def _newton_temporary(rows: Mapping[str, Figures]) -> float:
    return rows["rnnscan-newton"].temporary / rows["plain"].temporary


def _temporary_on_gpu(rows: Mapping[str, Figures]) -> float:
    allowed = max(1.3 * rows["checkpoint"].temporary, 0.35 * rows["plain"].temporary)
    return rows["rnnscan-all"].temporary / allowed


def _temporary_on_tpu(rows: Mapping[str, Figures]) -> float:
    checkpoint = rows["checkpoint"].temporary
    return rows["rnnscan-all"].temporary / max(1.3 * checkpoint, checkpoint + 16 * _MIB)


def _compile_bar(tables: Tables) -> Bar | None:
    found = {
        f"{name}, {row}": rows[row].compile_seconds / rows["plain"].compile_seconds
        for name, rows in tables.trained.items()
        for row in OWN
        if {"plain", row} <= rows.keys() and not is_bought(rows[row], tables.without.get(name, {}).get(row))
    }
    if not found:
        return None
    worst = max(found, key=lambda name: found[name])
    return Bar("compile time / plain, where no choice buys it (below)", found[worst], LONGEST_COMPILE, worst)


def _worst(
    text: str, trained: Trained, names: Iterable[str], figure: Callable[[Mapping[str, Figures]], float], limit: float
) -> Bar | None:
    """The bar of the worst workload."""
    needed = {"plain", "checkpoint", *OWN}
    found = {name: figure(trained[name]) for name in names if needed <= trained.get(name, {}).keys()}
    if not found:
        return None
    name = max(found, key=lambda name: found[name])
    return Bar(text, found[name], limit, name)
