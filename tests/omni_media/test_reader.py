"""Content parts in every form that clients send, and the errors that name them."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

from omni_core.client.chat_request import MediaPolicy
from omni_core.errors import InvalidRequestError
from omni_media import reader
from omni_media.reader import Reader

DATA = b"\x00\x01content"
BASE64 = base64.b64encode(DATA).decode()
SERVER = MediaPolicy(allow_paths=False, max_bytes=64)


async def part(given: Any, policy: MediaPolicy = SERVER) -> dict[str, Any]:
    """Return a part as stages read it, alone in a message."""
    [message] = await Reader(policy).messages([{"role": "user", "content": [given]}])
    assert message["role"] == "user"
    [read] = message["content"]
    return dict(read)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"type": "image_url", "image_url": {"url": f"data:image/png;base64,{BASE64}", "detail": "auto"}}, "image"),
        ({"type": "image_url", "image_url": f"data:image/png;base64,{BASE64}"}, "image"),
        ({"type": "input_audio", "input_audio": {"data": BASE64, "format": "wav"}}, "audio"),
        ({"type": "input_audio", "input_audio": {"data": f"data:audio/wav;base64,{BASE64}"}}, "audio"),
        ({"type": "audio_url", "audio_url": {"url": f"data:audio/wav;base64,{BASE64}"}}, "audio"),
        ({"type": "video_url", "video_url": {"url": f"data:video/mp4;base64,{BASE64}"}}, "video"),
        ({"type": "file", "file": {"file_data": f"data:audio/wav;base64,{BASE64}"}}, "audio"),
        ({"type": "file", "file": {"file_data": BASE64, "filename": "a.png"}}, "image"),
        ({"type": "image", "bytes": DATA}, "image"),
        ({"type": "image", "data": DATA}, "image"),
        ({"type": "image", "image": DATA}, "image"),
        ({"type": "audio", "url": "data:,%00%01content"}, "audio"),
    ],
)
async def test_every_form_is_read_as_one(given: Any, expected: str) -> None:
    assert await part(given) == {"type": expected, "data": DATA}


async def test_text_stays_text() -> None:
    text = {"type": "text", "text": "hi"}
    assert await part("hi") == text
    assert await part(text) == text
    assert await part({"type": "file", "file": {"file_data": "aGk=", "filename": "a.txt"}}) == text
    assert await Reader(SERVER).messages([{"role": "user", "content": "hi"}]) == [{"role": "user", "content": "hi"}]


async def test_other_kinds_and_keys_are_left_to_the_pipeline() -> None:
    assert await part({"type": "smell", "strength": 3}) == {"type": "smell", "strength": 3}
    assert await part({"type": "image", "size": 3}) == {"type": "image", "size": 3}


async def test_images_of_pillow() -> None:
    image = pytest.importorskip("PIL.Image").new("RGB", (3, 2), "red")
    assert (await part({"type": "image", "image": image}))["image"].shape == (2, 3, 3)
    assert (await part({"type": "image", "image": image.convert("P")}))["image"].shape == (2, 3, 3)
    assert (await part({"type": "image", "image": image.convert("LA")}))["image"].shape == (2, 3, 4)


async def test_values_of_python(tmp_path: Path) -> None:
    frames = np.zeros((2, 4, 4, 3), np.uint8)
    assert (await part({"type": "video", "video": frames}))["frames"] is frames
    sound = await part({"type": "audio", "audio": (np.array([0, 16384, -32768], np.int16), 8000)})
    assert sound["samples"].tolist() == [0.0, 0.5, -1.0]
    assert sound["samples"].dtype == np.float32
    assert sound["sample_rate"] == 8000
    file = tmp_path / "x.png"
    file.write_bytes(b"x")
    for given in ({"path": str(file)}, {"image": file}, {"url": file.as_uri()}, {"image": file.as_uri()}):
        assert await part({"type": "image", **given}, MediaPolicy()) == {"type": "image", "path": str(file)}
    kept = await part({"type": "audio", "path": file, "text": "its words"}, MediaPolicy())
    assert kept == {"type": "audio", "path": str(file), "text": "its words"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"type": "image_url", "image_url": {"url": "https://a.example/x"}},
            r"image_url\.url: URLs are not fetched here",
        ),
        ({"type": "image_url", "image_url": {"url": "ftp://a/x"}}, r"image_url\.url: must be a URL \(data:\), is"),
        (
            {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}},
            r"image_url\.url: files cannot be named here",
        ),
        ({"type": "image_url", "image_url": {}}, r"image_url\.url: must be a URL .*, is None"),
        ({"type": "image_url", "image_url": {"url": "data:,", "detail": "low"}}, r"image_url\.detail: .* full detail"),
        ({"type": "image_url", "image_url": {"uri": "data:,"}}, r"image_url\.uri: is not read; there are: url, detail"),
        ({"type": "image_url"}, r"image_url: must be a mapping with url and detail"),
        ({"type": "image_url", "image_url": "data:image/png;base64"}, r"image_url\.url: a data: URL has a comma"),
        ({"type": "input_audio", "input_audio": {"data": "?"}}, r"input_audio\.data: is not base64"),
        ({"type": "input_audio", "input_audio": {"data": "äöüß"}}, r"input_audio\.data: is not base64"),
        ({"type": "image_url", "image_url": "http://["}, r"image_url\.url: is not a URL"),
        ({"type": "input_audio", "input_audio": {"data": None}}, r"input_audio\.data: must be text in base64"),
        (
            {"type": "input_audio", "input_audio": {"data": "A" * 100}},
            r"input_audio\.data: .* over the limit of .* MiB",
        ),
        ({"type": "file", "file": {"file_id": "x"}}, r"file\.file_id: is not read; there are: file_data, filename"),
        (
            {"type": "file", "file": {"file_data": "data:application/pdf,x"}},
            r"file_data: application/pdf cannot be read",
        ),
        ({"type": "file", "file": {"file_data": BASE64}}, r"file_data: a file of unknown type cannot be read"),
        ({"type": "image", "path": "/etc/passwd"}, r"path: files cannot be named here"),
        ({"type": "image", "image": Path("/etc/passwd")}, r"image: files cannot be named here"),
        ({"type": "image", "image": 3}, r"image: must be a path, a URL, bytes, or a PIL image or an array; is int"),
        ({"type": "audio", "audio": (8000, np.zeros(3))}, r"audio: must be \(samples, sample_rate\)"),
        ({"type": "audio", "audio": np.zeros(3)}, r"audio: must be a path, a URL, bytes, or \(samples, sample_rate\)"),
        ({"type": "audio", "data": b"x" * 65}, r"data: the media of this request are over the limit"),
        ({"text": "hi"}, r"content\[0\]: must be a text, or a part with a type"),
    ],
)
async def test_errors_name_the_part(given: Any, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message) as caught:
        await part(given)
    assert str(caught.value).startswith("messages[0].content[0]")


async def test_a_missing_file_is_named() -> None:
    with pytest.raises(InvalidRequestError, match=r"messages\[0\]\.content\[0\]\.path: no such file: .*nope\.png"):
        await part({"type": "image", "path": "nope.png"}, MediaPolicy())


async def test_the_limit_is_for_the_whole_request() -> None:
    limited = Reader(MediaPolicy(max_bytes=10))
    assert len(await limited.values("image", [b"x" * 6, b"x" * 4])) == 2
    with pytest.raises(InvalidRequestError, match="image: the media of this request are over the limit"):
        await limited.values("image", b"x")
    with pytest.raises(InvalidRequestError, match=r"image\[1\]: the media"):
        await Reader(MediaPolicy(max_bytes=10)).values("image", [b"x" * 6, b"x" * 6])


@pytest.mark.parametrize("path", ["~nosuchuser/x.png", "x" * 5000])
async def test_a_path_that_cannot_be_looked_up_is_no_file(path: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"content\[0\]\.path: no such file: "):
        await part({"type": "image", "path": path}, MediaPolicy())


LARGE = MediaPolicy(allow_paths=False, max_bytes=2**26)


@pytest.mark.parametrize("size", [reader._STEP // 4 * 3, reader._STEP // 4 * 3 + 1, 2**20 + 1])
async def test_large_media_are_decoded_in_steps(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call of a C function is not interrupted, in a thread neither."""
    steps = []
    decode = base64.b64decode

    def counted(text: str, **options: Any) -> bytes:
        steps.append(len(text))
        return decode(text, **options)

    data = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    text = base64.b64encode(data).decode()
    monkeypatch.setattr(base64, "b64decode", counted)
    read = await part({"type": "input_audio", "input_audio": {"data": text, "format": "wav"}}, LARGE)
    assert read["data"] == data
    assert max(steps) <= reader._STEP
    assert sum(steps) == len(text)


