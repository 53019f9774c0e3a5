"""Hostile media are refused by their headers, before anything is decoded."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path

import av
import numpy as np
import pytest
from media_files import TONE, encoded, pictured
from PIL import Image

from omni_media import containers
from omni_serve.encoders import wav_header, whole
from omni_serve.errors import ApiError
from omni_serve.media import check_media, has_many_scans, share_of
from omni_serve.settings import Limits

LIMITS = Limits(image_pixels=1_000_000, audio_seconds=2.0, video_seconds=2.0, media_mib=1.0)


def png(width: int, height: int, content: bytes = b"") -> bytes:
    """A PNG whose header says a size, whatever its content has."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", content) + chunk(b"IEND", b"")


def image(form: str, size: tuple[int, int] = (8, 8)) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", size).save(stream, form)
    return stream.getvalue()


SECOND = np.zeros(24_000, np.float32)
SVG = b"<svg xmlns='http://www.w3.org/2000/svg'><image href='file:///etc/passwd'/></svg>"
M3U8 = b"#EXTM3U\n#EXTINF:10,\nfile:///etc/passwd\n#EXT-X-ENDLIST\n"
CONCAT = b"ffconcat version 1.0\nfile /etc/passwd\n"
SDP = b"v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=audio 5004 RTP/AVP 0\n"

HOSTILE = [
    ("image", b"x", 400),
    ("image", b"", 400),
    ("image", SVG, 400),
    ("image", image("PNG")[:20], 400),
    ("image", png(50_000, 50_000, zlib.compress(bytes(1000))), 413),
    ("image", png(2_000_000_000, 2_000_000_000), 413),
    ("image", image("PNG", (2000, 2000)), 413),
    ("image", image("GIF", (2000, 2000)), 413),
    ("image", image("TIFF", (1001, 1000)), 413),
    ("image", b"\x00" * 2_000_000, 413),
    ("image", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9999999 9999999\n%%EndComments\n", 400),
    ("image", whole("wav", [SECOND], 24_000), 400),
    ("audio", b"x" * 100, 400),
    ("audio", b"", 400),
    ("audio", image("PNG"), 400),
    ("audio", image("JPEG"), 400),
    ("audio", M3U8, 400),
    ("audio", CONCAT, 400),
    ("audio", SDP, 400),
    ("audio", b"RIFF" + b"\xff" * 40, 400),
    ("audio", whole("wav", [SECOND] * 3, 24_000), 413),
    ("audio", whole("flac", [SECOND] * 3, 24_000), 413),
    ("audio", whole("mp3", [SECOND] * 3, 24_000), 413),
    ("audio", whole("opus", [SECOND] * 3, 24_000), 413),
    ("audio", wav_header(1, 4_000_000) + bytes(100), 413),
    ("video", b"x", 400),
    ("video", M3U8, 400),
    ("video", CONCAT, 400),
    ("video", whole("wav", [SECOND], 24_000), 400),
    ("video", b"\x00\x00\x00\x18ftypmp42" + bytes(100), 400),
]


@pytest.mark.parametrize(("kind", "data", "status"), HOSTILE)
def test_hostile_files_are_refused(kind: str, data: bytes, status: int) -> None:
    with pytest.raises(ApiError) as caught:
        check_media(kind, data, "messages[0].content[0]", LIMITS)
    assert caught.value.status == status, caught.value.message
    assert caught.value.param == "messages[0].content[0]"


@pytest.mark.parametrize("form", ["PNG", "JPEG", "GIF", "WEBP", "BMP"])
def test_good_images_pass(form: str) -> None:
    check_media("image", image(form), "x", LIMITS)


@pytest.mark.parametrize("form", ["wav", "mp3", "flac", "opus", "aac"])
def test_good_recordings_pass(form: str) -> None:
    check_media("audio", whole(form, [SECOND], 24_000), "x", LIMITS)


@pytest.mark.parametrize("lifted", ["protocol_whitelist", "format_whitelist"])
@pytest.mark.parametrize(
    "listing", ["#EXTM3U\n#EXTINF:1,\n{file}\n#EXT-X-ENDLIST\n", "ffconcat version 1.0\nfile {file}\n"]
)
def test_each_whitelist_keeps_playlists_from_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lifted: str, listing: str
) -> None:
    """A playlist of a real recording is refused by the formats alone, and by the protocols alone."""
    file = tmp_path / "a.ts"
    file.write_bytes(whole("wav", [SECOND], 24_000))
    options = {**containers.OPTIONS, "protocol_whitelist": "file,crypto,data", "safe": "0", "allowed_extensions": "ALL"}
    if lifted == "format_whitelist":
        options = {**containers.OPTIONS}
        del options["format_whitelist"]
    monkeypatch.setattr(containers, "OPTIONS", options)
    with pytest.raises(ApiError, match="not a recording"):
        check_media("audio", listing.format(file=file).encode(), "x", LIMITS)


def jpeg(scans: int, trailer: bytes = b"") -> bytes:
    """A progressive JPEG whose last scan is there as often as wanted."""
    stream = io.BytesIO()
    Image.new("RGB", (64, 64)).save(stream, "JPEG", progressive=True)
    data = stream.getvalue()
    last = data.rindex(b"\xff\xda")
    return data[:last] + data[last:-2] * scans + b"\xff\xd9" + trailer


