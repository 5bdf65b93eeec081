"""The processor time of `import rnnscan` beside that of `import jax`: `python -m benchmarks.imports`.

Each row is a process of its own, and the rows take turns. The first round, which may write Python's bytecode, does not
count.
"""

import os
import statistics
import subprocess
import sys
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.table import rich_table


ROWS = {
    "import jax": "import jax",
    "import rnnscan as rs": "import jax; import rnnscan as rs",
    "and rs.scan": "import jax; import rnnscan as rs; rs.scan",
    "and rs.cells, rs.layer": "import jax; import rnnscan as rs; rs.scan; rs.cells; rs.layer",
    "and all that needs no extra": (
        "import jax; import rnnscan as rs; "
        "[getattr(rs, name) for name in dir(rs) if name not in ('linen', 'nnx', 'train')]"
    ),
}
_MEASURE = "; import resource; used = resource.getrusage(resource.RUSAGE_SELF); print(used.ru_utime + used.ru_stime)"

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(rounds: Annotated[int, typer.Option(min=1, help="processes of each row")] = 15) -> None:
    """The processor time of imports."""
    seconds: dict[str, list[float]] = {row: [] for row in ROWS}
    for number in range(rounds + 1):
        for row, code in ROWS.items():
            measured = seconds_of(code)
            if number:
                seconds[row].append(measured)
    medians = {row: statistics.median(of_row) for row, of_row in seconds.items()}
    of_jax = medians["import jax"]
    cells = [(row, f"{1000 * median:.0f}", f"{median / of_jax:.2f}") for row, median in medians.items()]
    Console(highlight=False).print(rich_table("Imports", ("row", "ms of processor time", "of import jax"), cells))


def seconds_of(code: str) -> float:
    """The processor time of a process that runs some code."""
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    command = [sys.executable, "-c", code + _MEASURE]
    return float(subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout)


if __name__ == "__main__":
    app()
