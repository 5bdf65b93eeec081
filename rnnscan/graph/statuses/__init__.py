"""Statuses of values, inferred to a fixpoint by transfer functions."""
