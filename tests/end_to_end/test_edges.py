"""Defined behaviour in cases where the reference crashes (docs/decisions/0028-qwen-omni.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import media
import numpy as np
import pytest
from harness import pipeline, request_of, text_part

from omni_core.client import open_async
from omni_core.protocol.messages import OmniRequest
from omni_qwen3.config import read_config


def changed(request: OmniRequest, stage: str, **params: Any) -> OmniRequest:
    request.params[stage] |= params
    return request


async def test_replies_without_speech(checkpoints: dict[str, Path], cases: dict[str, Any]) -> None:
    config = read_config(checkpoints["a"])
    eos = config.talker.codec_eos
    others = [token for token in range(config.talker.text.vocab_size) if token != eos]
    everything = [token for token in range(config.thinker.vocab_size) if token != config.im_end]
    silent = {
        "a reply of one token": changed(request_of(cases["text"]), "thinker", max_new_tokens=1),
        "an empty reply": changed(request_of(cases["text"]), "thinker", suppressed_ids=everything),
        "an immediate codec EOS": changed(request_of(cases["text"]), "talker", suppressed_ids=others),
        "one talker token": changed(request_of(cases["image"]), "talker", max_new_tokens=1),
    }
    async with open_async(pipeline(checkpoints["a"], processes="one")) as client:
        for name, request in silent.items():
            answer = await client.submit(request)
            assert len(answer["code2wav"].samples) == 0, name
            assert answer["code2wav"].sample_rate == 24_000
        assert (await client.submit(request_of(cases["text"])))["code2wav"].samples.size > 0
        empty = await client.submit(changed(request_of(cases["text"]), "thinker", suppressed_ids=everything))
        assert empty["decode"].text == ""
        assert empty["decode"].token_ids == [config.im_end]


async def test_a_video_without_sound_gets_a_notice(checkpoints: dict[str, Path], cases: dict[str, Any]) -> None:
    request = request_of(cases["video"], metadata={"use_audio_in_video": True})
    async with open_async(pipeline(checkpoints["a"], processes="one")) as client:
        heard = await client.submit(request)
        plain = await client.submit(request_of(cases["video"]))
    assert "has no audio track" in heard["decode"].notices[0]
    assert "video.mkv" in heard["decode"].notices[0]
    assert heard["decode"].token_ids == plain["decode"].token_ids
    assert plain["decode"].notices == []


async def test_any_rate_and_channel_count_and_bytes(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    """A 44.1 kHz stereo file gives the same reply as its 16 kHz mono version; so does the same file as bytes."""
    import soundfile
    import soxr

    mono = media.tone(9, 1.0)
    stereo = soxr.resample(np.stack([mono, mono], axis=1), 16_000, 44_100)
    soundfile.write(tmp_path / "stereo.flac", stereo, 44_100)

    def heard(**part: Any) -> OmniRequest:
        chat = [{"role": "user", "content": [{"type": "audio", **part}, text_part("What is it?")]}]
        return request_of({"messages": chat, "thinker_max_new_tokens": 8, "talker_max_new_tokens": 8})

    async with open_async(pipeline(checkpoints["a"], processes="one")) as client:
        by_path = await client.submit(heard(path=str(tmp_path / "stereo.flac")))
        by_bytes = await client.submit(heard(data=(tmp_path / "stereo.flac").read_bytes()))
        as_array = await client.submit(heard(samples=mono, sample_rate=16_000))
    assert by_path["decode"].token_ids == by_bytes["decode"].token_ids
    assert len(as_array["decode"].token_ids) > 0


@pytest.mark.parametrize(
    "speaker", [pytest.param("chelsie", marks=pytest.mark.full), "Ethan", pytest.param("AIDEN", marks=pytest.mark.full)]
)
async def test_speakers_sound_different(speaker: str, checkpoints: dict[str, Path], cases: dict[str, Any]) -> None:
    async with open_async(pipeline(checkpoints["a"], processes="one")) as client:
        spoken = await client.submit(request_of(cases["text"], metadata={"speaker": speaker}))
        other = await client.submit(
            request_of(cases["text"], metadata={"speaker": "ethan" if speaker != "Ethan" else "aiden"})
        )
    assert spoken["decode"].token_ids == other["decode"].token_ids
    assert not np.array_equal(np.asarray(spoken["code2wav"].codes), np.asarray(other["code2wav"].codes))
