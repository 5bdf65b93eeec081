"""The command: `python -m benchmarks.papers`."""

from benchmarks.papers.app import app


if __name__ == "__main__":
    app()
