"""The interactive commands of omni: what a person at a terminal watches and talks to.

Each command is a module here, registered in :mod:`omni_cli.plugin` and imported only when it is used. The core keeps the commands
that scripts need.
"""
