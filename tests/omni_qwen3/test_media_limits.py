"""Work that grows with the media or the text of a request is bounded before it is done, and leaves the interpreter to others."""

from __future__ import annotations

import io
import threading
import tracemalloc
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import soundfile
from attrs import evolve
from media_files import TONE, pictured
from PIL import Image
from running import running

from omni_core.errors import InvalidRequestError, RequestTooLargeError
from omni_core.protocol.messages import OmniRequest, StagePayload
from omni_core.scheduling import IncomingMessage
from omni_media.api import Limits, MediaSource, Spent, frames, images, sound
from omni_qwen3 import preprocessing
from omni_qwen3.chat import LONG_CHARACTERS, takes_long
from omni_qwen3.config import read_config
from omni_qwen3.preprocessing import Preprocessor
from omni_qwen3.tokenizer import load_chat_tokenizer

MIB = 2**20


def source(kind: str, data: bytes, spent: Spent | None = None) -> MediaSource:
    return MediaSource(kind, {"data": data}, "messages[0].content[0]", spent or Spent())


def png(width: int, height: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (width, height)).save(file, "PNG")
    return file.getvalue()


def video(sizes: Sequence[tuple[int, int]], rate: int = 10, codec: str = "mpeg4", **options: str) -> bytes:
    """Frames of these sizes; those of the first are in the header."""
    file = io.BytesIO()
    with av.open(file, "w", format="matroska", options=options) as container:
        stream = container.add_stream(codec, rate=rate)
        stream.width, stream.height = sizes[0]
        stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        for number, (width, height) in enumerate(sizes):
            frame = av.VideoFrame.from_ndarray(np.zeros((height, width, 3), np.uint8), format="rgb24")
            frame.pts = number
            if (width, height) == sizes[0]:
                container.mux(stream.encode(frame))
                continue
            other = av.CodecContext.create(codec, "w")
            other.width, other.height, other.pix_fmt = width, height, stream.pix_fmt
            other.time_base = frame.time_base = Fraction(1, rate)
            for packet in other.encode(frame):
                packet.stream, packet.time_base = stream, other.time_base
                container.mux(packet)
        container.mux(stream.encode(None))
    return file.getvalue()


def flac(channels: int, rate: int, seconds: float) -> bytes:
    """Silence, which takes next to nothing."""
    file = io.BytesIO()
    soundfile.write(file, np.zeros((int(rate * seconds), channels), np.int16), rate, format="FLAC", subtype="PCM_16")
    return file.getvalue()


def payload(*parts: dict[str, Any]) -> StagePayload:
    content = [*parts, {"type": "text", "text": "Well?"}]
    return StagePayload("r", OmniRequest({"messages": [{"role": "user", "content": content}]}), None)


def part(kind: str, data: bytes) -> dict[str, Any]:
    return {"type": kind, "data": data}


