"""Kokoro: a small voice that a CPU speaks with faster than one listens."""
