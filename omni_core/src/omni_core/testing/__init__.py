"""Conformance suites for plugin authors: one class to subclass per contract. Needs pytest (``omni-core[testing]``).

::

    from omni_core.testing import RelayConformance

    class TestMyRelay(RelayConformance):
        relay = "my_relay.relay:MyRelay"
"""

from omni_core.testing.pipeline import PipelineConformance
from omni_core.testing.plugin import PluginConformance
from omni_core.testing.projection import ProjectionConformance
from omni_core.testing.relay import RelayConformance
from omni_core.testing.scheduler import SchedulerConformance

__all__ = [
    "PipelineConformance",
    "PluginConformance",
    "ProjectionConformance",
    "RelayConformance",
    "SchedulerConformance",
]
