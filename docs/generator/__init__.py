"""The pages that docs/generate.py writes: a module per kind of page, and ``text``, which makes Markdown of docstrings and signatures."""
