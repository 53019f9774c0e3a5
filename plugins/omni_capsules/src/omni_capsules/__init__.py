"""Capsules: a request that fails or is slow leaves a file from which one of its stages can be run again, alone and in one process.

:class:`~omni_capsules.worker.RecordingWorker` records in a stage process, :class:`~omni_capsules.pipeline.Capsules` collects in the
parent and writes the file (:mod:`~omni_capsules.capsule`), and :mod:`~omni_capsules.replay` runs a stage from it. The core imports the
first two by reference, and only where a config has ``capsules``.
"""
