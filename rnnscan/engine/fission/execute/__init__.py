"""Run a planned step over time: forward, backward, and the tangents between them."""
