"""Device, dtype and memory budget of each stage of a model. Imports no torch."""
