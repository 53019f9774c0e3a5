"""Runs the stages of a pipeline on the nodes of a Ray cluster.

:class:`~omni_launchers.ray.launcher.RayLauncher` reserves one placement group per run, made of :mod:`omni_launchers.ray.bundles`, and
starts the host server of omni-launchers on each node by an actor (:mod:`omni_launchers.ray.agent`). Only
:mod:`omni_launchers.ray.cluster` calls Ray.
"""
