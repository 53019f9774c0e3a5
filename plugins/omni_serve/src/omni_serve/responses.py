"""``POST /v1/responses``: text and calls of tools in the form of OpenAI's newer API. It is a chat in other words: a request brings the
whole conversation, or goes on from an earlier response, which is kept for a while (``previous_response_id``).
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Annotated, Any

from attrs import define, field
from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from omni_core.api import STRUCTURED, shown
from omni_serve.bodies import RawRoute, body_of, json_response, schema
from omni_serve.body_budget import FREE_BYTES
from omni_serve.calls import Thought
from omni_serve.chat import Chat, ChatRequest
from omni_serve.errors import ApiError, invalid
from omni_serve.ignored import check_fields
from omni_serve.kept_responses import Turn
from omni_serve.parameters import NEUTRAL, ignore_parameter
from omni_serve.response_items import Items, choice_of, tools_of
from omni_serve.server import Server, key_of, server_of
from omni_serve.streams import Stream, event, unless_gone
from omni_serve.structured import FORMAT
from omni_serve.tool_formats import ToolCall
from omni_serve.tools import argument_pieces
from omni_serve.usage import of_response

router = APIRouter(route_class=RawRoute, tags=["responses"])


class ResponsesRequest(BaseModel):
    """A conversation. Further keys are parameters of the pipeline."""

    model_config = ConfigDict(extra="allow", strict=True)

    model: str
    input: str | list[Any]
    instructions: str | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    tools: Annotated[list[dict[str, Any]], Field(fail_fast=True)] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    metadata: dict[str, str] | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    conversation: Any = None


_OF_CHATS = ("messages", "modalities", "audio")
"""Parameters of chats that a response says otherwise, or has not."""


@router.post("/v1/responses", openapi_extra=schema(ResponsesRequest))
async def create_response(request: Request) -> Response:
    """Answer a conversation with text or calls of tools."""
    server = server_of(request)
    asked = await body_of(request, ResponsesRequest, media=["input"])
    if asked.conversation is not None:
        raise invalid(
            "conversation: this server keeps none; send previous_response_id, or the whole conversation as input",
            "conversation",
            "unsupported_parameter",
        )
    for name in _OF_CHATS:
        if (asked.model_extra or {}).get(name) is not None:
            raise invalid(f"{name}: belongs to /v1/chat/completions, not here", name, "unsupported_parameter")
    check_fields(asked.stream_options or {}, (), "stream_options")
    if "text" not in server.interface.outputs and server.interface.outputs:
        raise invalid("This pipeline answers in speech only; use /v1/audio/speech.", code="unsupported_operation")
    owner, most = key_of(request).name, server.settings.limits.text_characters
    before = _before(server, request, asked)
    items = Items.read(
        asked.input,
        asked.instructions,
        lambda name: server.items.find(name, owner),
        most,
        server.interface.reasoning,
        () if before is None else before.conversation,
    )
    if not items.messages:
        raise invalid("input: there is nothing to answer", "input", "invalid_value")
    extra = dict(asked.model_extra or {})
    if isinstance(reasoning := extra.get("reasoning"), dict) and server.parameters.reads("reasoning_effort"):
        extra["reasoning"] = {name: value for name, value in reasoning.items() if name != "effort"}
        extra["reasoning_effort"] = reasoning.get("effort")
    form = _form(server, extra)
    for name in ("n", "logprobs", "top_logprobs"):
        if extra.get(name) not in (None, False, *NEUTRAL[name]):
            ignore_parameter(name, extra.pop(name), ())
    chat_request = ChatRequest.model_validate(
        {
            **extra,
            "audio": None,
            "model": asked.model,
            "messages": items.messages,
            "modalities": ["text"],
            "tools": tools_of(asked.tools),
            "tool_choice": choice_of(asked.tool_choice),
            "parallel_tool_calls": asked.parallel_tool_calls,
        }
    )
    try:
        chat = await Chat.make(server, request, chat_request, (*ResponsesRequest.model_fields, "extra_body"))
        answer = _Answer(asked, items, chat, form, before)
    except ApiError as error:
        raise items.in_their_words(error) from None
    if asked.stream:
        ping = server.settings.ping_seconds
        return Stream(answer.stream(), "text/event-stream", events=True, failed=answer.failed, ping_seconds=ping)
    return json_response(await unless_gone(request, answer.whole()))


@router.delete("/v1/responses/{response_id}")
async def delete_response(request: Request) -> Response:
    """Forget a response. Those that go on from it stay."""
    server, identity = server_of(request), request.path_params["response_id"]
    if not server.responses.delete(identity, key_of(request).name):
        raise ApiError(404, f"No response of the id {shown(identity)} is kept.", code="not_found")
    return json_response({"id": identity, "object": "response", "deleted": True})


def _form(server: Server, extra: dict[str, Any]) -> dict[str, Any]:
    """Return ``text.format``, and give it to the chat under its name there, if the pipeline honours it."""
    text = extra.get("text")
    form = text.get("format") if isinstance(text, dict) else None
    if not isinstance(form, dict) or form.get("type") == "text" or not server.parameters.reads(STRUCTURED):
        return {"type": "text"}
    extra["text"] = {name: value for name, value in extra["text"].items() if name != "format"}
    schema = {name: value for name, value in form.items() if name != "type"}
    extra[FORMAT] = {"type": form.get("type"), **({"json_schema": schema} if schema else {})}
    return form


def _before(server: Server, request: Request, asked: ResponsesRequest) -> Turn | None:
    """Return the response that a request goes on from. Its media count as if the request had brought them.

    Raises:
        ApiError: 400, it is not kept; 413, with it the request is larger than a request may be; 503, there is no room for it now.
    """
    name = asked.previous_response_id
    if name is None:
        return None
    turn = server.responses.find(name, key_of(request).name)
    if turn is None:
        problem = f"no response of the id {shown(name)} is kept: they expire, and `store: false` keeps none"
        raise invalid(
            f"previous_response_id: {problem}; send the whole conversation as input",
            "previous_response_id",
            "previous_response_not_found",
        )
    limits = server.settings.limits
    if turn.values > limits.json_values or turn.size > limits.body_mib * 2**20:
        problem = "the conversation is larger than a request may be (body_mib, json_values); begin a new one"
        raise ApiError(413, f"previous_response_id: {problem}", param="previous_response_id", code="too_large")
    if turn.size > FREE_BYTES:
        request.scope["omni.body"].take(turn.size)
    return turn


def _new_id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(16)}"


@define(eq=False)
class _Answer:
    """One response while it is made."""

    asked: ResponsesRequest
    items: Items
    chat: Chat
    form: dict[str, Any]
    before: Turn | None = None
    identity: str = field(factory=lambda: _new_id("resp"))
    created: int = field(factory=lambda: int(time.time()))
    output: list[dict[str, Any]] = field(factory=list)
    _number: int = 0

    def __attrs_post_init__(self) -> None:
        if self.is_kept:
            self.chat.server.stay(self.session, self.chat.call.request.metadata)

    @property
    def is_kept(self) -> bool:
        """Later requests may go on from it and refer to its items, unless the client says ``store: false``."""
        return self.asked.store is not False

    @property
    def session(self) -> str:
        """The id of the first response of the conversation, which all of them have in common."""
        return self.identity if self.before is None else self.before.session

    async def whole(self) -> dict[str, Any]:
        """Return the finished ``response`` object."""
        async with aclosing(self.stream()) as events:
            async for _ in events:
                pass
        return self._object(self._status)

    async def stream(self) -> AsyncGenerator[bytes]:
        """Yield the events; at their end ``output`` is complete."""
        output = {"type": "output_text", "annotations": [], "logprobs": []}
        message = _Item(self, "msg", {"type": "message", "role": "assistant"}, output, {"logprobs": []})
        thoughts = _Item(self, "rs", {"type": "reasoning", "summary": []}, {"type": "reasoning_text"})
        begun = False
        try:
            async with aclosing(self.chat.parts()) as parts:
                async for part in parts:
                    made: list[bytes] = [] if begun else self._begin()
                    begun = True
                    if isinstance(part, Thought):
                        made += [*message.end(), *thoughts.text(part)]
                    elif isinstance(part, ToolCall):
                        made += [*thoughts.end(), *message.end(), *self._tool(part)]
                    elif isinstance(part, str):
                        made += [*thoughts.end(), *message.text(part)]
                    for each in made:
                        yield each
        except ApiError as error:
            raise self.items.in_their_words(error) from None
        for each in [] if begun else self._begin():
            yield each
        for each in thoughts.end():
            yield each
        if not self.output and not message.is_open:
            for each in message.begin():
                yield each
        for each in message.end():
            yield each
        if self.is_kept:
            call = self.chat.call
            turn = Turn(call.key.name, [*self.items.items, *self.output], self.before, self.session)
            call.server.responses.keep(self.identity, turn)
        kind = "response.completed" if self._status == "completed" else "response.incomplete"
        yield self._event(kind, response=self._object(self._status))

    def failed(self, error: ApiError) -> bytes:
        """Return the event that ends a stream that has failed."""
        code = {400: "invalid_prompt", 429: "rate_limit_exceeded"}.get(error.status, "server_error")
        return self._event(
            "response.failed", response=self._object("failed") | {"error": {"code": code, "message": error.message}}
        )

    @property
    def _status(self) -> str:
        return "incomplete" if self.chat.call.finish_reason == "length" else "completed"

    def _begin(self) -> list[bytes]:
        """Return the first events. They wait for the pipeline's first piece: what fails before it is an error of HTTP."""
        kinds = ("response.created", "response.in_progress")
        return [self._event(kind, response=self._object("in_progress")) for kind in kinds]

    def _tool(self, call: ToolCall) -> list[bytes]:
        item = {
            "type": "function_call",
            "id": _new_id("fc"),
            "call_id": call.identity,
            "name": call.name,
            "arguments": call.arguments,
            "status": "completed",
        }
        index = len(self.output)
        self.keep(item)
        place = {"item_id": item["id"], "output_index": index}
        begun = {**item, "arguments": "", "status": "in_progress"}
        return [
            self._event("response.output_item.added", output_index=index, item=begun),
            *(
                self._event("response.function_call_arguments.delta", **place, delta=piece)
                for piece in argument_pieces(call)
            ),
            self._event("response.function_call_arguments.done", **place, name=call.name, arguments=call.arguments),
            self._event("response.output_item.done", output_index=index, item=item),
        ]

    def keep(self, item: dict[str, Any]) -> None:
        """Add a finished item."""
        self.output.append(item)
        if self.is_kept:
            self.chat.server.items.keep(item["id"], self.chat.call.key.name, json.dumps(item))

    def _event(self, kind: str, **fields: Any) -> bytes:
        self._number += 1
        return event({"type": kind, "sequence_number": self._number - 1, **fields}, kind)

    def _object(self, status: str) -> dict[str, Any]:
        extra = self.asked.model_extra or {}
        finished = status != "in_progress"
        return {
            "id": self.identity,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": self.asked.instructions,
            "max_output_tokens": extra.get("max_output_tokens"),
            "metadata": self.asked.metadata or {},
            "model": self.asked.model,
            "output": list(self.output) if finished else [],
            "parallel_tool_calls": self.asked.parallel_tool_calls is not False,
            "previous_response_id": self.asked.previous_response_id,
            "store": self.is_kept,
            "temperature": extra.get("temperature"),
            "text": {"format": self.form},
            "tool_choice": self.asked.tool_choice or "auto",
            "tools": self.asked.tools or [],
            "top_p": extra.get("top_p"),
            "truncation": "disabled",
            "usage": of_response(self.chat.call.usage) if finished else None,
        }


