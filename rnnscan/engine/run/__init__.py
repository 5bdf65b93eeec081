"""The forward pass, the backward pass and forward mode of a plan."""
