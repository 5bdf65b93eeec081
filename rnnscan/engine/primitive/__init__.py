"""The scan as an operation of a jaxpr, whose parameters are data."""
