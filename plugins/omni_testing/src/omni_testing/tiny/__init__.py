"""Complete checkpoints of our models in their released layouts, tiny, with random weights: for tests and first tries."""
