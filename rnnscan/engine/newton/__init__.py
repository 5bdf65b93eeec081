"""Newton's method over the steps of a sequence: find the loops that it solves, solve them, and differentiate them."""
