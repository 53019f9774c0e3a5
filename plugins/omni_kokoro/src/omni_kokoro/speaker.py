"""The stage that makes the sound, of sentences of several requests in one pass."""

from __future__ import annotations

from collections import deque
from typing import Any, Protocol

import numpy as np
from attrs import define, field

from omni_core.api import AudioChunk, AudioResult, ConfigError, OmniRequest, StagePayload, StreamingScheduler, Word
from omni_kokoro.checkpoint import ONNX, weights_file
from omni_kokoro.config import FRAME
from omni_kokoro.interface import RATE
from omni_kokoro.sentence import Samples, Sentence, Spoken


class Network(Protocol):
    """A network that speaks."""

    def speak(self, sentences: list[Sentence]) -> list[Spoken]:
        """Return the sound of sentences."""
        ...


@define(eq=False)
class _Sound:
    """A request. ``waiting``: sentences, each with its words."""

    waiting: deque[tuple[Sentence, list[list[Any]]]] = field(factory=deque)
    pieces: list[Samples] = field(factory=list)
    words: list[Word] = field(factory=list)
    samples: int = 0
    frames: int = 0
    notices: list[str] = field(factory=list)


class Speaker(StreamingScheduler[_Sound]):
    """Speaks sentences: of all that wait, those of the requests of which least has been spoken come first."""

    def __init__(self, network: Network, most: int) -> None:
        super().__init__()
        self._network, self._most = network, most

    def new_state(self, request_id: str, request: OmniRequest | None) -> _Sound:
        return _Sound()

    def on_payload(self, state: _Sound, payload: StagePayload) -> None:
        state.notices = payload.data["notices"]

    def on_chunk(self, state: _Sound, chunk: dict[str, Any], metadata: dict[str, Any] | None) -> None:
        sentence = Sentence(chunk["ids"], np.asarray(chunk["style"]), chunk["speed"], chunk["seed"])
        state.waiting.append((sentence, chunk["words"]))

    def step(self, states: dict[str, _Sound]) -> dict[str, BaseException]:
        failures: dict[str, BaseException] = {}
        here = [name for name, each in states.items() if each.waiting and not self.is_aborted(name)]
        chosen = sorted(here, key=lambda name: states[name].samples)[: self._most]
        for name, spoken in self._spoken({name: states[name].waiting[0][0] for name in chosen}, failures).items():
            self._put(name, states[name], spoken)
        self.unfinished = {name: None for name in here if name not in failures and states[name].waiting}
        if self.unfinished:
            self.wait = 0.0
        return failures

    def finish(self, request_id: str, state: _Sound) -> AudioResult:
        samples = np.concatenate(state.pieces) if state.pieces else np.zeros(0, np.float32)
        usage = {"completion_audio_tokens": state.frames}
        return AudioResult(samples, RATE, notices=state.notices, words=state.words, usage=usage)

    def _spoken(self, sentences: dict[str, Sentence], failures: dict[str, BaseException]) -> dict[str, Spoken]:
        """Speak sentences together; if that fails, each by itself, so that only the one at fault fails."""
        if not sentences:
            return {}
        try:
            return dict(zip(sentences, self._network.speak([*sentences.values()]), strict=True))
        except BaseException as error:
            if len(sentences) == 1:
                failures |= dict.fromkeys(sentences, error)
                return {}
        found: dict[str, Spoken] = {}
        for name, sentence in sentences.items():
            found |= self._spoken({name: sentence}, failures)
        return found

    def _put(self, request_id: str, state: _Sound, spoken: Spoken) -> None:
        _, places = state.waiting.popleft()
        start = state.samples / RATE
        words = _timed(places, spoken.durations, start)
        state.pieces.append(spoken.samples)
        state.words += words
        state.samples += len(spoken.samples)
        state.frames += len(spoken.samples) // FRAME
        self.emit(request_id, AudioChunk(spoken.samples, RATE, start=start, words=words))


def _timed(places: list[list[Any]], durations: Any, start: float) -> list[Word]:
    """Return words with their times, by the durations of their phonemes; none where these are not known."""
    if not len(durations):
        return []
    ends = np.cumsum(durations) * (FRAME / RATE)  # of the silence before the first phoneme, then of each phoneme
    return [
        Word(text, round(start + float(ends[first]), 3), round(start + float(ends[first + count]), 3))
        for text, first, count in places
    ]


def create_speaker(
    model_path: str, device: str = "cpu", weights: str | None = None, max_batch_size: int | None = None
) -> Speaker:
    """Return the stage.

    Args:
        weights: the file, where the folder has several.
        max_batch_size: sentences in one pass.

    Raises:
        ConfigError: the checkpoint cannot be loaded.
    """
    file = weights_file(model_path, weights)
    most = max_batch_size or (1 if device == "cpu" else 8)
    if most < 1:
        raise ConfigError(f"max_batch_size: must be at least 1, is {most}")
    network: Network
    if file.endswith(ONNX):
        from omni_kokoro.onnx import OnnxNetwork

        network = OnnxNetwork(model_path, file)
    else:
        from omni_kokoro.network.model import load_network

        network = load_network(model_path, file, device)
    return Speaker(network, most)
