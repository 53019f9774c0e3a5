"""Training of the two demo models."""
