"""Weights in 8 and 4 bits: how checkpoints store them, and the layers that compute with them."""
