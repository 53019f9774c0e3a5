"""The command line, ``omni``: a module per command, imported when the command is used.

``main`` finds the commands, those of plugins included, and prints errors as one line. ``pipeline_source`` resolves the pipeline that
a command names, ``parameter_flags`` makes flags from its interface, and ``session`` runs requests and prints replies.
"""

from omni_core.cli.main import main

__all__ = ["main"]
