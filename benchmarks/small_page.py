"""The page of small loops, with a section for each version of jax and choice of the flag."""

import re

from benchmarks.small_uses import FLAG


PAGE = f"""\
# Benchmarks of small loops

Small loops of a CPU by plain `lax.scan` and by rnnscan: `make bench-small`. [Small loops](small_loops.md) explains the
figures. All programs of a row take turns in one process, and times are medians of processor time. "training" is the
sum of the outputs with its gradient by the parameters. "ratio" is rnnscan's time of plain's, the median over the
rounds, and "compile" the same for tracing and compiling both. "kernels" says how many loops of rnnscan's training step
are one kernel. Before the timing, values and gradients were equal to rounding. Log likelihoods beside other libraries
are in float64, the rest in float32.
The flag is `XLA_FLAGS={FLAG}`.
"""


def with_section(page: str, title: str, section: str) -> str:
    """A page with a section, in place of the one with the same title. Sections are sorted, the newest jax first."""
    _, *parts = re.split(r"^## ", page or PAGE, flags=re.MULTILINE)
    sections = {part.partition("\n")[0]: part.partition("\n")[2].strip() for part in parts} | {title: section.strip()}
    ordered = sorted(sections, key=lambda one: ([-int(number) for number in re.findall(r"\d+", one)], "with " in one))
    return "\n\n".join([PAGE.strip(), *(f"## {one}\n\n{sections[one]}" for one in ordered)]) + "\n"
