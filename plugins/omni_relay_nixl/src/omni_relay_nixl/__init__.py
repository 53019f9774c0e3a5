"""NIXL relay for omni: remote reads out of registered memory, completion by notification."""
