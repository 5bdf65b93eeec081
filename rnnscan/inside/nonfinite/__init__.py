"""Find the first operation whose result is not finite, in a function with scans and in its derivatives."""
