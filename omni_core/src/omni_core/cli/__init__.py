"""The command line, ``omni``: a module per command, imported when the command is used.

``main`` finds the commands, those of plugins included, and prints errors as one line. ``parameter_flags`` makes flags from the
interface of a pipeline, and ``session`` runs requests and prints replies.
"""

from omni_core.cli.main import main

__all__ = ["main"]
