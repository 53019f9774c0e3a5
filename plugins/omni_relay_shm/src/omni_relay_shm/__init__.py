"""Pooled shared-memory relay for omni: one copy in, a view out, and release without a message."""
