"""Compiled programs of calls outside `jax.jit`."""
