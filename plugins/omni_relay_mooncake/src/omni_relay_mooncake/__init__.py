"""Mooncake relay for omni: remote reads out of registered memory, credits by notification."""
