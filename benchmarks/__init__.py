"""Time and memory of rnnscan beside plain JAX and other libraries: `python -m benchmarks`, or `make bench`."""
