"""The nodes of a graph: names, types, facts, slices and text."""