@pytest.fixture
def undecoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail if a picture is cut into patches, which comes after its decoding."""

    def fail(*arguments: Any) -> Any:
        raise AssertionError("it was decoded")

    monkeypatch.setattr(Image.Image, "resize", fail)


def make(tiny: dict[str, Path], limits: Limits | None = None, **options: Any) -> Preprocessor:
    return Preprocessor(str(tiny["a"]), limits or Limits(), **{"video_fps": 2.0, "max_context": None, **options})


@pytest.mark.usefixtures("undecoded")
def test_a_small_video_is_refused_for_what_its_frames_would_become(tiny: dict[str, Path]) -> None:
    """100 s of 16 x 16 pixels: 200 frames of 384 x 384 for the encoder, as floats."""
    long = part("video", video([(16, 16)] * 200, rate=2))
    with pytest.raises(RequestTooLargeError, match=r"messages\[0\].content\[0\].*337\.5 MiB.*limit is 128\.0 MiB"):
        make(tiny, payload_bytes={"image_encoder": 128 * MIB})(payload(long))
    with pytest.raises(RequestTooLargeError, match=r"up to it the media take 14\d\d\d positions.* holds 9000"):
        make(tiny, max_context=9000)(payload(long))


@pytest.mark.usefixtures("undecoded")
def test_images_are_refused_for_what_they_would_become(tiny: dict[str, Path]) -> None:
    with pytest.raises(RequestTooLargeError, match="MiB for the model"):
        make(tiny, payload_bytes={"image_encoder": 1000})(payload(part("image", png(500, 500))))


def test_a_clip_is_refused_for_what_it_would_become(tiny: dict[str, Path]) -> None:
    clip = part("audio", flac(1, 16_000, 10.0))
    with pytest.raises(RequestTooLargeError, match="the sound of the request"):
        make(tiny, payload_bytes={"audio_encoder": 1000})(payload(clip))
    with pytest.raises(RequestTooLargeError, match="positions"):
        make(tiny, max_context=100)(payload(clip))


def test_what_fits_is_as_large_as_was_said(tiny: dict[str, Path]) -> None:
    """The bound before decoding is the size that comes of it."""
    parts = [part("image", png(300, 200)), part("image", png(40, 700)), part("video", video([(64, 48)] * 15))]
    found = make(tiny)(payload(*parts))["image"]
    nbytes = found["pixel_values"].nbytes + found["pixel_values_videos"].nbytes
    make(tiny, payload_bytes={"image_encoder": nbytes})(payload(*parts))
    with pytest.raises(RequestTooLargeError, match=r"content\[2\]"):
        make(tiny, payload_bytes={"image_encoder": nbytes - 1})(payload(*parts))


def test_an_image_of_several_strips_is_put_on_white_as_one_is() -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (700, 9, 4), dtype=np.uint8)
    found = images(MediaSource("image", {"image": pixels}, "x"), Limits())[0]
    white = Image.new("RGBA", (9, 700), (255, 255, 255, 255))
    expected = Image.alpha_composite(white, Image.fromarray(pixels)).convert("RGB")
    assert found.tobytes() == expected.tobytes()


def test_all_images_of_a_request_have_a_limit_together(tiny: dict[str, Path]) -> None:
    one = part("image", png(100, 100))
    limits = Limits(max_request_pixels=25_000)
    make(tiny, limits)(payload(one, one))
    with pytest.raises(RequestTooLargeError, match=r"content\[2\].*25000 pixels.*max_request_pixels"):
        make(tiny, limits)(payload(one, one, one))


def test_all_sound_of_a_request_has_a_limit_together(tiny: dict[str, Path]) -> None:
    one = part("audio", flac(2, 8_000, 1.0))
    limits = Limits(max_request_samples=40_000)
    make(tiny, limits)(payload(one, one))
    with pytest.raises(RequestTooLargeError, match=r"content\[2\].*40000 samples.*max_request_samples"):
        make(tiny, limits)(payload(one, one, one))


def test_channels_are_not_held_together() -> None:
    """Minutes of eight silent channels are a small file. Only pieces of them are ever in memory."""
    data = flac(8, 16_000, 60.0)
    tracemalloc.start()
    try:
        samples = sound(source("audio", data), 16_000)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert samples.shape == (960_000,)
    assert most < 3 * samples.nbytes


def test_many_small_frames_have_a_limit_too() -> None:
    data = video([(16, 16)] * 300, rate=100)
    few = Limits(max_request_frame_pixels=10_000_000)
    with pytest.raises(RequestTooLargeError, match=r"pixels of frames.*max_request_frame_pixels"):
        frames(source("video", data), 2.0, few)
    frames(source("video", data), 2.0, Limits())


def test_a_track_of_a_few_milliseconds_leaves_the_pictures(tiny: dict[str, Path]) -> None:
    """Recorders write such tracks where the microphone is off."""

    def prompt(seconds: float) -> dict[str, Any]:
        sound = TONE[: int(seconds * 16_000)]
        asked = payload(part("video", pictured([number / 10 for number in range(20)], sound=sound)))
        asked.request.metadata["use_audio_in_video"] = True
        return make(tiny)(asked)

    short, long = prompt(0.01), prompt(0.5)
    assert "audio" not in short
    assert "too short to be heard" in short["notices"][0]
    assert (len(long["audio"]["clip_tokens"]), long["notices"]) == (1, [])


def test_frames_are_kept_in_the_size_that_is_needed() -> None:
    kept: list[tuple[int, ...]] = []

    def halved(frame: Any) -> Any:
        kept.append(frame.shape)
        return frame[::2, ::2]

    found = frames(source("video", video([(64, 48)] * 30)), 2.0, Limits(), resize=halved).frames
    assert kept == [(48, 64, 3)] * len(found)
    assert found.shape[1:] == (24, 32, 3)


def test_a_video_that_changes_its_size_is_decoded_in_the_first() -> None:
    found = frames(source("video", video([(64, 48)] * 10 + [(128, 96)] * 10, codec="mjpeg")), 2.0, Limits()).frames
    assert found.shape == (4, 48, 64, 3)


def test_a_video_that_grows_is_not_decoded_beyond_the_limit() -> None:
    data = video([(64, 48)] * 10 + [(1280, 960)] * 10, codec="mjpeg")
    with pytest.raises(InvalidRequestError):
        frames(source("video", data), 2.0, Limits(max_image_pixels=10_000))


def test_frames_are_counted_before_any_is_decoded() -> None:
    """The header of a live stream says no length."""
    asked: list[int] = []

    def fits(count: int, height: int, width: int) -> None:
        asked.append(count)
        if count > 3:
            raise RequestTooLargeError("too many")

    data = video([(64, 48)] * 40, rate=2, live="1")
    with pytest.raises(RequestTooLargeError, match="too many"):
        frames(source("video", data), 2.0, Limits(), fits=fits)
    assert asked == [40]


def test_a_text_is_refused_by_its_length_before_it_is_divided_into_tokens(
    tiny: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    preprocess = make(tiny, max_context=1000)
    monkeypatch.setattr(preprocess.tokenizer.__class__, "encode", lambda *_: pytest.fail("it was divided"))
    request = StagePayload("r", OmniRequest({"messages": [{"role": "user", "content": "a b " * 250_000}]}), None)
    with pytest.raises(RequestTooLargeError, match=r"10000\d\d characters, which are \d+ tokens or more"):
        preprocess(request)


def test_the_longest_token_is_that_of_the_vocabulary(tiny: dict[str, Path]) -> None:
    tokenizer = load_chat_tokenizer(str(tiny["a"]), read_config(tiny["a"]))
    longest = tokenizer.longest_token
    for text in ("hello " * 200, "a" * 500, "<|im_start|>" * 50, "\u4f60\u597d" * 300, " " * 999):
        assert len(tokenizer.encode(text)) >= len(text.encode()) / longest


def test_a_long_text_leaves_the_interpreter_to_others(tiny: dict[str, Path]) -> None:
    tokenizer = load_chat_tokenizer(str(tiny["a"]), read_config(tiny["a"]))
    thread = threading.Thread(target=tokenizer.encode, args=("a1!" * 300_000,))
    thread.start()
    turns = 0
    while thread.is_alive():
        thread.join(0.001)
        turns += 1
    assert turns > 10


LONG: list[tuple[Any, bool]] = [
    ([{"role": "user", "content": "short"}], False),
    ([{"role": "user", "content": [{"type": "text", "text": "short"}]}], False),
    ([{"role": "user", "content": [{"type": "image", "data": b""}]}], True),
    ([{"role": "user", "content": "a" * LONG_CHARACTERS}, {"role": "user", "content": "a"}], True),
    ([{"role": "user", "content": [{"type": "text", "text": 3}]}], True),
    (["text", 3, None, {"content": None}, {}], False),
    ("messages", False),
    (None, False),
]


@pytest.mark.parametrize(("messages", "expected"), LONG)
def test_requests_with_media_or_much_text_are_long(messages: Any, expected: bool) -> None:
    assert takes_long(StagePayload("r", OmniRequest({"messages": messages}), None)) is expected
    assert takes_long(StagePayload("r", OmniRequest(messages), None)) is False


def test_tools_count_as_text() -> None:
    tool = {"type": "function", "function": {"name": "f", "description": "a" * LONG_CHARACTERS}}
    assert takes_long(StagePayload("r", OmniRequest({"messages": [], "tools": [tool]}), None))


def test_a_text_overtakes_the_decoding_of_images(tiny: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    release, begun = threading.Event(), threading.Event()
    load: Callable[..., Any] = preprocessing.images

    def slow(*arguments: Any) -> Any:
        begun.set()
        assert release.wait(20)
        return load(*arguments)

    monkeypatch.setattr(preprocessing, "images", slow)
    scheduler = preprocessing.create_preprocessing(str(tiny["a"]))
    with running(scheduler):
        for name, parts in (("image", [part("image", png(8, 8))]), ("text", [])):
            scheduler.inbox.put(IncomingMessage(name, "new_request", evolve(payload(*parts), request_id=name)))
            assert name == "text" or begun.wait(20)
        first = scheduler.outbox.get(20)
        release.set()
        second = scheduler.outbox.get(20)
    assert first is not None
    assert second is not None
    assert [(each.request_id, each.type) for each in (first, second)] == [("text", "result"), ("image", "result")]
