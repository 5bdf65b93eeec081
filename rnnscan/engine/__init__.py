"""Engines: how a step is run over time. They know nothing of cells."""
