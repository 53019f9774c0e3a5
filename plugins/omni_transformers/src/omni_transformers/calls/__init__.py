"""Calls of a decoder by the ``generate()`` of several requests, which share a batch: each runs in a thread, and stops where it calls."""
