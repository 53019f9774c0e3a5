"""Deploy files: one file says everything about a deployment, in layers that can be shown.

``files`` reads files, presets and the environment, ``layers`` applies them to a config and records the origin of each value, and ``source``
finds the pipeline that a person names. The core imports ``source`` where this is installed; commands take its ``options``.
"""
