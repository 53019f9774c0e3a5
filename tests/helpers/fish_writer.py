"""A stage that writes text as a language model does, piece by piece: the pieces of the last message, with a pause after each."""

from __future__ import annotations

import threading
from typing import Any

from omni_core.protocol.outputs import TextChunk, TextResult
from omni_core.scheduling.base import IncomingMessage, MessageQueue, OutgoingMessage


class Writer:
    def __init__(self) -> None:
        self.inbox: MessageQueue[IncomingMessage] = MessageQueue()
        self.outbox: MessageQueue[OutgoingMessage] = MessageQueue()

    def start(self) -> None:
        while (message := self.inbox.get()) is not None:
            threading.Thread(target=self._write, args=[message], daemon=True).start()

    def _write(self, message: IncomingMessage) -> None:
        name, inputs = message.request_id, message.data.request.inputs
        pieces: list[Any] = inputs["pieces"]
        for piece in pieces:
            chunk = TextChunk(piece) if isinstance(piece, str) else piece
            self.outbox.put(OutgoingMessage(name, "stream", chunk, target="preprocessing"))
            threading.Event().wait(inputs.get("pause", 0.0))
        self.outbox.put(OutgoingMessage(name, "result", TextResult("".join(map(str, pieces)))))

    def stop(self) -> None:
        self.inbox.close()

    def abort(self, request_id: str) -> None:
        """Its thread ends by itself; the stage drops later messages."""
