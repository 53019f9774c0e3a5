"""The processes of a pipeline, and the requests that die with them.

In the parent, :class:`~omni_core.processes.restarts.Unit` decides when processes are started, restarted or given up,
:class:`~omni_core.processes.supervisor.Supervisor` carries that out, and :class:`~omni_core.processes.deaths.Deaths` finds out what
is lost; in the child, :mod:`omni_core.processes.main` runs a :class:`~omni_core.processes.worker.Worker`. Processes are forks of a
server that a service brings, or fresh interpreters. Nothing is imported here, because every child passes through
this package before it reads its launch spec.
"""
