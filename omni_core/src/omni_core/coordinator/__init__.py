"""The life of a request: the coordinator admits it, sends it to the entry stage, merges the results of the terminal stages, and
ends it at its deadline, at its client's wish or at a failure. :class:`RequestMachine` decides all of this without IO (events and a
clock in, actions out), :class:`Coordinator` is its asyncio shell, and :class:`ReplicaChoice` says which replicas serve a request.
"""

from omni_core.coordinator.coordinator import Coordinator
from omni_core.coordinator.open_request import AsyncOpenRequest
from omni_core.coordinator.replicas import ReplicaChoice, ReplicatedGroup
from omni_core.coordinator.request_machine import RequestMachine
from omni_core.coordinator.tracked_request import RequestState, StreamEvent

__all__ = [
    "Coordinator",
    "AsyncOpenRequest",
    "ReplicaChoice",
    "ReplicatedGroup",
    "RequestMachine",
    "RequestState",
    "StreamEvent",
]
