"""Loops over time and their derivatives: chunks, blocks, stacks in place, prefix scans, Newton's method."""