@pytest.mark.parametrize(
    "header",
    [
        "data:image/png;base64,",
        "data:image/png;BASE64,",
        "DATA:image/png; base64,",
        "data:image/png;charset=utf-8;base64,",
        "data:image/png ; name=a.png ; Base64 ,",
        " data:;base64,",
        "data:image/png;base64;charset=utf-8,",
    ],
)
async def test_headers_of_data_urls_are_those_of_rfc_2397(header: str) -> None:
    data = bytes(range(256))
    for body in forms_of(data):
        for given in (
            {"type": "image_url", "image_url": {"url": header + body}},
            {"type": "file", "file": {"file_data": header + body, "filename": "a.png"}},
        ):
            assert await part(given, LARGE) == {"type": "image", "data": data}


def forms_of(data: bytes) -> list[str]:
    """Return base64 as programs write it: in lines, for URLs, without padding, with escapes."""
    text = base64.b64encode(data).decode()
    lines = base64.encodebytes(data).decode()
    quoted = text.replace("+", "%2B").replace("/", "%2f").replace("=", "%3D")
    return [text, lines, lines.replace("\n", "\r\n"), text.replace("A", " A"), text.rstrip("="), quoted,
            base64.urlsafe_b64encode(data).decode()]  # fmt: skip


@pytest.mark.parametrize("size", [0, 1, 2, 3, reader._STEP, reader._STEP + 1, 2 * reader._STEP + 7])
def test_base64_of_any_size_and_form_is_read(size: int) -> None:
    data = np.random.default_rng(size).bytes(size)
    for text in (each for each in forms_of(data) if "%" not in each):
        assert reader.from_base64(text) == data
    assert reader.from_base64("before " + base64.b64encode(data).decode(), 7) == data


