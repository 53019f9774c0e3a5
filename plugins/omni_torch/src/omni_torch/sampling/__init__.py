"""Choosing tokens: penalties, filters, the draw, and stop strings."""
