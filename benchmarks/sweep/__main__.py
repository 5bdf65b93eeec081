"""The command: `python -m benchmarks.sweep`."""

from benchmarks.sweep.app import app


# Worker processes import this module under another name, and must not run the command again.
if __name__ == "__main__":
    app()
