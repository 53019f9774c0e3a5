"""``POST /v1/completions``: texts that the model goes on from as they are, without a chat template, in OpenAI's older form."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any

from attrs import define, field
from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from omni_core.api import STRUCTURED, TOP_LOGPROBS, OmniRequest, TokenLogprob
from omni_serve.bodies import RawRoute, body_of, json_response, schema
from omni_serve.calls import Call, Sound
from omni_serve.chat import StreamOptions
from omni_serve.choices import MOST_CHOICES, Count, interleaved, seeded, together, total
from omni_serve.errors import invalid
from omni_serve.logprobs import of_completion_tokens
from omni_serve.parameters import LENGTHS, NEUTRAL, ignore_parameter, merged
from omni_serve.server import key_of, server_of
from omni_serve.streams import DONE, Stream, event, unless_gone
from omni_serve.structured import fields_of, take_structured
from omni_serve.usage import of_completion

router = APIRouter(route_class=RawRoute, tags=["completions"])

TOKENS = 16
"""The longest text where the request says nothing, as in OpenAI's API."""


class CompletionRequest(BaseModel):
    """Texts to go on from. Further keys are parameters of the pipeline."""

    model_config = ConfigDict(extra="allow", strict=True)

    model: str
    prompt: (
        Annotated[str, Field(min_length=1)] | Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)]
    )
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Count | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    echo: bool | None = None
    suffix: str | None = None
    extra_body: dict[str, Any] | None = None


@router.post("/v1/completions", openapi_extra=schema(CompletionRequest))
async def create_completion(request: Request) -> Response:
    """Go on from one text or several."""
    server = server_of(request)
    asked = await body_of(request, CompletionRequest)
    server.check_model(asked.model)
    if not server.interface.completes:
        raise invalid(
            "prompt: this pipeline answers messages; use /v1/chat/completions", "prompt", "unsupported_parameter"
        )
    for name, value in (("echo", asked.echo), ("suffix", asked.suffix)):
        if value:
            raise invalid(f"{name}: the answer is what follows the prompt, and no more", name, "unsupported_parameter")
    prompts = [asked.prompt] if isinstance(asked.prompt, str) else asked.prompt
    several = asked.n or 1
    if len(prompts) * several > MOST_CHOICES:
        problem = f"{len(prompts)} texts of {several} choices are over the limit of {MOST_CHOICES} choices"
        raise invalid(f"prompt: {problem}", "prompt", "invalid_value")
    fields = tuple(CompletionRequest.model_fields)
    extra = merged(asked.model_extra, asked.extra_body, fields)
    if (best := extra.pop("best_of", None)) not in (None, several):
        ignore_parameter("best_of", best, fields, {**NEUTRAL, "best_of": ()})
    if server.parameters.reads(LENGTHS[0]) and not any(extra.get(name) is not None for name in LENGTHS):
        extra["max_tokens"] = TOKENS
    structured, held_by = take_structured(server.interface, extra)
    parameters = server.parameters.read(extra, fields)
    if structured is not None:
        parameters.params[STRUCTURED] = structured
    if asked.logprobs is not None:
        if not server.parameters.reads(TOP_LOGPROBS.name):
            raise invalid("logprobs: this pipeline tells none", "logprobs", "unsupported_parameter")
        parameters.params[TOP_LOGPROBS.name] = asked.logprobs
    server.apply_session(request, parameters.metadata)
    completion = _Completion(asked.model, asked.logprobs is not None, several)
    modalities = ["text"] if server.interface.outputs else None
    for number in range(len(prompts) * several):
        params = seeded(parameters.params, number % several)
        omni = OmniRequest({"prompt": prompts[number // several]}, params, modalities, dict(parameters.metadata))
        body = None if number else request.scope["omni.body"]
        call = Call(server, key_of(request), omni, speech=False, body=body)
        call.fields = fields_of(server.interface, structured, held_by)
        completion.calls.append(call)
    if asked.stream:
        usage = asked.stream_options is not None and bool(asked.stream_options.include_usage)
        pieces = completion.stream(include_usage=usage)
        return Stream(pieces, "text/event-stream", events=True, ping_seconds=server.settings.ping_seconds)
    return json_response(await unless_gone(request, completion.whole()))


@define(eq=False)
class _Completion:
    """The texts of one request while they are made."""

    model: str
    tells_logprobs: bool
    several: int
    calls: list[Call] = field(factory=list)
    identity: str = field(factory=lambda: f"cmpl-{secrets.token_hex(12)}")
    created: int = field(factory=lambda: int(time.time()))

    def _object(self, choices: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
        common = {"id": self.identity, "object": "text_completion", "created": self.created, "model": self.model}
        return {**common, "choices": choices, **fields}

    def _choice(self, index: int, text: str, tokens: list[TokenLogprob], begin: int, end: str | None) -> dict[str, Any]:
        logprobs = of_completion_tokens(tokens, begin) if self.tells_logprobs else None
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": end}

    async def whole(self) -> dict[str, Any]:
        """Return the ``text_completion`` object."""
        choices = await together([self._read(index, call) for index, call in enumerate(self.calls)])
        return self._object(choices, usage=self._usage())

    async def _read(self, index: int, call: Call) -> dict[str, Any]:
        text, _, _ = await call.whole()
        return self._choice(index, text, call.fresh_logprobs(), 0, call.finish_reason)

    def _usage(self) -> dict[str, Any]:
        usages = [each.usage for each in self.calls]
        of_prompts = [total(usages[at : at + self.several]) for at in range(0, len(usages), self.several)]
        return of_completion(total(of_prompts, prompts_differ=True))

    async def stream(self, *, include_usage: bool) -> AsyncGenerator[bytes]:
        """Yield the server-sent events."""
        extra: dict[str, Any] = {"usage": None} if include_usage else {}
        streams = [self._events(index, call, extra) for index, call in enumerate(self.calls)]
        async with aclosing(streams[0] if len(streams) == 1 else interleaved(streams)) as events:
            async for each in events:
                yield each
        yield (event(self._object([], usage=self._usage())) if include_usage else b"") + DONE

    async def _events(self, index: int, call: Call, extra: dict[str, Any]) -> AsyncGenerator[bytes]:
        told = 0
        async with aclosing(call.pieces()) as pieces:
            async for piece in pieces:
                if not isinstance(piece, Sound):
                    yield event(self._object([self._choice(index, piece, call.fresh_logprobs(), told, None)], **extra))
                    told += len(piece)
        last = self._choice(index, "", call.fresh_logprobs(), told, call.finish_reason)
        yield event(self._object([last], **extra))
