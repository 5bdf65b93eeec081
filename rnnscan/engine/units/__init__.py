"""Hidden units that are sharded over a mesh: a step whose loop moves only its state between devices."""
