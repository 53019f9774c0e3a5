"""The servers of ``serve.py``: ours over no-ops, a bare FastAPI echo; and the pipeline's stages. Run as a process of its own.

python serve_apps.py NAME     # prints the port
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Generator
from typing import Any

import numpy as np
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

from omni_core import open_async
from omni_core.config.schema import PipelineConfig, StageConfig
from omni_core.coordinator import StreamEvent
from omni_core.interface import SPEECH, TEXT, Interface
from omni_core.protocol.messages import OmniRequest, StagePayload
from omni_core.protocol.outputs import AudioChunk, AudioResult, TextResult
from omni_serve import Settings, create_app
from omni_serve.listening import freeze_start, open_socket, web_server

RATE = 24_000
PIECE = np.zeros(RATE // 10, np.float32)

WRITES = Interface(roles={TEXT: "write"}, inputs=["text"], outputs=["text"])
SPEAKS = Interface(roles={SPEECH: "speak"}, inputs=["text"], outputs=["audio"], sample_rate=RATE)


def write(payload: StagePayload) -> TextResult:
    """Answer without any work."""
    return TextResult("Hello.", [], "stop", {"prompt_tokens": 3, "completion_tokens": 2})


def hand_on(payload: StagePayload) -> str:
    """Do nothing for the next stage."""
    return "Hello."


def speak(payload: StagePayload) -> Generator[AudioChunk, None, AudioResult]:
    """Stream ten pieces. The first sample of each is the time at which it was made, to the microsecond, as text beside it."""
    for _ in range(10):
        yield AudioChunk(PIECE, RATE)
    return AudioResult(PIECE[:0], RATE)


def pipeline(stage: str, interface: Interface) -> PipelineConfig:
    return PipelineConfig(
        model_path="none",
        name="noop",
        stages=[StageConfig(name=stage, process="p", factory=f"serve_apps:{stage}", terminal=True)],
        interface=interface,
    )


def chain(process: str | None = None) -> PipelineConfig:
    """Three stages without work: each in a process of its own, as the peer's pipeline had, or all in one."""
    first, second = (
        StageConfig(name=name, process=process or name, factory="serve_apps:hand_on", next=[after])
        for name, after in (("first", "second"), ("second", "write"))
    )
    last = StageConfig(name="write", process=process or "write", factory="serve_apps:write", terminal=True)
    return PipelineConfig(model_path="none", name="noop", stages=[first, second, last], interface=WRITES)


class NoPipeline:
    """A pipeline without processes: what is left is HTTP alone."""

    config = pipeline("write", WRITES)

    async def stream(self, request: OmniRequest, request_id: str | None = None) -> AsyncIterator[StreamEvent]:
        yield StreamEvent("write", TextResult("Hello.", [], "stop", {"prompt_tokens": 3, "completion_tokens": 2}), True)

    def health(self) -> dict[str, dict[str, Any]]:
        return {"p": {"stages": ["write"], "state": "ready", "restarts": 0, "reason": ""}}


class Asked(BaseModel):
    """The body of a chat, as little of it as a handler can do with."""

    model: str
    messages: list[dict[str, Any]]


def echo() -> FastAPI:
    """A bare FastAPI application that answers a chat with an answer of the same size."""
    app = FastAPI()

    @app.post("/v1/chat/completions")
    async def chat(asked: Asked) -> dict[str, Any]:
        message = {"role": "assistant", "content": "Hello.", "refusal": None}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
        usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
        kind, created = "chat.completion", int(time.time())
        return {
            "id": "chatcmpl-1",
            "object": kind,
            "created": created,
            "model": asked.model,
            "choices": [choice],
            "usage": usage,
        }

    return app


async def serve(app: Any) -> None:
    """Serve as ``omni serve`` does."""
    server = web_server(app, drain_seconds=1)
    freeze_start()
    listener = open_socket("127.0.0.1:0")
    print(listener.getsockname()[1], flush=True)
    await server.serve(sockets=[listener])


async def serve_plainly(app: FastAPI) -> None:
    """Serve with uvicorn as it is, on the same parser and without a log of requests."""
    listener = open_socket("127.0.0.1:0")
    print(listener.getsockname()[1], flush=True)
    config = uvicorn.Config(app, loop="asyncio", http="httptools", log_config=None, access_log=False)
    await uvicorn.Server(config).serve(sockets=[listener])


async def main(name: str) -> None:
    settings = Settings(keys={"bench": "a key for the benchmark"}, concurrent=256)
    if name == "echo":
        await serve_plainly(echo())
    elif name == "http":
        await serve(create_app(NoPipeline(), settings))  # type: ignore[arg-type]
    else:
        configs = {
            "noop": pipeline("write", WRITES),
            "chain": chain(),
            "together": chain("p"),
            "speech": pipeline("speak", SPEAKS),
        }
        async with open_async(configs[name]) as pipe:
            await serve(create_app(pipe, settings))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
