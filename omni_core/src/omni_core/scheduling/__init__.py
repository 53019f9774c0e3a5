"""The compute of a stage belongs to a :class:`Scheduler`: an inbox, an outbox and a loop between them.
:class:`SimpleScheduler` runs functions, batches and generators, and :class:`StreamingScheduler` consumes streams chunk by chunk. They share
their loop and its aborts with those of other distributions, such as ``omni_torch.steps``, in :class:`LoopScheduler`.
"""

from omni_core.scheduling.base import IncomingMessage, MessageQueue, OutgoingMessage, Scheduler
from omni_core.scheduling.loop import LoopScheduler
from omni_core.scheduling.simple import SimpleScheduler
from omni_core.scheduling.streaming import StreamingScheduler

__all__ = [
    "IncomingMessage",
    "LoopScheduler",
    "MessageQueue",
    "OutgoingMessage",
    "Scheduler",
    "SimpleScheduler",
    "StreamingScheduler",
]
