"""The stages of Qwen3-TTS without processes: requests in, codes and sound out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from asking import collect
from attrs import define
from qwen3_tts_cases import Case, recording
from running import running

from omni_core.errors import OmniError
from omni_core.protocol.messages import OmniRequest, StagePayload
from omni_core.protocol.outputs import AudioResult, TextChunk
from omni_core.scheduling.base import IncomingMessage, OutgoingMessage, Scheduler
from omni_core.stage.assembly import assemble
from omni_qwen3_tts.code2wav import create_code2wav
from omni_qwen3_tts.interface import interface_of
from omni_qwen3_tts.preprocessing import create_preprocessing

GREEDY = {"temperature": 0.0}


@define
class Spoken:
    """A request and its text, in pieces if it comes as a stream."""

    request: OmniRequest
    pieces: list[str] | None = None


def asking(case: Case, pieces: list[str] | None = None, *, seed: int | None = None, **talker: Any) -> Spoken:
    """Return a case as a request; ``pieces``: its text as a stream."""
    inputs: dict[str, Any] = {"messages": [{"role": "user", "content": case.text}] if pieces is None else []}
    if case.kind == "base":
        inputs["references"] = [{"samples": recording(case.recording), "sample_rate": 24_000}]
        if case.words:
            inputs["references"][0]["text"] = case.words
    given = {"max_new_tokens": 24, "language": case.language, "dual_track": case.dual_track, **talker}
    if case.style:
        given["instructions"] = case.style
    params = {"talker": given, "return_codes": True, **({} if seed is None else {"seed": seed})}
    metadata = {"speaker": case.speaker} if case.speaker else {}
    return Spoken(OmniRequest(inputs, params, metadata=metadata), pieces)


class Stages:
    """The stages of a checkpoint. ``engine``: options of the talker's stage."""

    def __init__(self, checkpoint: Path | str, **engine: Any) -> None:
        self.path, self.engine = str(checkpoint), engine
        self.interface = interface_of(self.path, {})

    def run(self, *asked: Spoken) -> list[AudioResult]:
        """Return the sounds of requests that come together. Raises what a request raises."""
        names = {f"r{number}": each for number, each in enumerate(asked)}
        checked = {name: self._checked(each.request) for name, each in names.items()}
        first = []
        for name, each in names.items():
            light = checked[name].without_inputs()
            first.append(
                IncomingMessage(name, "new_request", StagePayload(name, checked[name], None), None, None, light)
            )
            for piece in each.pieces or []:
                first.append(IncomingMessage(name, "stream_chunk", TextChunk(piece), None, None, light))
            first.append(IncomingMessage(name, "stream_done", None, None, None, light))
        rows = _through(create_preprocessing(self.path), first, len(names))
        talker = assemble(
            "omni_qwen3_tts.talker:TalkerRunner.from_checkpoint",
            "omni_torch.engine.scheduler:EngineScheduler",
            "omni_qwen3_tts.feedback:TalkerFeedback",
            model_path=self.path,
            **self.engine,
        )
        self.talker = talker
        codes = _through(talker, _onward(rows, checked, "preprocessing"), len(names))
        sounds = _through(create_code2wav(self.path), _onward(codes, checked, "talker"), len(names))
        done = {each.request_id: each.data for each in sounds if each.type == "result"}
        return [done[name] for name in names]

    def _checked(self, request: OmniRequest) -> OmniRequest:
        params, metadata = self.interface.check_params(request.params), self.interface.check_metadata(request.metadata)
        return OmniRequest(request.inputs, params, metadata=metadata)


def _onward(messages: list[OutgoingMessage], asked: dict[str, OmniRequest], source: str) -> list[IncomingMessage]:
    """Return a stage's outputs as the next one gets them."""
    made = []
    for each in messages:
        light = asked[each.request_id].without_inputs()
        if each.type == "stream":
            made.append(IncomingMessage(each.request_id, "stream_chunk", each.data, source, None, light))
        else:
            payload = StagePayload(each.request_id, light, each.data)
            made.append(IncomingMessage(each.request_id, "stream_done", None, source, None, light))
            made.append(IncomingMessage(each.request_id, "new_request", payload, source, None, light))
    return made


def _through(scheduler: Scheduler, messages: list[IncomingMessage], count: int) -> list[OutgoingMessage]:
    """Return a scheduler's outputs, in order. Ends it; raises what a request raises."""
    for message in messages:
        scheduler.inbox.put(message)
    streamed: list[OutgoingMessage] = []
    with running(scheduler):
        final = collect(scheduler, count, 60.0, streamed)
    for each in final.values():
        if each.type == "error":
            raise each.data if isinstance(each.data, OmniError) else RuntimeError("a stage failed") from each.data
    return [*streamed, *final.values()]
