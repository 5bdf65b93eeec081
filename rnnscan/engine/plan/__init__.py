"""How a call runs. Reports read it."""
