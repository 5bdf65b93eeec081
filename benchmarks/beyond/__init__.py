"""Uses of `lax.scan` that are no RNN, beside plain `lax.scan`: `python -m benchmarks.beyond`."""
