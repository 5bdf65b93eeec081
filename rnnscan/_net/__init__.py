"""How `recurrent_net` maps names, links and aliases onto a scan."""
