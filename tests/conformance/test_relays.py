"""Every relay of this workspace keeps the contract."""

from omni_core.testing import RelayConformance


class TestShm(RelayConformance):
    relay = "omni_relay_shm.relay:ShmRelay"
