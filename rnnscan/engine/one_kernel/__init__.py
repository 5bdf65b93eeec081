"""Small loops that XLA for the CPU compiles into one kernel.

XLA compiles a whole loop into one kernel if nothing in its step is a call of a library: products of matrices, LAPACK,
sorts, scatters and FFTs are. Each file writes some of these operations out, as elementwise work and sums.
"""
