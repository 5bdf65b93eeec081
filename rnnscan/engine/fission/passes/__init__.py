"""Rewrites of a step's program, each a function from a `Program` to an equal `Program`."""