def test_a_jpeg_of_many_scans_is_refused() -> None:
    """Each goes over all pixels, and may be a few bytes."""
    for bad in (b"\xff\xda" * 500_000, b"\xff\xda" + b"\xff" * 1_000_000 + b"\xff\xda" * 200):
        has_many_scans(image("JPEG")[:2] + bad)  # in no time
    for good in (jpeg(1), jpeg(1, b"\xff\xda\x00\x02" * 200), image("JPEG")):
        assert check_media("image", good, "x", LIMITS).pixels in (64 * 64, 64)
    with pytest.raises(ApiError, match="scans") as caught:
        check_media("image", jpeg(200), "x", LIMITS)
    assert caught.value.status == 413


def video(seconds: int, rate: int, size: tuple[int, int]) -> bytes:
    stream = io.BytesIO()
    with av.open(stream, "w", format="mp4") as container:
        track = container.add_stream("mpeg4", rate=rate)
        track.width, track.height, track.pix_fmt = *size, "yuv420p"
        frame = av.VideoFrame(*size, "yuv420p")
        for number in range(seconds * rate):
            frame.pts = number
            container.mux(track.encode(frame))
        container.mux(track.encode(None))
    return stream.getvalue()


async def test_the_share_of_a_request_is_that_of_all_its_media() -> None:
    sound, seen = whole("wav", [SECOND], 24_000), video(1, 10, (32, 16))
    limits = Limits(media_pixels=640, media_samples=240_000, media_seconds=20.0, media_frame_pixels=51_200)

    async def share(*parts: tuple[str, bytes]) -> float:
        content = [{"type": kind, "data": data} for kind, data in parts]
        return await share_of({"messages": [{"role": "user", "content": content}]}, limits)

    assert await share(("image", image("PNG"))) == pytest.approx(0.1)
    assert await share(("audio", sound)) == pytest.approx(0.1 + 0.05)
    assert await share(("video", seen)) == pytest.approx(0.05 + 0.1, rel=0.01)
    assert await share(("image", image("PNG")), ("audio", sound)) == pytest.approx(0.25)
    assert await share(*[("image", image("PNG"))] * 10) == 1.0
    assert await share() == await share_of("text", limits) == 0.0
    for too_much in (("image", image("PNG")), ("audio", sound), ("video", seen)):
        with pytest.raises(ApiError, match=r"over the limit of .* \(media_\w+\)"):
            await share(*[too_much] * 21)


@pytest.mark.parametrize("size", [0xFFFFFFFF, 0x7FFFFFFF, 2_000_000_000])
def test_a_length_in_the_header_of_a_wave_file_is_not_believed(size: int) -> None:
    data = wav_header(16_000, None) + bytes(2 * 16_000)
    assert data[40:44] == b"\xff\xff\xff\xff"
    data = data[:40] + size.to_bytes(4, "little") + data[44:]
    found = check_media("audio", data, "file", Limits())
    assert (found.seconds, found.samples) == (pytest.approx(1.0, abs=0.01), pytest.approx(16_000, abs=50))


WAVE = wav_header(24_000, None) + bytes(48_000)

CLAIMS = {
    "WAV whose sizes are 0": (WAVE[:4] + bytes(4) + WAVE[8:40] + bytes(4) + WAVE[44:], 1.0),
    "FLAC of a pipe": (encoded("flac", "flac", piped=True), 2.0),
    "MP3 of a pipe": (encoded("mp3", "libmp3lame", piped=True), 2.0),
    "WebM of a browser": (encoded("webm", "libopus", piped=True), 2.0),
    "M4A of a telephone": (encoded("ipod", "aac"), 2.0),
}


@pytest.mark.parametrize("name", CLAIMS)
def test_recordings_are_measured_by_their_packets(name: str) -> None:
    data, seconds = CLAIMS[name]
    assert check_media("audio", data, "x", Limits()).seconds == pytest.approx(seconds, abs=0.1)
    with pytest.raises(ApiError) as caught:
        check_media("audio", data, "x", Limits(audio_seconds=seconds * 0.9))
    assert caught.value.status == 413


@pytest.mark.parametrize("begin", [0.0, 700.0])
def test_videos_are_measured_from_their_first_frame(begin: float) -> None:
    found = check_media(
        "video", pictured([begin + number / 25 for number in range(50)], sound=TONE, sound_begin=begin), "x", Limits()
    )
    assert found.seconds == pytest.approx(2.0)
    assert found.frame_pixels == 50 * 32 * 16
    assert found.samples == pytest.approx(32_000, rel=0.05)


def test_a_jump_of_the_clock_is_no_sound() -> None:
    """Recorders that wait write one."""
    file = io.BytesIO()
    with av.open(file, "w", format="matroska") as container:
        stream = container.add_stream("pcm_s16le", rate=16_000, layout="mono")
        for begin in (0, 1000 * 16_000):
            frame = av.AudioFrame.from_ndarray(np.zeros((1, 16_000), "<i2"), format="s16", layout="mono")
            frame.sample_rate, frame.pts = 16_000, begin
            container.mux(stream.encode(frame))
    assert check_media("audio", file.getvalue(), "x", Limits()).seconds == pytest.approx(2.0)


def test_a_picture_that_pillow_takes_for_a_bomb_is_over_our_limit() -> None:
    file = io.BytesIO()
    Image.new("1", (20_000, 10_000)).save(file, "PNG")
    with pytest.raises(ApiError, match=r"image: over the limit of \d+ pixels \(image_pixels\)"):
        check_media("image", file.getvalue(), "image", Limits())
