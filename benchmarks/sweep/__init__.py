"""Uses of `lax.scan` and cells of RNNs at random sizes, beside plain JAX and another version of rnnscan."""
