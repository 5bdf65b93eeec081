"""Time and memory of rnnscan, plain JAX and other libraries: `python -m benchmarks`, or `make bench`."""
