"""What XLA's compilers make of the benchmarks for a GPU and a TPU, on a machine that may have neither."""
