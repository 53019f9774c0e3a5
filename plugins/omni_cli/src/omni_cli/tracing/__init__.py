"""Traces of requests: profiles of all processes as one Chrome trace, and OpenTelemetry spans.

``recorder`` keeps the events of one process, ``process`` records in a stage process, and ``profiling`` collects from all processes of
a pipeline; ``profiles`` is the service of both. ``telemetry`` makes spans.
"""