@define(eq=False)
class _Item:
    """The message in a response, or its reasoning: opened by its first text, closed by what is something else, and at the end.

    Args:
        prefix: of its id.
        fields: of the item.
        part: the fields of its only part.
        beside: fields of events with text.
    """

    _answer: _Answer
    _prefix: str
    _fields: Mapping[str, Any]
    _part: Mapping[str, Any]
    _beside: Mapping[str, Any] = field(factory=dict)
    _item: dict[str, Any] | None = field(default=None, init=False)
    _text: str = field(default="", init=False)

    @property
    def is_open(self) -> bool:
        return self._item is not None

    def begin(self) -> list[bytes]:
        """Open it."""
        answer = self._answer
        self._item = {**self._fields, "id": _new_id(self._prefix), "status": "in_progress", "content": []}
        self._text = ""
        index = len(answer.output)
        return [
            answer._event("response.output_item.added", output_index=index, item=self._item),
            answer._event("response.content_part.added", **self._place(), part={**self._part, "text": ""}),
        ]

    def text(self, text: str) -> list[bytes]:
        """Add text."""
        if not text:
            return []
        begun = [] if self._item is not None else self.begin()
        self._text += text
        return [*begun, self._event("delta", delta=text)]

    def end(self) -> list[bytes]:
        """Close it, if it is open."""
        if self._item is None:
            return []
        answer, index = self._answer, len(self._answer.output)
        part = {**self._part, "text": self._text}
        done = {**self._item, "status": answer._status, "content": [part]}
        place = self._place()
        ended = self._event("done", text=self._text)
        answer.keep(done)
        self._item = None
        return [
            ended,
            answer._event("response.content_part.done", **place, part=part),
            answer._event("response.output_item.done", output_index=index, item=done),
        ]

    def _event(self, kind: str, **fields: str) -> bytes:
        return self._answer._event(f"response.{self._part['type']}.{kind}", **self._place(), **fields, **self._beside)

    def _place(self) -> dict[str, Any]:
        assert self._item is not None
        return {"item_id": self._item["id"], "output_index": len(self._answer.output), "content_index": 0}
