"""Runs the stages of a pipeline on several hosts.

:class:`~omni_launchers.hosts.launcher.HostsLauncher` is the runner's side, :class:`~omni_launchers.hosts.server.HostServer` the other;
:mod:`omni_launchers.hosts.curve` connects their processes, encrypted. Launchers that find hosts in other ways start the same server there
and use :class:`~omni_launchers.hosts.host.Host`.
"""
