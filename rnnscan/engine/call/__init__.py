"""A checked call: arguments, padding and resets around the step, and the engine that runs it."""
