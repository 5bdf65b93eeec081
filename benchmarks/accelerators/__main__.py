"""`python -m benchmarks.accelerators`."""

from benchmarks.accelerators.app import app


app()
