"""A turn that is seen and heard live is answered as the same video is as a file, and as by the reference."""

from __future__ import annotations

import asyncio
import base64
import io
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from harness import Oracle, pipeline, request_of, text_part
from media import tone
from PIL import Image

pytest.importorskip("omni_serve")

from omni_serve_clients import socket_to

from omni_core import AsyncPipe, open_async
from omni_media.api import frames
from omni_serve import Settings, create_app
from omni_serve.encoders import pcm16
from omni_serve.realtime.audio import wav

WIRE, RATE = 24_000, 16_000
TIMES = [0, 450, 900, 1400, 1900, 2300]
PIECE_MS = 250
PIECES = 10
SESSION = {
    "type": "realtime",
    "audio": {"input": {"turn_detection": None}},
    "seed": 7,
    "temperature": 0,
    "max_output_tokens": 24,
}


def pixels(number: int) -> np.ndarray[Any, Any]:
    coarse = np.random.default_rng(number).integers(0, 255, (4, 6, 3), dtype=np.uint8)
    return np.kron(coarse, np.ones((16, 16, 1), np.uint8))


def png(picture: np.ndarray[Any, Any]) -> bytes:
    file = io.BytesIO()
    Image.fromarray(picture).save(file, "PNG")
    return file.getvalue()


def filed(recording: bytes) -> bytes:
    """Return the turn as a video, without loss."""
    file = io.BytesIO()
    with av.open(file, "w", format="matroska") as container:
        stream = container.add_stream("ffv1", rate=1000)
        stream.width, stream.height, stream.pix_fmt = 96, 64, "bgr0"
        track = container.add_stream("pcm_s16le", rate=RATE, layout="mono")
        for number, time in enumerate(TIMES):
            frame = av.VideoFrame.from_ndarray(pixels(number), format="rgb24")
            frame.pts, frame.time_base = time, Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
        audio = av.AudioFrame.from_ndarray(np.frombuffer(recording[44:], np.int16)[None], format="s16", layout="mono")
        audio.sample_rate, audio.pts, audio.time_base = RATE, 0, Fraction(1, RATE)
        container.mux(track.encode(audio))
        container.mux(track.encode(None))
    return file.getvalue()


async def reply(app: Any, before: list[int]) -> tuple[str, bytes]:
    """Return text and speech of a turn. ``before``: how many pieces of sound come before each frame."""
    samples = tone(3, PIECES * PIECE_MS / 1000 * 1.5)[: PIECES * PIECE_MS * WIRE // 1000]
    size = PIECE_MS * WIRE // 1000
    events: list[dict[str, Any]] = [{"type": "session.update", "session": SESSION}]
    for piece in range(PIECES + 1):
        for number, time in enumerate(TIMES):
            if before[number] == piece:
                picture = base64.b64encode(png(pixels(number))).decode()
                events.append({"type": "input_image_buffer.append", "image": picture, "time_ms": time})
        data = pcm16(samples[piece * size : (piece + 1) * size])
        events.append({"type": "input_audio_buffer.append", "audio": base64.b64encode(data).decode()})
    events += [{"type": "input_audio_buffer.commit"}, {"type": "response.create"}]
    text, speech = "", b""
    async with socket_to(app, "/v1/realtime") as socket:
        for event in events:
            await socket.send_json(event)
        while (event := await socket.receive_json())["type"] != "response.done":
            assert event["type"] not in ("error", "input_image_buffer.dropped"), event
            if event["type"] == "response.output_audio_transcript.delta":
                text += event["delta"]
            elif event["type"] == "response.output_audio.delta":
                speech += base64.b64decode(event["delta"])
    assert event["response"]["status"] in ("completed", "incomplete"), event
    return text, speech


def same(speech: bytes, other: bytes) -> bool:
    """Return whether two recordings are equal to 1e-4: how many answers are made at once changes the last digits."""
    one, two = (np.frombuffer(each, np.int16).astype(int) for each in (speech, other))
    return len(one) == len(two) and int(np.abs(one - two).max()) <= 3


async def test_a_turn_is_answered_as_a_file(checkpoints: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    stream = AsyncPipe.stream

    def recorded(self: AsyncPipe, request: Any, *more: Any) -> Any:
        asked.append(request)
        return stream(self, request, *more)

    async with open_async(pipeline(checkpoints["a"], processes="one")) as pipe:
        monkeypatch.setattr(AsyncPipe, "stream", recorded)
        app = create_app(pipe, Settings())
        live = await reply(app, [0, 2, 4, 6, 8, 10])
        assert live[0]
        assert live[1]
        [request] = asked
        [part] = request.inputs["messages"][0]["content"]
        assert part["times"] == [time / 1000 for time in TIMES]
        # In any order of arrival, and one session beside another.
        for text, speech in await asyncio.gather(
            *(reply(app, [at] * 6) for at in (0, 5, 10)), reply(app, [0, 0, 3, 3, 9, 10])
        ):
            assert text == live[0]
            assert same(speech, live[1])
        monkeypatch.undo()
        content = [{"type": "video", "data": filed(part["sound"]["data"])}]
        request.inputs["messages"][0]["content"] = content
        request.metadata["use_audio_in_video"] = True
        answer = await pipe.submit(request)
        assert answer["decode"].text == live[0]
        assert same(pcm16(np.asarray(answer["code2wav"].samples)), live[1])
        request.metadata["use_audio_in_video"] = False
        assert (await pipe.submit(request))["decode"].text != live[0], "the sound made no difference"


async def test_frames_with_times_are_answered_as_by_the_reference(
    checkpoints: dict[str, Path], files: dict[str, str], cases: dict[str, Any], tmp_path: Path
) -> None:
    case = cases["video_with_audio"]
    video = frames({"path": files["video_sound"]}, 2.0, sound_rate=RATE)
    assert video.sound is not None
    part = {
        "type": "video",
        "frames": [{"data": png(each)} for each in video.frames],
        "times": [number / 2 for number in range(len(video.frames))],
        "sound": {"data": wav(video.sound)},
    }
    messages = [{"role": "user", "content": [part, text_part("What is said in the clip?")]}]
    with Oracle() as oracle:
        oracle.begin(checkpoints["a"], tmp_path / "out.npz", cases={"case": case})
        async with open_async(pipeline(checkpoints["a"], processes="one")) as pipe:
            answer = await pipe.submit(request_of({**case, "messages": messages, "use_audio_in_video": False}))
        oracle.wait(tmp_path / "out.npz")
    expected = np.load(tmp_path / "out.npz")
    assert list(answer["decode"].token_ids) == expected["case.ids"].tolist()
    np.testing.assert_allclose(np.asarray(answer["code2wav"].samples), expected["case.wave"], atol=1e-4)
