"""The structure of a step: its loops, its linear values, the values that its derivative reads, and how it splits."""
