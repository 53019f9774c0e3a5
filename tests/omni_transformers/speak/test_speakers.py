"""Every model that speaks: its sound is that of its own call, streamed as whole, alone as beside others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_transformers import checkpoint, speakers
from tiny_transformers.driving import replies, running, say
from tiny_transformers.heard import HEARD

from omni_core.api import Scheduler
from omni_transformers.checkpoints import read
from omni_transformers.speak.declaration import SPEAKERS, interface, stages
from omni_transformers.speak.stage import create_speaker

assert speakers
FEW = ("VitsModel", "SpeechT5ForTextToSpeech", "CsmForConditionalGeneration", "PocketTTSForConditionalGeneration")
ALL = [pytest.param(name, marks=() if name in FEW else pytest.mark.full) for name in SPEAKERS]
TEXTS = ["Hello there.", "What is a stage?", "Yes, it is.", "Nobody knows that."]
SENTENCES = [
    "Hello there.",
    "This is the second sentence, and it is a longer one.",
    "And another, for whoever listens to the very end.",
]
BY_FRAME = ("Csm", "Dia", "Higgs", "PocketTTS", "Gradium", "VibeVoice")
"""Speak a text as one piece, and stream it frame by frame."""


def opened(architecture: str) -> Scheduler:
    folder = checkpoint(architecture)
    source = read(str(folder))
    [stage] = stages(source, source.given)
    return create_speaker(str(folder), **stage.factory_args)


def sound(streamed: list[Any]) -> np.ndarray[Any, Any]:
    return np.concatenate([each.samples for each in streamed])


@pytest.mark.parametrize("architecture", ALL)
def test_the_sound_is_that_of_the_models_own_call(architecture: str) -> None:
    folder: Path = checkpoint(architecture)
    with running(opened(architecture)) as scheduler:
        [(streamed, result)] = replies(scheduler, [say(TEXTS[0], speech={"seed": 3})])
    [wanted] = HEARD[architecture](folder, TEXTS[:1], 3)
    assert np.abs(wanted).max() > 1e-3
    assert result.samples.shape == wanted.shape
    np.testing.assert_allclose(result.samples, wanted.clip(-1, 1), atol=1e-4)
    np.testing.assert_array_equal(sound(streamed), result.samples)
    assert len(streamed) > 1 or not architecture.startswith(BY_FRAME)
    assert {result.sample_rate, *(each.sample_rate for each in streamed)} == {interface(read(str(folder))).sample_rate}


@pytest.mark.parametrize("architecture", ALL)
def test_four_at_once_equal_those_alone(architecture: str) -> None:
    asked = [say(text, speech={"seed": number}) for number, text in enumerate(TEXTS)]
    with running(opened(architecture)) as scheduler:
        alone = [replies(scheduler, [each])[0][1].samples for each in asked]
        together = [result.samples for _, result in replies(scheduler, asked)]
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_array_equal(one, other)
    assert len({each.tobytes() for each in alone}) > 1


@pytest.mark.parametrize("architecture", [each for each in ALL if not str(each.values[0]).startswith((*BY_FRAME, "Musicgen"))])
def test_a_long_text_is_spoken_sentence_by_sentence(architecture: str) -> None:
    with running(opened(architecture)) as scheduler:
        [(streamed, result)] = replies(scheduler, [say(" ".join(SENTENCES), speech={"seed": 5})])
    wanted = HEARD[architecture](checkpoint(architecture), SENTENCES, 5)
    np.testing.assert_allclose(result.samples, np.concatenate(wanted).clip(-1, 1), atol=1e-4)
    ends = np.cumsum([len(each.samples) for each in streamed])
    assert set(np.cumsum([len(each) for each in wanted])) <= {*ends}
