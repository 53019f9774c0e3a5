"""The transport of bulk bytes: by relays, which plugins provide, while control messages say where the bytes are.

:class:`Relay` is the contract, :class:`RelayOptions` what a relay is built from; a process's relays are in
:mod:`omni_core.relay.table`. :mod:`omni_core.relay.transfer` sends and reads payloads, small ones inline and large ones by relay.
"""

from omni_core.relay.base import Relay, RelayOperation, RelayOptions

__all__ = ["Relay", "RelayOperation", "RelayOptions"]
