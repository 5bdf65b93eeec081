"""The command: `python -m benchmarks.beyond`."""

from benchmarks.beyond.app import app


app()
