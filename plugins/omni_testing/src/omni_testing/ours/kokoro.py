"""Conformance suites of Kokoro, on a tiny checkpoint."""

from __future__ import annotations

from functools import cache
from typing import Any

from omni_core.api import OmniRequest, PipelineConfig, Scheduler, TextChunk
from omni_kokoro.pipeline import default_model, kokoro
from omni_kokoro.reader import create_reader
from omni_testing import PipelineConformance, StreamedInputConformance

TEXTS = (
    "hˈɛlO. ðˈɪs ɪz ɐ lˈɑŋɡəɹ sˈɛntəns, wˌɪʧ hɐz tˈu pˈɑɹts.\nænd ɐnˈʌðəɹ wˌʌn!",
    "wˌʌn tˈu θɹˈi fˈɔɹ fˈIv.",
)
"""Phonemes, so that no program is needed."""

PARAMS = {"speech": {"phonemes": True, "seed": 3}}


@cache
def checkpoint() -> str:
    return default_model()[0]


def asked(voice: str = "af_heart(2)+af_bella") -> OmniRequest:
    return OmniRequest({"messages": []}, PARAMS, metadata={"speaker": voice}, stream=True)


class SpeechConformance(PipelineConformance):
    """The whole pipeline, whole texts and streams."""

    def config(self) -> PipelineConfig:
        return kokoro(checkpoint())

    def requests(self) -> list[OmniRequest]:
        metadata = {"speaker": "bf_emma"}
        return [
            OmniRequest({"messages": [{"role": "user", "content": each}]}, PARAMS, metadata=metadata) for each in TEXTS
        ]

    def inputs(self) -> list[tuple[OmniRequest, list[Any]]]:
        request = OmniRequest({"messages": []}, PARAMS, metadata={"speaker": "bf_emma"})
        return [(request, [TextChunk(each[at : at + 5]) for at in range(0, len(each), 5)]) for each in TEXTS]


class ReaderConformance(StreamedInputConformance):
    """The stage that pronounces, with every cut of a text."""

    def make(self) -> Scheduler:
        return create_reader(checkpoint())

    def pieces(self, number: int) -> list[Any]:
        return [TextChunk(each) for each in TEXTS[number % 2]]

    def join(self, pieces: list[Any]) -> Any:
        return TextChunk("".join(each.text for each in pieces))

    def bad(self) -> Any:
        return 5

    def request(self) -> OmniRequest:
        return asked()
