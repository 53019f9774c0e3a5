"""How do calls of a model's own ``generate()`` share a batch? Each request's runs in a thread, and stops where it calls the decoder."""
