"""NIXL relay for omni: remote reads from registered memory, with acknowledgements by notification."""
