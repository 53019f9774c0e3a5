"""The request, the payload that travels between stages, and the control messages about requests and what is recorded of them.

Control messages are small and carry no tensor; bulk bytes travel by relay. Those about processes are in
:mod:`omni_core.protocol.process_messages`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import define, field, frozen

from omni_core.errors import InvalidRequestError
from omni_core.protocol.codec import Body
from omni_core.protocol.registry import message, register


@register
@define
class OmniRequest:
    """A client's request to a pipeline.

    Attributes:
        inputs: the model's inputs, usually ``{"messages": [...]}``, or ``{"prompt": ...}`` for a model that goes on from a text as it is;
            for one that can speak with the voice of a recording ``"references": [{"path": ..., "text": ...}]``. Heavy. They travel to the
            entry stage only; a stage that a later one depends on hands on what is needed in its payload. Everywhere else ``inputs`` is
            ``None``.
        params: sampling and generation parameters, plain data: ``{"temperature": 0.7, "seed": 1}``, and by group those of single stages.
            The pipeline's interface says which there are; at admission they are checked and put into their groups.
        modalities: the outputs that are wanted, such as ``["text", "audio"]``; ``None`` is the pipeline's default.
        metadata: anything else that stages may read, such as the speaker's name.
        stream: true if the client reads partial results. It changes delivery only, never the result.
        timeout: the deadline in seconds from admission, or ``None``.
        placement: the replica of each replicated stage that serves this request. Set by the coordinator, not by clients.
        composed: in a part of a composed pipeline, ``params``, ``metadata`` and ``modalities`` as the client gave them. Set by stages.
    """

    inputs: Any = None
    params: dict[str, Any] = field(factory=dict)
    modalities: list[str] | None = None
    metadata: dict[str, Any] = field(factory=dict)
    stream: bool = False
    timeout: float | None = None
    placement: dict[str, int] = field(factory=dict)
    composed: dict[str, Any] | None = None

    def without_inputs(self) -> OmniRequest:
        """The same request without its heavy inputs: the form that travels beyond the entry stage."""
        given = (self.params, self.modalities, self.metadata, self.stream, self.timeout, self.placement, self.composed)
        return OmniRequest(None, *given)  # `evolve` takes ten times as long, in every stage

    @property
    def is_streamed(self) -> bool:
        """True if it has no message: its input comes as a stream, of the client or of another part of a composed pipeline."""
        return self.inputs is None or (isinstance(self.inputs, Mapping) and self.inputs.get("messages") == [])

    @property
    def may_be_empty(self) -> bool:
        """True if another part streams its input, which may have nothing to say, such as a reply that calls a tool and no more."""
        return self.composed is not None and self.is_streamed


def text_of(message: Mapping[str, Any]) -> str:
    """Return the text of a message of ``inputs["messages"]``: its content, or its parts that are text, joined by spaces."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return " ".join(part["text"] for part in content if part.get("type") == "text")


def text_to_speak(request: OmniRequest) -> str | None:
    """Return the text of a request to a voice, that of its last message; ``None``: it comes as a stream.

    Raises:
        InvalidRequestError: its last message is no text, or has nothing to speak.
    """
    if request.is_streamed:
        return None
    inputs = request.inputs
    messages = inputs.get("messages") if isinstance(inputs, dict) else None
    if not isinstance(messages, list) or not isinstance(messages[-1], dict):
        raise InvalidRequestError("inputs.messages: must be a non-empty list of {'role': 'user', 'content': ...}")
    where = f"messages[{len(messages) - 1}].content"
    content = messages[-1].get("content")
    for number, part in enumerate(content if isinstance(content, list) else []):
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise InvalidRequestError(f"{where}[{number}]: this model speaks text and takes nothing else")
    text = text_of(messages[-1]).strip()
    if not text:
        raise InvalidRequestError(f"{where}: there is nothing to speak")
    return text


@register
@define
class StagePayload:
    """The value that one stage hands to the next.

    ``data`` is any tree of dict, list, tuple, str, bytes, numbers, ``None``, arrays, torch tensors and registered attrs
    classes. Receivers treat it as read-only: in one process it is passed by reference.
    """

    request_id: str
    request: OmniRequest
    data: Any = None


@register
@frozen
class ErrorInfo:
    """An exception as plain data: where it happened, its type's name, its message, and optionally its traceback.

    ``peer_died``: the cause is not the request but the death of a process that held something of it.
    ``is_invalid_request``: the stage found the request itself at fault; ``is_too_large``: for being over a limit.
    """

    stage: str | None
    error_type: str
    message: str
    traceback: str = ""
    peer_died: bool = False
    is_invalid_request: bool = False
    is_too_large: bool = False


@message
class SubmitMessage:
    """Coordinator to entry stage: start this request. ``body`` is an encoded :class:`StagePayload`.

    ``is_open``: its input follows, as chunks of a stream whose ``from_stage`` is empty.

    ``has_tensors``, here and in other messages: the body holds torch tensors, so the receiver needs torch to read it.
    """

    request_id: str
    stage: str
    body: Body
    has_tensors: bool = False
    is_open: bool = False


