"""The page of the documentation."""

from collections.abc import Callable, Iterator, Mapping
from textwrap import fill

from benchmarks.accelerators.bars import bars, over_plain, over_the_cheaper
from benchmarks.accelerators.choices import IN_WORDS, LEAST_BOUGHT, LONGEST_COMPILE, OWN, is_bought
from benchmarks.accelerators.figures import Figures
from benchmarks.accelerators.tables import NOT_COMPILED, Tables
from benchmarks.accelerators.target import TITLES, UNITS, Platform
from benchmarks.accelerators.workloads import ALL, offloaded_bytes
from benchmarks.bars import Bar
from benchmarks.table import BAR_HEADINGS, bar_rows, markdown_table
from rnnscan._util.byte_sizes import readable_bytes


ROWS = ("plain", "checkpoint", "segments", "associative-scan", *OWN, "rnnscan-newton")
DESCRIPTIONS = {
    "plain": "`lax.scan` over the cell, differentiated by JAX",
    "checkpoint": "the same with `jax.checkpoint` on the body of the scan",
    "segments": "two nested `lax.scan` of sqrt(T) steps each, the inner one under `jax.checkpoint`",
    "associative-scan": "linear cells by hand: `lax.associative_scan` over all steps",
    "rnnscan": "`rs.scan` with `Memory()`: every name is kept",
    "rnnscan-all": '`rs.scan` with `Memory(recompute="all")`: no name is kept',
    "rnnscan-offload": "`rs.scan` with `Memory(offload=...)`: every name is kept in host memory",
    "rnnscan-newton": "`rs.scan` with `parallel=Newton(max_iterations=5)`, of which each chunk takes all 5",
}

INTRODUCTION = """\
# Accelerators

**Nothing on this page has run.** XLA compiled each program for a described NVIDIA H200 and a described TPU v5e, on a
machine that has neither. Launches and bytes are counts. Cycles are the estimate of the TPU's compiler. None of them is
a time, and no speed follows from them. `make accelerators` makes this page, also on a machine without a GPU. With
a device it adds measured times.

On a GPU a small recurrent step is bound by latency: each kernel takes 1 to 2 µs however little it does. So the number
of launches is the first thing to look at. On a TPU a loop costs little, and the estimate shows where elementwise work
and the traffic of stacks go.

A training step computes the sum of squares of all outputs, and its gradient for parameters and inputs. Figures of all
rows but `plain` are relative to `plain`, unless they have a unit."""

READING = {
    "gpu": """\
- A launch is an instruction of the optimized program that runs a kernel. Those of a loop count once a trip.
- XLA compiled without a device, so it tuned no kernel. On a device it may choose other kernels for products, such as
  those of cuBLAS, and other splits of their sums.
- Command buffers are off, because each launch shall be an instruction. With them (CUDA graphs) a launch costs less.
- The test of each loop's condition and what the host does are not counted.
- Where Newton's method solves a chunk, nothing of it runs step by step, and that branch is not counted.""",
    "tpu": """\
- The cycles are the sum of the estimates that the compiler writes beside instructions, times the trips of their loops.
  An instruction without an estimate counts nothing. Most of those are asynchronous copies.
- The estimate is for one instruction at a time. It contains no overhead of loops, and no overlap.
- Products of float32 run in bfloat16 by JAX's default precision on a TPU.
- Temporary bytes are those in HBM. Small workloads fit into VMEM, and then need none.""",
}

OFFLOADING = """\
`Memory(offload=...)` with all names, in temporary bytes of a training step. "Reported" is what `rs.memory_report` says
before anything is compiled. The values of a chunk of steps move at once."""

COMPILING = "Of one compilation each, of all threads."

BOUGHT = """\
Training steps that take more than {longest} of plain's time to compile, and what they take without the choices that
make them so: {without}. The time is bought where the step has at least {least} times the {unit} without them."""

MODEL = """\
### Modeled time

A model, no measurement. Each launch takes the longest of three: 1.1 to 1.7 µs (published for the launches of a plain
`lax.scan`, FlashRNN, Pöppel et al. 2024), its bytes at 4.8 TB/s, and its products at 494 TFLOP/s in TensorFloat-32 or
989 in bfloat16. Milliseconds of a training step, with the shortest and the longest launch."""


