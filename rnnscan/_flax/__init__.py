"""What the modules of Flax Linen and NNX share."""