@message
class DataReadyMessage:
    """Stage to stage: a payload or a stream chunk is ready to be read, or a stream's end (``is_done``).

    Attributes:
        header: the encoded value; ``None`` for a signal.
        inline: the value's out-of-band bytes, when they are few.
        relay_metadata: where the relay holds them, when they are many.
        is_stream, chunk_id: a chunk of a stream, counted from 0 per request, sender and target.
        is_done: the sender's stream to this stage is complete.
        handed_to: ``[stages that get the result, stages whose stream ends]`` where a function of the pipeline chose them.
        has_tensors: the value holds torch tensors, so the receiver needs torch to read it.
    """

    request_id: str
    stage: str
    from_stage: str
    header: Body | None = None
    inline: bytes | None = None
    relay_metadata: Any = None
    is_stream: bool = False
    chunk_id: int | None = None
    is_done: bool = False
    handed_to: Any = None
    has_tensors: bool = False


@message
class CompleteMessage:
    """Terminal stage to coordinator: the stage's final result, encoded, or its error.

    ``left_out``: terminal stages that cannot get anything any more. The ``error`` holds only if the request waits for one of them.
    """

    request_id: str
    from_stage: str
    body: Body | None = None
    error: ErrorInfo | None = None
    has_tensors: bool = False
    left_out: list[str] = field(factory=list)


@message
class StageSpan:
    """A stage to the coordinator: the time of a traced request in it, from arrival to end, in ``time.time_ns`` nanoseconds."""

    request_id: str
    stage: str
    begin_ns: int
    end_ns: int
    error: str = ""


@message
class StreamMessage:
    """Stage to coordinator: one partial result for the client, encoded. ``chunk_id`` counts from 0 per stage."""

    request_id: str
    from_stage: str
    chunk_id: int
    body: Body
    has_tensors: bool = False


@message
class FlowMessage:
    """The reader of a stream to the stage that writes it: send no more chunks of ``attempt`` while it is ``paused``.

    Attributes:
        target: the reader: a stage, or empty for the client.
    """

    attempt: str
    target: str
    paused: bool


@message
class InputTaken:
    """Entry stage to coordinator: its scheduler has taken ``chunks`` more of the input of ``attempt``; ``is_over``: it needs no others."""

    attempt: str
    chunks: int
    is_over: bool = False


@message
class AbortMessage:
    """Coordinator to every stage: drop all state of this request. Idempotent; an unknown id is ignored."""

    request_id: str


@message
class WaitingRequest:
    """Coordinator to a process: say what ``attempt``, whose deadline has passed, does in your stages."""

    attempt: str


@message
class WaitingReport:
    """A process to the coordinator: by stage, what a request waits for there. Stages without the request are left out."""

    attempt: str
    stages: dict[str, str] = field(factory=dict)


@message
class ProfileMessage:
    """Runner to a process: record from now on (``start``), or stop and send what was recorded.

    ``torch``: names of stages in whose processes torch's profiler runs too.
    """

    start: bool
    torch: list[str] = field(factory=list)


@message
class ProfileReport:
    """A process to the runner: it records now, or these are its ``events`` (JSON); or why not.

    ``clock``: at a start, its monotonic clock in nanoseconds when the question came and when it was answered.
    """

    process: str
    events: bytes = field(default=b"", repr=False)
    dropped: int = 0
    problem: str = ""
    clock: tuple[int, int] | None = None


@message
class StatusRequest:
    """Any process of the same user to a runner: answer at ``endpoint`` with a :class:`StatusReport`."""

    endpoint: str


@message
class ProfileRequest:
    """Any process of the same user to a runner: record for ``seconds``, write the trace to ``path``, answer at ``endpoint``."""

    endpoint: str
    seconds: float
    path: str
    torch: list[str] = field(factory=list)


@message
class ProfileDone:
    """The answer: the number of events in the trace, of those dropped, the processes that gave none; or the ``problem``."""

    events: int = 0
    dropped: int = 0
    missing: list[str] = field(factory=list)
    problem: str = ""


@register
@frozen
class StatusReport:
    """A running pipeline: its name, the seconds since its start, health by unit, counters by process and stage."""

    pipeline: str
    uptime: float
    health: dict[str, dict[str, Any]]
    statistics: dict[str, dict[str, dict[str, float]]]


@message
class StageStatistics:
    """Stage to coordinator, on request: counters as plain numbers (queue depth, free KV blocks, relay bytes)."""

    process: str
    counters: dict[str, dict[str, float]] = field(factory=dict)


@message
class StatisticsRequest:
    """Coordinator to a process: answer with :class:`StageStatistics`."""

    process: str


@message
class FlushRequest:
    """Coordinator to a process: forget what is kept for later requests, and answer with :class:`FlushReport`."""


@message
class FlushReport:
    """A process to the coordinator: these stages of it have forgotten what they kept."""

    process: str
    stages: list[str]
