"""Pooled shared-memory relay for omni: one copy in, a view out, credit returned without a message."""
