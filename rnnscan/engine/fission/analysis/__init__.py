"""Analyses of a step's program: its loops, its linear recurrences, and the work that can be batched."""
