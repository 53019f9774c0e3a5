"""A deployment as objects of Kubernetes: plain data, written as manifests or as a Helm chart.

:func:`~omni_export.kubernetes.objects.objects` makes all of them.
"""

from omni_export.kubernetes.objects import Options, objects

__all__ = ["Options", "objects"]
