"""The command line.

Its commands are `rnnscan train`, `export`, `run`, `tradeoff`, `explain`, `trace`, `plan`, `check`, `graph` and `info`.

Only `main` is public.
"""

import os
import sys
import warnings

from rnnscan.cli.interrupts import remember_interrupts
from rnnscan.versions import JaxVersionWarning


# A shell's exit code for a command stopped by Ctrl-C.
INTERRUPTED = 130


def main() -> None:
    """Run the command line, and exit with 130 after Ctrl-C."""
    remember_interrupts()
    try:
        _run()
    except (KeyboardInterrupt, SystemExit) as end:
        if isinstance(end, SystemExit) and end.code != INTERRUPTED:
            raise
        sys.stdout.flush()
        sys.stderr.flush()
        # Not sys.exit: jaxlib can crash at interpreter shutdown after an interrupted compilation.
        os._exit(INTERRUPTED)


def _run() -> None:
    """Run the command line; if a required package is missing, name it and exit with 1."""
    # `rnnscan info` says it; others read the output of commands.
    warnings.filterwarnings("ignore", category=JaxVersionWarning)
    try:
        from rnnscan.cli.app import app
    except ImportError as error:
        if error.name is None:  # A package is there, and broken.
            raise
        sys.exit(
            f'rnnscan: the command line needs the extra "train"; got no {error.name}. '
            'Run pip install ".[train]" in the checkout of rnnscan.'
        )
    app()
