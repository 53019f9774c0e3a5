"""The command line, ``omni``: one file per command, each imported only when it is used."""

from omni_core.cli.main import main

__all__ = ["main"]
