"""Runs the stages of a pipeline on hosts whose servers the launcher starts itself, by a command.

:class:`~omni_launcher_remote.started.StartedHosts` is what launchers of this kind share; :mod:`omni_launcher_remote.ssh` and
:mod:`omni_launcher_remote.slurm` say which command.
"""
