"""A graph: the class, tracing, and the bodies of loops and branches."""
