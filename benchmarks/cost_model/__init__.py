"""The constants of the engine's cost model, measured: `python -m benchmarks.cost_model`."""
