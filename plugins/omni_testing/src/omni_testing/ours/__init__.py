"""Conformance suites of our own components, for ``omni plugins check --full``; each module needs the distribution that it tests."""