async def test_large_text_that_is_no_base64_is_refused() -> None:
    good = "QUJD" * (reader._STEP // 4)
    for bad in (good[:-1] + "=" + good, good[:-4] + "QQ==" + good, good + "!", good + "Q", good + "é"):
        for given in (
            {"type": "input_audio", "input_audio": {"data": bad}},
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{bad}"}},
        ):
            with pytest.raises(InvalidRequestError, match="is not base64: "):
                await part(given, LARGE)


async def test_long_urls_are_not_kept() -> None:
    """urllib keeps the last URLs that it has split."""
    urlsplit.cache_clear()
    long = "QUJD" * 10_000
    await part({"type": "image_url", "image_url": {"url": f"data:image/png;base64,{long}"}}, LARGE)
    await part({"type": "image_url", "image_url": {"url": f" DATA:image/png;base64,{long}"}}, LARGE)
    with pytest.raises(InvalidRequestError, match="must be a URL") as caught:
        await part({"type": "image_url", "image_url": {"url": f"http://{long}"}}, LARGE)
    assert len(str(caught.value)) < 500
    assert urlsplit.cache_info().currsize == 0


async def test_many_escapes_in_a_url_are_refused() -> None:
    url = {"type": "image_url", "image_url": {"url": "data:image/png," + "%41" * 100_000}}
    assert (await part(url, LARGE))["data"] == b"A" * 100_000
    url["image_url"]["url"] += "%41"  # type: ignore[index]
    with pytest.raises(InvalidRequestError, match=r"more than 100000 bytes as %XX; send them in base64"):
        await part(url, LARGE)
