"""The compute of a stage belongs to a :class:`Scheduler`: an inbox, an outbox and a loop between them.
:class:`SimpleScheduler` runs functions, batches and generators, :class:`AsideScheduler` a function that takes long for some requests,
and :class:`StreamingScheduler` consumes streams chunk by chunk. They share their loop and its aborts with those of other
distributions in :class:`LoopScheduler`.
"""

from omni_core.scheduling.aside import Aside, AsideScheduler
from omni_core.scheduling.base import IncomingMessage, MessageQueue, OutgoingMessage, Scheduler
from omni_core.scheduling.loop import LoopScheduler
from omni_core.scheduling.simple import SimpleScheduler
from omni_core.scheduling.streaming import StreamingScheduler

__all__ = [
    "Aside",
    "AsideScheduler",
    "IncomingMessage",
    "LoopScheduler",
    "MessageQueue",
    "OutgoingMessage",
    "Scheduler",
    "SimpleScheduler",
    "StreamingScheduler",
]
