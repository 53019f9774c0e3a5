"""The demo, opened by its name and asked through the blocking client."""

from __future__ import annotations

import numpy as np
import pytest

import omni_core as omni
from demo_training.speech import report


def test_the_demo_answers_in_text_and_speech() -> None:
    picture = report.picture("red", 0)
    with omni.open("demo", options={"processes": "one"}) as pipe:
        reply = pipe.chat("What is your name?", seed=1)
        assert reply.text == "My name is Omni."
        assert reply.audio.sample_rate == 24_000
        assert 0.5 < reply.audio.seconds < 4.0
        assert np.abs(reply.audio.samples).max() > 0.05
        assert reply.usage.completion_tokens > 2
        pieces = list(pipe.chat("Hello", stream=True))
        assert "".join(str(each) for each in pieces if isinstance(each, omni.TextPiece)) == "Hello, nice to meet you."
        assert sum(each.seconds for each in pieces if isinstance(each, omni.AudioPiece)) > 0.5
        shown = pipe.chat("", image=[part["image"] for part in picture.parts], modalities=["text"])
        assert shown.text == picture.reply
        with pytest.raises(
            omni.InvalidRequestError, match=r"messages\[0\]\.content\[0\] \(image\): not an image"
        ) as refused:
            pipe.chat("What do you see?", image=b"no image")
        assert refused.value.stage == "preprocessing"
        with pytest.raises(omni.InvalidRequestError, match="speaker: must be one of"):
            pipe.chat("Hello", voice="nobody")
