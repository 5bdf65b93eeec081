"""The command: `python -m benchmarks.suites FOLDER`."""

from benchmarks.suites.app import app


app()