def make_page(tables: Mapping[Platform, Tables]) -> str:
    """The page in Markdown."""
    parts = [INTRODUCTION, _described(), *_bar_parts(tables)]
    for platform, of in tables.items():
        parts += _platform_parts(platform, of)
    parts += [
        "## Workloads",
        markdown_table(("workload", "meaning"), [(f"`{name}`", ALL[name].title) for name in ALL]),
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _described() -> str:
    return markdown_table(("row", "meaning"), [(f"`{row}`", text) for row, text in DESCRIPTIONS.items()])


def _bar_parts(tables: Mapping[Platform, Tables]) -> Iterator[str]:
    yield "## Targets"
    yield "Of a training step, for the worse of `rnnscan` and `rnnscan-all`. Compile times are those of processors."
    for platform, of in tables.items():
        yield f"### {TITLES[platform]}: targets"
        found = bars(platform, of)
        yield markdown_table(BAR_HEADINGS, [_bar_row(*both) for both in zip(bar_rows(found), found, strict=True)])


def _bar_row(row: tuple[str, ...], bar: Bar) -> tuple[str, ...]:
    """The row of a bar. Small figures have as many digits as their limits need."""
    return (row[0], f"{bar.figure:.4f}" if bar.limit < 0.1 else row[1], f"{bar.limit:g}", *row[3:])


def _platform_parts(platform: Platform, tables: Tables) -> Iterator[str]:
    trained, forward, unit = tables.trained, tables.forward, UNITS[platform]
    yield f"## {TITLES[platform]}"
    blank = " Blank figures of rnnscan have not been compiled with this version." if tables.is_incomplete else ""
    yield f"{tables.versions}.{blank}"
    yield READING[platform]
    yield f"### Training step: {unit}"
    if platform == "tpu":
        yield '"of the cheaper" is the worse of rnnscan and rnnscan-all, over the cheaper of plain and checkpoint.'
    yield _cost_table(trained, platform)
    yield f"### Forward pass: {unit}"
    yield _cost_table(forward, platform, best=False)
    yield "### Temporary bytes of a training step"
    yield _table(trained, _bytes)
    yield from _offloading_parts(trained)
    if platform == "gpu":
        yield MODEL
        yield _table(trained, _milliseconds)
    yield from _measured_parts(tables)
    yield "### Seconds of processors to trace and compile a training step"
    yield COMPILING
    yield _table(trained, lambda one, plain: f"{one.compile_seconds:.1f}")
    yield from _bought_parts(platform, tables)
    yield "### Loops and operations"
    yield f"Trips and {unit} of a trip, inner loops in parentheses. Below: what costs most in a training step."
    yield from (_details(name, rows, unit) for name, rows in trained.items() if rows)
    failed = [
        f"- `{name}`, {row}: {both.trained}"
        for name, rows in tables.rows.items()
        for row, both in rows.items()
        if isinstance(both.trained, str) and both.trained != NOT_COMPILED
    ]
    if failed:
        yield "These do not compile:\n\n" + "\n".join(failed)


def _cost_table(programs: Mapping[str, Mapping[str, Figures]], platform: Platform, *, best: bool = True) -> str:
    shown = _shown(programs)
    headings = ["workload", "plain", "a step", *shown[1:], "own a step"]
    if best and platform == "tpu":
        headings.append("of the cheaper")
    lines = []
    for name, rows in programs.items():
        if not {"plain", "checkpoint", *OWN} <= rows.keys():
            continue
        plain, steps = rows["plain"].cost, ALL[name].shape.time
        line = [f"`{name}`", f"{plain:,}", _a_step(plain / steps)]
        line += [f"{rows[row].cost / plain:.3f}" if row in rows else "" for row in shown[1:]]
        line.append(_a_step(over_plain(rows) * plain / steps))
        if best and platform == "tpu":
            line.append(f"{over_the_cheaper(rows):.2f}")
        lines.append(tuple(line))
    return markdown_table(headings, lines)


def _table(programs: Mapping[str, Mapping[str, Figures]], text: Callable[[Figures, Figures], str]) -> str:
    shown = _shown(programs)
    lines = [
        (f"`{name}`", *(text(rows[row], rows["plain"]) if row in rows else "" for row in shown))
        for name, rows in programs.items()
        if "plain" in rows
    ]
    return markdown_table(("workload", *shown), lines)


def _shown(programs: Mapping[str, Mapping[str, Figures]]) -> list[str]:
    found = [row for row in ROWS if any(row in rows for rows in programs.values())]
    return [row for row in found if row != "segments"]  # One workload has it; its details show it.


def _a_step(value: float) -> str:
    return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def _bytes(one: Figures, plain: Figures) -> str:
    of_plain = f" ({one.temporary / plain.temporary:.2f})" if plain.temporary and one is not plain else ""
    return readable_bytes(one.temporary) + of_plain


def _milliseconds(one: Figures, plain: Figures) -> str:
    assert one.modelled is not None
    low, high = (1000 * seconds for seconds in one.modelled)
    return f"{low:.3g} to {high:.3g}"


def _offloading_parts(trained: Mapping[str, Mapping[str, Figures]]) -> Iterator[str]:
    found = {name: rows for name, rows in trained.items() if {"rnnscan", "rnnscan-offload"} <= rows.keys()}
    if not found:
        return
    yield "### Offloading"
    yield OFFLOADING
    lines = []
    for name, rows in found.items():
        kept, moved = rows["rnnscan"], rows["rnnscan-offload"]
        sizes = (offloaded_bytes(name), moved.host, kept.temporary, moved.temporary)
        lines.append((f"`{name}`", *map(readable_bytes, sizes)))
    yield markdown_table(("workload", "host, reported", "host", "device, `rnnscan`", "device, offloaded"), lines)


def _measured_parts(tables: Tables) -> Iterator[str]:
    measured = {
        name: {row: both for row, both in rows.items() if both.measured is not None}
        for name, rows in tables.rows.items()
    }
    if not any(measured.values()):
        return
    yield "### Measured"
    yield "Milliseconds of a training step, and the model's error: the middle of the model over the measurement."
    lines = []
    for name, rows in measured.items():
        for row, both in rows.items():
            milliseconds = 1000 * (both.measured or 0)
            modelled = None if isinstance(both.trained, str) else both.trained.modelled
            error = f"{500 * sum(modelled) / milliseconds:.2f}" if modelled else ""
            lines.append((f"`{name}`", row, f"{milliseconds:.3f}", error))
    yield markdown_table(("workload", "row", "ms", "model / measured"), lines)


def _bought_parts(platform: Platform, tables: Tables) -> Iterator[str]:
    if not tables.without:
        return
    unit = UNITS[platform]
    text = BOUGHT.format(longest=LONGEST_COMPILE, unit=unit, without=IN_WORDS[platform], least=LEAST_BOUGHT)
    yield fill(text, 120)
    headings = (
        "workload",
        "row",
        "compile / plain",
        f"{unit} / plain",
        "compile, without",
        f"{unit}, without",
        "bought",
    )
    lines = []
    for name, of in tables.without.items():
        plain = tables.trained[name]["plain"]
        for row, without in of.items():
            one = tables.trained[name][row]
            ratios = [
                f"{ratio:.{digits}f}"
                for figures in (one, without)
                for ratio, digits in (
                    (figures.compile_seconds / plain.compile_seconds, 2),
                    (figures.cost / plain.cost, 3),
                )
            ]
            lines.append((f"`{name}`", row, *ratios, "yes" if is_bought(one, without) else "no"))
    yield markdown_table(headings, lines)


def _details(name: str, rows: Mapping[str, Figures], unit: str) -> str:
    """A workload's loops and operations, folded."""
    loops = markdown_table(
        ("row", "loops", unit), [(f"`{row}`", one.loops or "none", f"{one.cost:,}") for row, one in rows.items()]
    )
    parts = [f'<details markdown="1">\n<summary>{name}</summary>', loops]
    for row in ("plain", "rnnscan-all"):
        if row in rows:
            operations = rows[row].operations[:8]
            lines = [(f"{one.cost:,}", f"`{one.type}`", f"`{_short(one.origin)}`") for one in operations]
            parts.append(f"`{row}`:")
            parts.append(markdown_table((unit, "what", "where"), lines))
    return "\n\n".join([*parts, "</details>"])


def _short(origin: str) -> str:
    """The end of a JAX operation's place, without the names of the benchmark's own functions."""
    return origin.replace("jit(loss)/", "").replace("closed_call/", "").replace("jit(dynamic_update_index_in_dim)/", "")
