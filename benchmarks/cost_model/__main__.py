"""The command: `python -m benchmarks.cost_model`."""

from benchmarks.cost_model.app import app


if __name__ == "__main__":
    app()
