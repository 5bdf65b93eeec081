"""Rewrites of graphs: functions from a graph to a graph."""
