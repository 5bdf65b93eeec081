"""The command line: `rnnscan train`, `tradeoff`, `explain` and `plan`."""

import os
import sys


# What a shell expects of a command that Ctrl-C stopped.
INTERRUPTED = 130


def main() -> None:
    """Run the command line, and exit with 130 after Ctrl-C."""
    try:
        _run()
    except (KeyboardInterrupt, SystemExit) as end:
        if isinstance(end, SystemExit) and end.code != INTERRUPTED:
            raise
        sys.stdout.flush()
        sys.stderr.flush()
        # Not by sys.exit: jaxlib can crash in the shutdown of the interpreter after a compilation was interrupted.
        os._exit(INTERRUPTED)


def _run() -> None:
    """Run the command line; where a package that it needs is not installed, say which and exit with 1."""
    try:
        from rnnscan.cli.app import app
    except ImportError as error:
        missing = error.name or str(error)
        sys.exit(
            f'rnnscan: the command line needs the extra "train" ({missing}). Install it with the extra: '
            'pip install ".[train]" in the checkout of rnnscan.'
        )
    app()
