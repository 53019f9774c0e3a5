"""Frames with their times, and the sound meanwhile, make the prompt that the same video makes as a file."""

from __future__ import annotations

import io
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import soundfile
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from media import tone
from PIL import Image

from omni_core.protocol.messages import OmniRequest, StagePayload
from omni_media.api import Limits
from omni_qwen3.config import read_config
from omni_qwen3.preprocessing import Preprocessor

RATE = 16_000


def wav(samples: np.ndarray[Any, Any]) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, RATE, format="WAV", subtype="PCM_16")
    return file.getvalue()


def pixels(number: int) -> np.ndarray[Any, Any]:
    generator = np.random.default_rng(number)
    return np.kron(generator.integers(0, 255, (4, 6, 3), dtype=np.uint8), np.ones((16, 16, 1), np.uint8))


def png(number: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels(number)).save(file, "PNG")
    return file.getvalue()


def shown(times: Sequence[float], samples: np.ndarray[Any, Any]) -> dict[str, Any]:
    frames = [{"data": png(number)} for number in range(len(times))]
    return {"type": "video", "frames": frames, "times": list(times), "sound": {"data": wav(samples)}}


def filed(
    times: Sequence[float], samples: np.ndarray[Any, Any], numbers: Sequence[int] | None = None
) -> dict[str, Any]:
    """The same as a file, without loss."""
    file = io.BytesIO()
    with av.open(file, "w", format="matroska") as container:
        stream = container.add_stream("ffv1", rate=1000)
        stream.width, stream.height, stream.pix_fmt = 96, 64, "bgr0"
        track = container.add_stream("pcm_s16le", rate=RATE, layout="mono")
        for number, time in zip(numbers or range(len(times)), times, strict=True):
            frame = av.VideoFrame.from_ndarray(pixels(number), format="rgb24")
            frame.pts, frame.time_base = round(time * 1000), Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
        data = np.frombuffer(wav(samples)[44:], np.int16)[None]
        audio = av.AudioFrame.from_ndarray(data, format="s16", layout="mono")
        audio.sample_rate, audio.pts, audio.time_base = RATE, 0, Fraction(1, RATE)
        container.mux(track.encode(audio))
        container.mux(track.encode(None))
    return {"type": "video", "data": file.getvalue()}


@pytest.fixture(scope="module")
def preprocess(tiny: dict[str, Path]) -> Any:
    made = Preprocessor(str(tiny["a"]), Limits(), video_fps=2.0, max_context=None)

    def prompt(*parts: dict[str, Any]) -> dict[str, Any]:
        content = [*parts, {"type": "text", "text": "Well?"}]
        metadata = {"use_audio_in_video": "data" in parts[0]}
        request = OmniRequest({"messages": [{"role": "user", "content": content}]}, metadata=metadata)
        return made(StagePayload("r", request, None))

    return prompt


def same(ours: Any, other: Any) -> None:
    if isinstance(other, dict):
        assert ours.keys() == other.keys()
        for name in other:
            same(ours[name], other[name])
    elif isinstance(other, list | tuple):
        assert len(ours) == len(other)
        for each, wanted in zip(ours, other, strict=True):
            same(each, wanted)
    elif isinstance(other, torch.Tensor):
        assert torch.equal(ours, other)
    else:
        assert ours == other


@settings(max_examples=10, deadline=None)
@given(gaps=st.lists(st.integers(40, 500), max_size=12), seconds=st.floats(0.1, 7.0))
def test_the_prompt_equals_that_of_the_file(preprocess: Any, gaps: list[int], seconds: float) -> None:
    """Ids, positions, patches and features, of the thinker and of the talker."""
    times, samples = [0.0, *(np.cumsum(gaps) / 1000).tolist()], tone(3, seconds)
    same(preprocess(shown(times, samples)), preprocess(filed(times, samples)))


def test_a_frame_a_second_stands_at_its_second(preprocess: Any) -> None:
    """It is taken twice, as from a camera that films all the time; of a file, the reference makes a shorter video."""
    samples = tone(4, 4.3)
    ours = preprocess(shown([0.0, 1.0, 2.0, 3.0], samples))
    same(ours, preprocess(filed([number / 2 for number in range(8)], samples, [0, 0, 1, 1, 2, 2, 3, 3])))
    assert ours["image"]["video_grid_thw"].tolist()[0][0] == 4
    shorter = preprocess(filed([0.0, 1.0, 2.0, 3.0], samples))
    assert shorter["image"]["video_grid_thw"].tolist()[0][0] == 2


def test_rare_frames_are_taken_twice_each(preprocess: Any, tiny: dict[str, Path]) -> None:
    """A frame in five seconds: five seconds between the steps, and the sound in between."""
    ours = preprocess(shown([0.0, 5.0, 10.0], tone(5, 15.0)))
    assert ours["image"]["video_grid_thw"].tolist()[0][0] == 3
    config = read_config(tiny["a"])
    steps = ours["positions"][0][ours["input_ids"] == config.video_token].unique()
    second = config.raw["thinker_config"]["position_id_per_seconds"]
    assert (steps - steps[0]).tolist() == [0, 5 * second, 10 * second]


def test_turns_of_a_conversation(preprocess: Any) -> None:
    """Seen, then heard, as one whose frames are forgotten, then seen again."""
    times, short, long = [0.0, 0.5, 1.0], tone(7, 1.4), tone(8, 2.5)
    heard = {"type": "audio", "data": wav(tone(9, 1.1))}
    same(
        preprocess(shown(times, long), heard, shown(times, short)),
        preprocess(filed(times, long), heard, filed(times, short)),
    )


def test_sound_of_a_turn_is_heard_without_being_asked_for(preprocess: Any) -> None:
    assert "audio" in preprocess(shown([0.0], tone(6, 1.0)))
