"""A stage that records what it is given and what its scheduler puts out."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import attrs

from omni_capsules.records import Records
from omni_core.errors import message_of, name_of
from omni_core.observe.recording import Recorder
from omni_core.protocol.error_info import describe
from omni_core.protocol.messages import OmniRequest, StagePayload
from omni_core.protocol.specs import StageSpec
from omni_core.scheduling.base import IncomingMessage, OutgoingMessage, Scheduler
from omni_core.stage.outbound import Outbound
from omni_core.stage.requests import ActiveRequest
from omni_core.stage.stage import Stage


class RecordedStage(Stage):
    """See :class:`~omni_core.stage.stage.Stage`. What another stage or the coordinator sends is recorded as it comes, before fan-in
    and parts, so that a replay runs the functions of the pipeline too.
    """

    def __init__(
        self,
        spec: StageSpec,
        scheduler: Scheduler,
        outbound: Outbound,
        on_scheduler_death: Callable[[], None],
        abort: Callable[[str], None] | None = None,
        *,
        records: Records,
    ) -> None:
        super().__init__(spec, scheduler, outbound, on_scheduler_death, abort)
        self._records = records
        self._tap(None)

    def profile(self, recorder: Recorder | None) -> None:
        super().profile(recorder)
        self._tap(recorder)

    def _tap(self, recorder: Recorder | None) -> None:
        """Look at both queues of the scheduler, beside a profile if one is on."""
        inbox, outbox = self.scheduler.inbox, self.scheduler.outbox
        inbox.tap = _both(self._took, inbox.tap if recorder is not None else None)
        outbox.tap = _both(self._put_out, outbox.tap if recorder is not None else None)

    def receive_payload(self, payload: StagePayload, source: str | None, handed_to: Any = None) -> None:
        self._records.add(
            self.name,
            payload.request_id,
            "payload",
            payload,
            source=source,
            detail={"handed_to": handed_to},
            shown=payload.data if source is not None else payload.request.inputs,
        )
        super().receive_payload(payload, source, handed_to)

    def receive_chunk(self, request_id: str, source: str, value: tuple[Any, Any, OmniRequest | None]) -> None:
        self._records.add(self.name, request_id, "chunk", value, source=source, shown=value[0])
        super().receive_chunk(request_id, source, value)

    def receive_done(self, request_id: str, source: str, handed_to: Any = None) -> None:
        self._records.add(self.name, request_id, "done", source=source, detail={"handed_to": handed_to})
        super().receive_done(request_id, source, handed_to)

    def abort(self, request_id: str) -> None:
        super().abort(request_id)
        self._records.end(self.name, request_id, "aborted")

    def _took(self, action: str, messages: Sequence[IncomingMessage]) -> None:
        for message in messages if action == "take" else ():
            if message.request_id:
                self._records.taken(self.name, self.groups.request_of(message.request_id))

    def _put_out(self, action: str, messages: Sequence[OutgoingMessage]) -> None:
        for message in messages if action == "put" else ():
            request_id = self.groups.request_of(message.request_id)
            part = "" if request_id == message.request_id else message.request_id
            value, detail = output_of(message)
            self._records.add(
                self.name,
                request_id,
                message.type,
                value,
                part=part,
                target=message.target,
                detail=detail,
                shown=None if value is None else value[0],
            )

    def _complete(self, active: ActiveRequest) -> None:
        self._records.end(self.name, active.request_id, "completed")
        super()._complete(active)

    def _fail(self, request_id: str, error: BaseException) -> None:
        if threading.get_ident() == self._thread_id:  # else it is called again there
            self._records.end(self.name, request_id, "failed", attrs.asdict(describe(error, self.name)))
        super()._fail(request_id, error)


def output_of(message: OutgoingMessage) -> tuple[Any, dict[str, Any]]:
    """Return what is recorded of an output: its value, and for an error its type and message."""
    if message.type == "error":
        return None, {"error_type": name_of(message.data), "message": message_of(message.data)}
    data = message.data.data if isinstance(message.data, StagePayload) else message.data
    return [data, message.metadata], {}


def _both(first: Callable[[str, Any], None], second: Callable[[str, Any], None] | None) -> Callable[[str, Any], None]:
    if second is None:
        return first

    def tap(action: str, items: Any) -> None:
        first(action, items)
        second(action, items)

    return tap
