"""Checkpoints: finding and downloading them, reading their files, loading their weights."""
