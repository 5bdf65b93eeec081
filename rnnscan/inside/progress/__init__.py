"""Show how far a long scan is."""
