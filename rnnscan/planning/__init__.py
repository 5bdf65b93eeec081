"""Find a memory choice for a budget. A cell or net runs only through a function that is passed in. Private."""
