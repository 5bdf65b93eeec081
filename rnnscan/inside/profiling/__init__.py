"""Where the time of a compiled function goes: by cell, name and loop."""
