"""vLLM-Omni's deploy files: the schema with ``stages``, ``platforms`` and ``base_config``, and the older ``stage_args``.

``settings`` brings both into one form and follows ``base_config``; ``keys`` has a rule for every key of a stage and of the file,
``sampling`` for sampling parameters, ``connectors`` for what carries the data; ``convert`` applies them.
"""
