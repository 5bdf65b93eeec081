"""Engines: how a step runs over time. They know nothing of cells. Private: nothing here is part of the public API."""
