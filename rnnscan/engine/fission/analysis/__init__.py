"""What a step's program is made of: its loops, its linear recurrences, and the work that can run for many steps."""
