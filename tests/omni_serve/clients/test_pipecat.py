"""Pipecat's OpenAI services in pipelines of its own: speech, language and transcription models, realtime and live sessions."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
from client_voices import KEY, RATE, pcm, program, voice
from loguru import logger
from pipecat.frames.frames import (
    EndFrame,
    ErrorFrame,
    Frame,
    InputAudioRawFrame,
    InterimTranscriptionFrame,
    LLMContextFrame,
    LLMTextFrame,
    OutputAudioRawFrame,
    TranscriptionFrame,
    TTSSpeakFrame,
    TTSStoppedFrame,
    VADUserStartedSpeakingFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.openai.live.llm import OpenAILiveLLMService
from pipecat.services.openai.llm import OpenAILLMService
from pipecat.services.openai.realtime.llm import OpenAIRealtimeLLMService
from pipecat.services.openai.stt import OpenAIRealtimeSTTService, OpenAISTTService
from pipecat.services.openai.tts import OpenAITTSService
from pipecat.workers.runner import WorkerRunner

pytestmark = pytest.mark.asyncio(loop_scope="session")

F = TypeVar("F", bound=Frame)


class Sink(FrameProcessor):
    """Keeps what comes out of a service."""

    def __init__(self) -> None:
        super().__init__(enable_direct_mode=True)
        self.frames: list[Frame] = []
        self._came = asyncio.Condition()

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if direction is FrameDirection.DOWNSTREAM:
            async with self._came:
                self.frames.append(frame)
                self._came.notify_all()
        await self.push_frame(frame, direction)

    def of(self, kind: type[F]) -> list[F]:
        return [each for each in self.frames if isinstance(each, kind)]

    @property
    def text(self) -> str:
        return "".join(each.text for each in self.of(LLMTextFrame))

    @property
    def seconds(self) -> float:
        """The length of the speech so far."""
        frames = self.of(OutputAudioRawFrame)
        return sum(len(each.audio) / 2 / each.sample_rate for each in frames)

    async def until(self, holds: Callable[[], object]) -> None:
        """Wait for a state of what has come; text and sound come in any order."""
        async with self._came:
            await self._came.wait_for(holds)


class Running:
    """A pipeline of one service while it runs."""

    def __init__(self, service: FrameProcessor) -> None:
        self.sink, self.errors = Sink(), list[Any]()
        parameters = PipelineParams(audio_in_sample_rate=RATE, audio_out_sample_rate=RATE)
        self._worker = PipelineWorker(
            Pipeline([service, self.sink]), cancel_on_idle_timeout=False, enable_rtvi=False, params=parameters
        )
        self._started = asyncio.Event()

        @self._worker.event_handler("on_pipeline_started")
        async def started(worker: Any, frame: Any) -> None:
            self._started.set()

        @self._worker.event_handler("on_pipeline_error")
        async def failed(worker: Any, frame: ErrorFrame) -> None:
            self.errors.append(frame.error)

    async def __aenter__(self) -> Running:
        runner = WorkerRunner(handle_sigint=False)
        await runner.add_workers(self._worker)
        self._running = asyncio.ensure_future(runner.run())
        async with asyncio.timeout(30):
            await self._started.wait()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._worker.queue_frame(EndFrame())
        async with asyncio.timeout(30):
            await self._running
        assert self.errors == []

    async def send(self, *frames: Frame) -> None:
        for each in frames:
            await self._worker.queue_frame(each)

    async def speak(self) -> None:
        data, size = pcm(voice(0.8)), RATE // 10 * 2
        await self.send(*(InputAudioRawFrame(data[at : at + size], RATE, 1) for at in range(0, len(data), size)))


def question(text: str, role: str = "user") -> LLMContextFrame:
    return LLMContextFrame(LLMContext([{"role": role, "content": text}]))


async def test_speech(address: str) -> None:
    settings = OpenAITTSService.Settings(model="tones", voice="alloy")
    service = OpenAITTSService(api_key=KEY, base_url=f"http://{address}/v1", settings=settings)
    async with Running(service) as running, asyncio.timeout(30):
        await running.send(TTSSpeakFrame("one two three"))
        await running.sink.until(lambda: running.sink.of(TTSStoppedFrame))
    assert running.sink.seconds == pytest.approx(0.3, abs=0.01)


@pytest.mark.parametrize("role", ["user", "developer", "system"])
async def test_chats(address: str, role: str) -> None:
    """An agent that greets has no message of its user."""
    settings = OpenAILLMService.Settings(model="tones")
    service = OpenAILLMService(api_key=KEY, base_url=f"http://{address}/v1", settings=settings)
    async with Running(service) as running, asyncio.timeout(30):
        await running.send(question("hello there", role))
        await running.sink.until(lambda: running.sink.text == "hello there")


async def test_transcriptions_of_a_stream(address: str) -> None:
    """A session that only transcribes, whose turns end where a detector of Pipecat says so."""
    settings = OpenAIRealtimeSTTService.Settings(model="tones")
    url = f"ws://{address}/v1/realtime"
    service = OpenAIRealtimeSTTService(api_key=KEY, base_url=url, settings=settings)
    ready = asyncio.Event()  # Sound that comes before its `session.update` would be cut into turns by the server.
    log = logger.add(lambda line: ready.set() if "session configured" in line else None)
    async with Running(service) as running, asyncio.timeout(30):
        await ready.wait()
        await running.send(VADUserStartedSpeakingFrame())
        await running.speak()
        await running.send(VADUserStoppedSpeakingFrame())
        await running.sink.until(lambda: running.sink.of(TranscriptionFrame))
    logger.remove(log)
    assert "Write down" in running.sink.of(TranscriptionFrame)[0].text


async def test_interim_transcripts(hearing: str) -> None:
    """Words come before the turn is committed; together they are its transcript."""
    settings = OpenAIRealtimeSTTService.Settings(model="hear")
    service = OpenAIRealtimeSTTService(api_key=KEY, base_url=f"ws://{hearing}/v1/realtime", settings=settings)
    ready = asyncio.Event()
    log = logger.add(lambda line: ready.set() if "session configured" in line else None)
    async with Running(service) as running, asyncio.timeout(30):
        await ready.wait()
        await running.send(VADUserStartedSpeakingFrame())
        await running.speak()
        await running.sink.until(lambda: running.sink.of(InterimTranscriptionFrame))
        assert not running.sink.of(TranscriptionFrame)
        await running.send(VADUserStoppedSpeakingFrame())
        await running.sink.until(lambda: running.sink.of(TranscriptionFrame))
    logger.remove(log)
    final = running.sink.of(TranscriptionFrame)[0].text
    assert final.startswith("en1 en2")
    assert "".join(each.text for each in running.sink.of(InterimTranscriptionFrame)) == final


async def test_transcriptions(address: str) -> None:
    settings = OpenAISTTService.Settings(model="tones")
    service = OpenAISTTService(api_key=KEY, base_url=f"http://{address}/v1", settings=settings)
    async with Running(service) as running, asyncio.timeout(30):
        await running.send(VADUserStartedSpeakingFrame())
        await running.speak()
        await running.send(VADUserStoppedSpeakingFrame())
        await running.sink.until(lambda: running.sink.of(TranscriptionFrame))
    assert "Write down" in running.sink.of(TranscriptionFrame)[0].text


async def test_a_realtime_session(address: str) -> None:
    """A text, then a spoken turn, which may interrupt the answer to the text."""
    settings = OpenAIRealtimeLLMService.Settings(model="tones", system_instruction="Be brief.")
    service = OpenAIRealtimeLLMService(api_key=KEY, base_url=f"ws://{address}/v1/realtime", settings=settings)
    async with Running(service) as running, asyncio.timeout(60):
        await running.send(question("hello there"))
        await running.sink.until(lambda: running.sink.text == "hello there" and running.sink.of(TTSStoppedFrame))
        before = running.sink.seconds
        assert before == pytest.approx(0.2, abs=0.01)
        await running.speak()
        await running.sink.until(lambda: "audio:" in running.sink.text and running.sink.seconds > before)


async def test_a_live_session(address: str) -> None:
    settings = OpenAILiveLLMService.Settings(model="tones", voice="low", system_instruction="Be brief.")
    service = OpenAILiveLLMService(api_key=KEY, base_url=f"ws://{address}/v1/live/sessions", settings=settings)
    started = asyncio.Event()

    @service.event_handler("on_session_started")
    async def begin(*_: object) -> None:
        started.set()

    async with Running(service) as running, asyncio.timeout(60):
        await running.send(question("hello there"))
        await started.wait()  # what is said before, it drops
        await running.speak()
        await running.sink.until(lambda: running.sink.seconds > 0.1)


async def test_the_program_of_the_page(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A greeting and a spoken turn, with a microphone and speakers of the test."""
    microphone, speakers = Sink(), Sink()
    transport = SimpleNamespace(input=lambda: microphone, output=lambda: speakers)
    local = SimpleNamespace(LocalAudioTransport=lambda given: transport, LocalAudioTransportParams=dict)
    monkeypatch.setitem(sys.modules, "pipecat.transports.local.audio", local)
    running = asyncio.create_task(program("Pipecat", address)["main"]())
    async with asyncio.timeout(60):
        await speakers.until(lambda: speakers.of(TTSStoppedFrame))
        before, data, size = speakers.seconds, pcm(voice(0.8)), RATE // 10 * 2
        for at in range(0, len(data), size):
            await microphone.push_frame(InputAudioRawFrame(data[at : at + size], RATE, 1))
        await speakers.until(lambda: speakers.seconds > before)
    assert before == pytest.approx(0.2, abs=0.01)
    assert not speakers.of(ErrorFrame)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
