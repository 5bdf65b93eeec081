"""Published figures of recurrent networks, and those of rnnscan beside them."""
