"""Parts that relays share: a bounded pool of blocks with back-pressure, the base class of relays whose receiver pulls, and peer liveness.

A relay backend may use them or not; the core knows none of them. The contract that a relay keeps is :mod:`omni_core.relay.base`.
"""
