"""Media of a request: normalised by the client's own reader, then checked against the server's limits by their headers alone.

A header is read, nothing is decoded: a small file that decodes to gigabytes is refused before it does.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Mapping, Sequence
from typing import Any

import av
import av.error
from PIL import Image

from omni_core.client import MediaPolicy
from omni_core.errors import ConfigError, InvalidRequestError
from omni_media import Reader
from omni_serve.errors import ApiError, invalid
from omni_serve.settings import Limits, Settings

CONTAINERS = "wav,w64,aiff,au,caf,mp3,flac,ogg,aac,amr,matroska,webm,mov,mp4,m4a,3gp,3g2,mj2,avi,mpeg,mpegts,asf,flv,ivf,h264,hevc,av1"
"""Formats of sound and video that are read. Others of FFmpeg's are playlists and descriptions, which open files and sockets."""

_IMAGE_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
"""Formats of images that are read. Pillow has readers of many more, and one of them starts a program."""

_OPTIONS = {
    "format_whitelist": CONTAINERS,
    "protocol_whitelist": "",
    "probesize": "1000000",
    "analyzeduration": "1000000",
}

KINDS = ("image", "audio", "video")


def policy_of(settings: Settings) -> MediaPolicy:
    """Return the client's policy: no local paths, URLs only if allowed."""
    most = int(settings.limits.body_mib * 2**20)
    return MediaPolicy(allow_paths=False, allow_urls=settings.fetch_urls, max_bytes=most)


def check_fetching(settings: Settings) -> None:
    """Raise ConfigError if URLs are to be fetched and what fetches them is not installed."""
    if not settings.fetch_urls:
        return
    try:
        import omni_media.fetch  # noqa: F401
    except InvalidRequestError as error:
        raise ConfigError(f"fetch_urls: {error}") from None


async def read_messages(messages: Sequence[Mapping[str, Any]], settings: Settings) -> list[dict[str, Any]]:
    """Return messages in the form that stages read, with every piece of media checked.

    Raises:
        ApiError: 400 or 413; ``param`` is the content part.
    """
    try:
        read = await Reader(policy_of(settings)).messages(messages)
    except InvalidRequestError as error:
        where, _, problem = str(error).partition(": ")
        raise invalid(problem and f"{where}: {problem}", where if problem else None, "invalid_value") from None
    if any(isinstance(message.get("content"), list) for message in read):
        await asyncio.to_thread(_check, read, settings.limits)  # FFmpeg may take a while to find its way in a file
    else:
        _check(read, settings.limits)
    return read


def _check(messages: list[dict[str, Any]], limits: Limits) -> None:
    parts = characters = 0
    for number, message in enumerate(messages):
        content = message.get("content")
        characters += len(content) if isinstance(content, str) else 0
        for index, part in enumerate(content if isinstance(content, list) else ()):
            where = f"messages[{number}].content[{index}]"
            characters += len(part["text"]) if isinstance(part.get("text"), str) else 0
            if part.get("type") in KINDS:
                parts += 1
                check_media(part["type"], part.get("data"), where, limits)
    if parts > limits.media_parts:
        raise invalid(f"messages: {parts} pieces of media are over the limit of {limits.media_parts}", "messages")
    if characters > limits.text_characters:
        raise ApiError(
            413, f"messages: {characters} characters are over the limit of {limits.text_characters}", param="messages"
        )


def check_media(kind: str, data: Any, where: str, limits: Limits) -> float | None:
    """Check one piece of media by its header.

    Returns:
        The seconds of a recording or a video, where its header says them.

    Raises:
        ApiError: 400: not a file of this kind, or unreadable; 413: over a limit.
    """
    if not isinstance(data, bytes):
        raise invalid(f"{where}: the content must be sent with the request (base64 or a data: URL)", where)
    if len(data) > limits.media_mib * 2**20:
        size = len(data) / 2**20
        raise _too_large(f"{where}: {size:.1f} MiB are over the limit of {limits.media_mib:g} MiB", where)
    if kind == "image":
        _check_image(data, where, limits)
        return None
    return _check_sound_or_video(kind, data, where, limits)


def _check_image(data: bytes, where: str, limits: Limits) -> None:
    try:
        with Image.open(io.BytesIO(data), formats=_IMAGE_FORMATS) as image:
            width, height = image.size
    except Image.DecompressionBombError as error:
        raise _too_large(f"{where}: {error}", where) from None
    except Exception:  # the readers of many formats raise many things
        raise invalid(f"{where}: not an image that can be read", where, "invalid_image") from None
    if width * height > limits.image_pixels:
        raise _too_large(
            f"{where}: {width} x {height} pixels are over the limit of {limits.image_pixels} pixels", where
        )


def _check_sound_or_video(kind: str, data: bytes, where: str, limits: Limits) -> float | None:
    title = "a recording" if kind == "audio" else "a video"
    try:
        with av.open(io.BytesIO(data), metadata_errors="replace", options=_OPTIONS) as file:
            streams = file.streams.audio if kind == "audio" else file.streams.video
            if not streams:
                raise invalid(f"{where}: there is no {'sound' if kind == 'audio' else 'picture'} in it", where)
            stream = streams[0]
            seconds = _seconds(file, stream)
            pixels = 0 if kind == "audio" else stream.codec_context.width * stream.codec_context.height
    except ApiError:
        raise
    except Exception:
        raise invalid(f"{where}: not {title} that can be read", where, f"invalid_{kind}") from None
    most = limits.audio_seconds if kind == "audio" else limits.video_seconds
    if seconds is not None and seconds > most:
        raise _too_large(f"{where}: {seconds:.1f} s are over the limit of {most:g} s", where)
    if pixels > limits.image_pixels:
        raise _too_large(f"{where}: frames of {pixels} pixels are over the limit of {limits.image_pixels}", where)
    return seconds


def _seconds(file: Any, stream: Any) -> float | None:
    """Return the length that the header gives, or that the bit rate implies; the pipeline checks what it decodes."""
    if stream.duration is not None and stream.time_base is not None:
        return float(stream.duration * stream.time_base)
    return None if file.duration is None else file.duration / 1_000_000


def _too_large(message: str, where: str) -> ApiError:
    return ApiError(413, message, param=where, code="media_too_large")
