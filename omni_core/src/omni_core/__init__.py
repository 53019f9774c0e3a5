"""The core of omni: contracts for plugins, the pipeline runtime, and the command line.

The core knows no model, no relay, no engine and no kernel. Importing this package imports neither torch nor transformers.
"""

__version__ = "0.1.0"
