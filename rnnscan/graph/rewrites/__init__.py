"""Rewrites: functions from a graph to a graph of the same function."""
