"""Which device, dtype and memory budget each stage of a model gets. Imports no torch."""
