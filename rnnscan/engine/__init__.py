"""Private. Engines run a step over time. They know nothing of cells."""
