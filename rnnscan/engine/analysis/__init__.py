"""What a step is: its loops, what is linear, what a derivative reads, and how it splits into work."""
