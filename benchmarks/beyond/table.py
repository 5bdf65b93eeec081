"""The table of uses, and its page."""

from collections.abc import Mapping

from benchmarks.bars import Bar
from benchmarks.beyond import bars as limits
from benchmarks.beyond.rows import DESCRIPTIONS
from benchmarks.beyond.uses import USES
from benchmarks.machine import LOAD_UNKNOWN, with_condition
from benchmarks.result import Result
from benchmarks.table import BAR_HEADINGS, bar_rows, markdown_table
from rnnscan._util.byte_sizes import readable_bytes


USE_HEADINGS = (
    "use",
    "plain ms",
    "training",
    "/ checkpoint",
    "forward",
    "temporary",
    "bytes",
    "all",
    "compile",
    "by hand",
)

INTRODUCTION = """\
# Benchmarks beyond RNNs

Uses of `lax.scan` that are no RNN, each as a function `(params, carry, x) -> (carry, y)` without names. The loss is
the sum of the mean squares of all outputs and of the last carry; params, carry and inputs get gradients. All rows of a
use run in one process and take turns; times are the median over the rounds of the ratio within a round.

| column | meaning |
| --- | --- |
| training | loss and gradients: `rnnscan`'s time over that of the faster of `plain` and `checkpoint` |
| / checkpoint | the same over that of `checkpoint`, which keeps inputs and carries |
| forward | the loss: `rnnscan`'s time over that of `plain` |
| temporary | XLA's peak for the training step besides arguments and results: `rnnscan`'s over `checkpoint`'s |
| bytes | that peak of `rnnscan` |
| all | that peak with `Memory(recompute="all")` over `checkpoint`'s; it has a bar |
| compile | the time to trace and compile the training step: `rnnscan`'s over `plain`'s |
| by hand | training time: `rnnscan`'s over that of the chunkwise form by hand |

`!` marks a figure above its bar. Before the timing, all rows gave the same loss and gradients, to rounding."""


def use_rows(results: Mapping[str, Result]) -> list[tuple[str, ...]]:
    """The cells of the table, a tuple a use, in the order of `USE_HEADINGS`."""
    return [
        (
            name,
            f"{result.train_milliseconds('plain'):.1f}",
            _marked(limits.beside_the_faster(result), limits.TRAINING),
            f"{result.train_ratio('rnnscan', 'checkpoint'):.2f}",
            _marked(result.forward_ratio("rnnscan"), limits.FORWARD),
            _marked(result.temporary_ratio("rnnscan", "checkpoint"), None),
            readable_bytes(result.runners["rnnscan"].temporary or 0),
            _marked(
                result.temporary_ratio("rnnscan-all", "checkpoint"),
                limits.TEMPORARY,
                met=(limits.temporary_of_allowed(result) or 0) <= 1,
            ),
            _marked(result.compile_ratio("rnnscan"), limits.COMPILE),
            f"{result.train_ratio('rnnscan', 'chunkwise'):.2f}" if "chunkwise" in result.train else "",
        )
        for name, result in results.items()
    ]


def load_note(results: Mapping[str, Result]) -> str:
    """A note on the other programs that ran meanwhile."""
    shares = {name: result.others for name, result in results.items() if result.others is not None}
    if not shares:
        return LOAD_UNKNOWN
    busy = [name for name in shares if results[name].busy]
    verdict = f" That is too much for reliable times in {len(busy)} of {len(results)} uses." if busy else ""
    return f"Other programs took at most {100 * max(shares.values()):.0f} % of the processors.{verdict}"


def make_page(results: Mapping[str, Result], bars: list[Bar], *, machine: Mapping[str, str], command: str) -> str:
    """The page in Markdown."""
    parts = [
        with_condition(INTRODUCTION, machine, load_note(results)),
        "\n".join(f"- {heading}: {text}" for heading, text in machine.items()),
        f"Made by `{command}`.",
        markdown_table(("row", "meaning"), [(f"`{row}`", text) for row, text in DESCRIPTIONS.items()]),
        "## Results",
        markdown_table(USE_HEADINGS, use_rows(results)),
        "## Uses",
        markdown_table(("use", "meaning"), [(name, USES[name].description) for name in results]),
        "## Targets",
        markdown_table(BAR_HEADINGS, bar_rows(bars)),
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _marked(value: float | None, limit: float | None, *, met: bool | None = None) -> str:
    if value is None:
        return ""
    is_met = limit is None or value <= limit if met is None else met
    return f"{value:.2f}" + ("" if is_met else " !")
