"""Runs the stages of a pipeline on several hosts.

:class:`~omni_launcher_hosts.launcher.HostsLauncher` is the runner's side, :class:`~omni_launcher_hosts.server.HostServer` the other;
:mod:`omni_launcher_hosts.curve` connects their processes, encrypted. Launchers that find hosts in other ways start the same server there
and use :class:`~omni_launcher_hosts.host.Host`.
"""
