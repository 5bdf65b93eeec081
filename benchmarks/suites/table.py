"""The table of the suites, for the console and for the page."""

from collections.abc import Mapping, Sequence

from benchmarks.machine import with_condition
from benchmarks.suites.projects import PROJECTS
from benchmarks.suites.run import Comparison
from benchmarks.table import markdown_table


HEADINGS = (
    "project",
    "memory",
    "pass plain",
    "pass with rs.scan",
    "fail only with rs.scan",
    "stopped with rs.scan",
    "replaced calls",
)
MEMORIES = {"default": "Memory()", "all": 'Memory(recompute="all")'}

INTRODUCTION = """\
# Other projects' tests

`rs.scan` promises the meaning of `lax.scan` for any step. So the test suites of other projects must pass with their
`lax.scan` replaced. Each call of a project and of the libraries that it uses runs as in

```python
import jax.numpy as jnp
from jax import lax

import rnnscan as rs


def step(carry, x):
    return jnp.cos(carry) * x, carry


init, xs = jnp.ones(3), jnp.linspace(0, 1, 15).reshape(5, 3)
last, ys = rs.scan(lambda params, carry, x: step(carry, x), None, init, xs)
assert jnp.allclose(ys, lax.scan(step, init, xs)[1])
```

with the same `length`, `reverse` and `unroll`. The step closes over its arrays. Calls that JAX makes for its own
functions stay. A first run, plain, counts the calls of each test. The table has the tests that scan and pass plain. A
call counts when Python makes it, so a scan in a jitted function counts once for each trace.
"""

STOPPED = (
    "These reached the time limit of a test and were stopped, so they count neither as passed nor as failed. One that "
    "was stopped plain did not run with `rs.scan`:"
)

HOW = """\
## How to run them

Clone the projects into one folder, and install what their tests need beside rnnscan. Then

```
make test-suites SUITES=folder VENV=environment
```

prints the table. It installs and fetches nothing, and says which checkout or package is missing. It fails if a test
that passes plain does not pass with `rs.scan`. With `PROJECT=name` any other folder of checkouts runs:
`make test-suites SUITES=folder PROJECT=name`. With `TEST_MINUTES=15` a test that takes longer is stopped. After an
interruption, `python -m benchmarks.suites folder --recorded` runs the tests that have not ended.
"""


def rows(comparisons: Sequence[Comparison]) -> list[tuple[str, ...]]:
    """The cells of the table, a tuple a row, in the order of `HEADINGS`."""
    return [
        (
            one.project,
            MEMORIES[one.mode],
            f"{one.plain:,}",
            f"{one.passed:,}",
            f"**{len(one.failures):,}**" if one.failures else "0",
            f"**{len(one.stopped):,}**" if one.stopped else "0",
            f"{one.calls:,}",
        )
        for one in comparisons
    ]


def failures(comparisons: Sequence[Comparison]) -> list[str]:
    """A line for each test that fails only with `rs.scan`."""
    return [
        f"{one.project}, {MEMORIES[one.mode]}: {test}: {error}"
        for one in comparisons
        for test, error in one.failures.items()
    ]


def stopped(comparisons: Sequence[Comparison]) -> list[str]:
    """A line for each test that reached its time limit, plain or with `rs.scan`."""
    plain = {one.project: one.stopped_plain for one in comparisons}
    return [
        *(f"{project}, plain: {test}: {error}" for project, tests in plain.items() for test, error in tests.items()),
        *(
            f"{one.project}, {MEMORIES[one.mode]}: {test}: {error}"
            for one in comparisons
            for test, error in one.stopped.items()
        ),
    ]


def make_page(
    comparisons: Sequence[Comparison], *, machine: Mapping[str, str], versions: Mapping[str, str], command: str
) -> str:
    """The page in Markdown."""
    cells = [(name, f"`{memory}`", *others) for name, memory, *others in rows(comparisons)]
    introduction = with_condition(INTRODUCTION, machine)
    parts = [introduction, markdown_table(HEADINGS, cells)]
    lines = failures(comparisons)
    if lines:
        parts += ["These fail only with `rs.scan`:", "\n".join(f"- `{line}`" for line in lines)]
    late = stopped(comparisons)
    if late:
        parts += [STOPPED, "\n".join(f"- `{line}`" for line in late)]
    parts.append("\n".join(f"- {heading}: {text}" for heading, text in machine.items()))
    parts.append(f"Made by `{command}`, with")
    parts.append("\n".join(f"- {_linked(name)}: {version}" for name, version in versions.items()))
    parts.append(HOW)
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _linked(name: str) -> str:
    project = PROJECTS.get(name)
    return f"[{name}](https://github.com/{project.repository})" if project else name
