"""The conformance suite of relays (contract: :class:`omni_core.relay.base.Relay`): a relay here, and one in each of several processes.

``transfers`` and ``ends`` have the tests of what every relay must do, ``suite`` those of optional abilities and all of them together.
"""

from omni_testing.relay.suite import RelayConformance

__all__ = ["RelayConformance"]
