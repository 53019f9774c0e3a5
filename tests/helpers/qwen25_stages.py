"""The stages of the pipeline without processes: requests in; ids, codes, mel frames and sound out."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from attrs import define, field

from omni_core.protocol.messages import OmniRequest, StagePayload
from omni_core.scheduling.base import IncomingMessage, OutgoingMessage, Scheduler
from omni_core.stage.assembly import assemble
from omni_qwen3.aggregate import merge_for_thinker
from omni_qwen3.routing import encoders_needed, to_aggregate
from omni_qwen25.aggregate import create_aggregate
from omni_qwen25.code2mel import create_code2mel
from omni_qwen25.encoders import create_audio_encoder, create_image_encoder
from omni_qwen25.interface import SPEECH_INTERFACE
from omni_qwen25.mel2wav import create_mel2wav
from omni_qwen25.preprocessing import create_preprocessing

ENGINE = "omni_torch.engine.scheduler:EngineScheduler"


@define
class Reply:
    """Everything that the stages made of a request."""

    prompt: dict[str, Any] = field(factory=dict)
    ids: list[int] = field(factory=list)
    codes: list[int] = field(factory=list)
    mel: torch.Tensor | None = None
    samples: Any = None
    notices: list[str] = field(factory=list)


class Stages:
    """The stages of a checkpoint."""

    def __init__(self, checkpoint: Path, **engine: Any) -> None:
        path = str(checkpoint)
        self.preprocessing = create_preprocessing(path)
        self.encoders = {"image_encoder": create_image_encoder, "audio_encoder": create_audio_encoder}
        self.made: dict[str, Scheduler] = {}
        self.path = path
        self.aggregate = create_aggregate(path)
        thinker = "omni_qwen25.thinker:ThinkerRunner.from_checkpoint"
        talker = "omni_qwen25.talker:TalkerRunner.from_checkpoint"
        self.thinker = assemble(thinker, ENGINE, model_path=path, **engine)
        self.talker = assemble(talker, ENGINE, "omni_qwen25.talker:TalkerFeedback", model_path=path, **engine)
        self.code2mel = create_code2mel(path)
        self.mel2wav = create_mel2wav(path, chunk=40)

    def run(self, *requests: OmniRequest) -> list[Reply]:
        """Return the replies of requests that come together."""
        asked = {f"r{number}": self._checked(each) for number, each in enumerate(requests)}
        replies = {name: Reply() for name in asked}
        payloads = {name: StagePayload(name, each, None) for name, each in asked.items()}
        prompts, _ = through(self.preprocessing, payloads)
        merged = {}
        for name, payload in prompts.items():
            replies[name].prompt = payload.data
            sources = {"preprocessing": _with(payload, to_aggregate(payload))}
            for stage in encoders_needed(payload.data):
                kind = stage.removesuffix("_encoder")
                scheduler = self.made.setdefault(stage, self.encoders[stage](self.path))
                sources[stage] = through(scheduler, {name: _with(payload, payload.data[kind])})[0][name]
            merged[name] = _with(payload, merge_for_thinker(sources))
        texts, streamed = through(self.thinker, through(self.aggregate, merged)[0])
        for name, payload in texts.items():
            replies[name].ids = payload.data["token_ids"]
        spoken = self._speak(asked, texts, streamed)
        for name, payload in spoken.items():
            replies[name].codes = payload.data["codes"].tolist()
        mels, _ = through(self.code2mel, spoken)
        for name, payload in mels.items():
            replies[name].mel = payload.data["mel"]
        for name, payload in through(self.mel2wav, mels)[0].items():
            replies[name].samples, replies[name].notices = payload.data.samples, payload.data.notices
        return list(replies.values())

    def _speak(
        self, asked: dict[str, OmniRequest], texts: dict[str, StagePayload], streamed: list[OutgoingMessage]
    ) -> dict[str, StagePayload]:
        def feed(name: str, payload: StagePayload) -> list[IncomingMessage]:
            chunks = [each.data for each in streamed if each.request_id == name and each.target == "talker"]
            light = asked[name].without_inputs()
            messages = [IncomingMessage(name, "stream_chunk", each, "thinker", None, light) for each in chunks]
            return [*messages, IncomingMessage(name, "stream_done", None, "thinker", None, light)]

        return through(self.talker, texts, feed)[0]

    @staticmethod
    def _checked(request: OmniRequest) -> OmniRequest:
        return OmniRequest(
            request.inputs,
            SPEECH_INTERFACE.check_params(request.params),
            request.modalities,
            SPEECH_INTERFACE.check_metadata(request.metadata),
        )


_STARTED: set[Scheduler] = set()
"""Schedulers whose threads run, until the tests end."""


def through(
    scheduler: Scheduler,
    payloads: dict[str, StagePayload],
    feed: Callable[[str, StagePayload], list[IncomingMessage]] | None = None,
) -> tuple[dict[str, StagePayload], list[OutgoingMessage]]:
    """Give a scheduler all payloads at once; return its results and what it streamed. Raises what a request raises."""
    for name, payload in payloads.items():
        given = [IncomingMessage(name, "new_request", payload, None, None, payload.request.without_inputs())]
        for message in given if feed is None else feed(name, payload):
            scheduler.inbox.put(message)
    results: dict[str, StagePayload] = {}
    streamed: list[OutgoingMessage] = []
    if scheduler not in _STARTED:
        _STARTED.add(scheduler)
        threading.Thread(target=scheduler.start, daemon=True).start()
    while len(results) < len(payloads):
        output = scheduler.outbox.get(120)
        assert output is not None, f"{sorted(payloads.keys() - results.keys())} did not end"
        if output.type == "error":
            raise output.data
        if output.type == "result":
            results[output.request_id] = _with(payloads[output.request_id], output.data)
        else:
            streamed.append(output)
    return results, streamed


def _with(payload: StagePayload, data: Any) -> StagePayload:
    return StagePayload(payload.request_id, payload.request, data)
