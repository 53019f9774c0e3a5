"""The command line, ``omni``: ``main`` finds the commands, which plugins provide, imports them when they are used, and prints errors as
one line.

``run`` answers one message; ``source`` has the options that choose a pipeline, ``reply`` receives what it answers, and ``logs`` sets up the
log: these are for commands of plugins too.
"""

from omni_core.cli.main import main

__all__ = ["main"]
