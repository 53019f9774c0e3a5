"""Sound that is still coming, through stages of recognisers that read windows."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_transformers import MAKERS, checkpoint, recognisers
from tiny_transformers.driving import outputs, replies, running, send_sound
from tiny_transformers.tiny_whisper import hear, tone
from tiny_transformers.written import LANGUAGE

from omni_core.api import AudioChunk, IncomingMessage, InvalidRequestError, Scheduler, Transcript
from omni_testing.outputs import check_transcript
from omni_transformers.architectures import table
from omni_transformers.pipeline import transformers as pipeline
from omni_transformers.recognise.live_windows import LiveWindows
from omni_transformers.recognise.whisper import create_whisper

assert recognisers
SMALL = ("WhisperForConditionalGeneration", "MoonshineForConditionalGeneration", "Wav2Vec2ForCTC", "ParakeetForTDT")
NAMES = [name for name in MAKERS if table()[name].kind == "recognise"]
ALL = [pytest.param(name, marks=[] if name in SMALL else [pytest.mark.full], id=name) for name in NAMES]


@pytest.fixture(scope="module", params=ALL)
def name(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture(scope="module")
def scheduler(name: str) -> Iterator[LiveWindows[Any]]:
    [stage] = pipeline(str(checkpoint(name))).stages
    assert stage.factory is not None
    module, factory = stage.factory.split(":")
    made = getattr(import_module(module), factory)(str(checkpoint(name)), **stage.factory_args)
    made._behind = math.inf  # every hypothesis is made, however late
    with running(made) as scheduler:
        assert isinstance(scheduler, LiveWindows)
        yield scheduler


def live(scheduler: Scheduler, name: str, pieces: Sequence[np.ndarray], times: str = "none", **params: Any) -> Transcript:
    """Return the transcript of a sound that comes in pieces; what is streamed must be that."""
    language = {"language": LANGUAGE[name]} if name in LANGUAGE else {}
    send_sound(scheduler, "live", pieces, **language, timestamps=times, **params)
    *chunks, result = outputs(scheduler, ["live"])["live"]
    if isinstance(result, BaseException):
        raise result
    check_transcript(chunks, result, times)
    assert isinstance(result, Transcript)
    return result


def test_a_short_sound_gives_what_its_recording_gives(scheduler: Scheduler, name: str) -> None:
    language = {"language": LANGUAGE[name]} if name in LANGUAGE else {}
    samples = tone(0.9, 1)
    [(_, whole)] = replies(scheduler, [hear(samples, timestamps="segment", **language)])
    result = live(scheduler, name, np.split(samples, [1, 5000]), "segment")
    assert (result.text, result.language, result.duration) == (whole.text, whole.language, 0.9)
    assert whole.text
    assert result.segments[0].start == whole.segments[0].start
    assert "".join(each.text for each in result.segments).strip() == result.text
    assert result.finish_reason == whole.finish_reason


def test_every_cut_gives_the_same(scheduler: Scheduler, name: str) -> None:
    samples = np.concatenate([tone(2.6, 1), np.zeros(24_000, np.float32), tone(1.3, 2)])
    made = [live(scheduler, name, np.split(samples, cuts), "segment") for cuts in ([], range(0, len(samples), 3001))]
    assert made[0] == made[1]
    assert made[0].text
    assert made[0].duration == 5.4
