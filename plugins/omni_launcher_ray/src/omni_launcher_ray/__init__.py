"""Runs the stages of a pipeline on the nodes of a Ray cluster.

:class:`~omni_launcher_ray.launcher.RayLauncher` reserves one placement group per run, made of :mod:`omni_launcher_ray.bundles`, and
starts the host server of omni-launcher-hosts on each node by an actor (:mod:`omni_launcher_ray.agent`). Only
:mod:`omni_launcher_ray.cluster` calls Ray.
"""
