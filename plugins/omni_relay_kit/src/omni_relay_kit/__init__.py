"""Parts for relay backends: a bounded pool with back-pressure, a base class for pull relays, and detection of dead
peers.

A relay may use them or not, and the core imports none of them. The contract of relays is :mod:`omni_core.relay.base`;
the modules here are ``bounded_pool``, ``allocator``, ``pull_relay``, ``poller``, ``markers``, ``memory`` and ``liveness``.
"""
