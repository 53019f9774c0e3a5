"""Runs the stages of a pipeline on hosts whose servers the launcher starts itself, by a command.

:class:`~omni_launchers.remote.started.StartedHosts` is what launchers of this kind share; :mod:`omni_launchers.remote.ssh` and
:mod:`omni_launchers.remote.slurm` say which command.
"""
