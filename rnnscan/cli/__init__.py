"""The command line: `rnnscan train` and `rnnscan tradeoff`."""

import sys


def main() -> None:
    """Run the command line; where a package that it needs is not installed, say which and exit with 1."""
    try:
        from rnnscan.cli.app import app
    except ImportError as error:
        missing = error.name or str(error)
        sys.exit(f'rnnscan: the command line needs the extra "train" ({missing}). Run pip install "rnnscan[train]".')
    app()
