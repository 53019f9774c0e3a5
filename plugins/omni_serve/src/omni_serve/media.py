"""Media of a request: normalised by the client's own reader, then checked against the server's limits before they are decoded.

Headers and packets are read: a small file that decodes to gigabytes is refused before it does.
"""

from __future__ import annotations

import asyncio
import io
import re
import wave
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from attrs import define
from PIL import Image
from starlette.datastructures import UploadFile

import omni_media.containers
import omni_media.images
from omni_core.api import ConfigError, InvalidRequestError, MediaPolicy, RequestTooLargeError
from omni_media.api import Limits as DecodingLimits
from omni_media.api import MediaSource, images, sound
from omni_media.containers import TooManyPacketsError, measured, stream_of
from omni_media.reader import Reader
from omni_serve.encoders import PCM_RATE, wav_header
from omni_serve.errors import ApiError, invalid
from omni_serve.forms import upload
from omni_serve.settings import Limits, Settings

KINDS = ("image", "audio", "video")

MOST_SCANS = 100
"""Scans of a JPEG. Programs write about ten."""


def policy_of(settings: Settings) -> MediaPolicy:
    """Return the client's policy: no local paths, URLs only if allowed."""
    most = int(settings.limits.body_mib * 2**20)
    hosts = settings.media_hosts if settings.fetch_urls else ()
    return MediaPolicy(allow_paths=False, allow_urls=settings.fetch_urls, url_hosts=hosts, max_bytes=most)


def check_fetching(settings: Settings) -> None:
    """Raise ConfigError if URLs are to be fetched and what fetches them is not installed, or the allowed hosts are malformed."""
    if not settings.fetch_urls:
        if settings.media_hosts:
            raise ConfigError("media_hosts (--media-host): no URLs are fetched; give fetch_urls (--fetch-urls) too")
        return
    try:
        from omni_media.fetch import check_host
    except InvalidRequestError as error:
        raise ConfigError(f"fetch_urls: {error}") from None
    for each in settings.media_hosts:
        check_host(each)


async def read_messages(messages: Sequence[Mapping[str, Any]], settings: Settings) -> list[dict[str, Any]]:
    """Return messages in the form that stages read. Their media are counted; :func:`share_of` checks them.

    Raises:
        ApiError: 400 or 413; ``param`` is the content part.
    """
    try:
        read = await Reader(policy_of(settings)).messages(messages)
    except InvalidRequestError as error:
        where, _, problem = str(error).partition(": ")
        raise invalid(problem and f"{where}: {problem}", where if problem else None, "invalid_value") from None
    _check(read, settings.limits)
    return read


def _check(messages: list[dict[str, Any]], limits: Limits) -> None:
    parts = characters = 0
    for message in messages:
        content = message.get("content")
        characters += len(content) if isinstance(content, str) else 0
        for part in content if isinstance(content, list) else ():
            characters += len(part["text"]) if isinstance(part.get("text"), str) else 0
            parts += part.get("type") in KINDS
    if parts > limits.media_parts:
        problem = f"{parts} pieces of media are over the limit of {limits.media_parts} (media_parts)"
        raise invalid(f"messages: {problem}", "messages")
    if characters > limits.text_characters:
        problem = f"{characters} characters are over the limit of {limits.text_characters} (text_characters)"
        raise ApiError(413, f"messages: {problem}", param="messages")


@define
class Media:
    """The size of media when they are decoded, by their headers and packets.

    Attributes:
        seconds: of recordings and videos.
        samples: of sound, of every channel.
        pixels: of images.
        frame_pixels: of all frames of videos.
    """

    seconds: float | None = None
    samples: float = 0
    pixels: int = 0
    frame_pixels: float = 0


async def share_of(inputs: Any, limits: Limits) -> float:
    """Check all media of a request for the pipeline.

    Returns:
        Their part of what one request may have, up to 1; 0 if it has none.

    Raises:
        ApiError: 400 or 413, of one piece (see :func:`check_media`) or of all together; ``param`` is the content part.
    """
    messages = inputs.get("messages") if isinstance(inputs, dict) else None
    parts = [
        piece
        for number, message in enumerate(messages or ())
        if isinstance(message.get("content"), list)
        for index, part in enumerate(message["content"])
        if part.get("type") in KINDS
        for piece in _pieces(part, f"messages[{number}].content[{index}]")
    ]
    if not parts:
        return 0.0
    return await asyncio.to_thread(_share, parts, limits)  # FFmpeg may take a while to find its way in a file


def _pieces(part: Mapping[str, Any], where: str) -> Iterator[tuple[str, Any, str]]:
    """Yield the files of a part, each with its kind and its place: of a video that is given as pictures, all of them and the sound."""
    if part.get("times") is None:
        yield part["type"], part.get("data"), where
        return
    for number, each in enumerate(part["frames"]):
        yield "frame", each.get("data"), f"{where}.frames[{number}]"
    if part.get("sound") is not None:
        yield "audio", part["sound"].get("data"), f"{where}.sound"


def _share(parts: list[tuple[str, Any, str]], limits: Limits) -> float:
    total = Media(seconds=0.0)
    share = 0.0
    for kind, data, where in parts:
        found = check_media(kind, data, where, limits)
        total = Media(
            (total.seconds or 0.0) + (found.seconds or 0.0),
            total.samples + found.samples,
            total.pixels + found.pixels,
            total.frame_pixels + found.frame_pixels,
        )
        share = 0.0
        for name, amount, unit in (
            ("media_pixels", total.pixels, "pixels of images"),
            ("media_samples", total.samples, "samples of sound"),
            ("media_seconds", total.seconds, "s of sound and video"),
            ("media_frame_pixels", total.frame_pixels, "pixels of the frames of videos"),
        ):
            most = getattr(limits, name)
            if amount > most:
                message = f"{where}: with it the request has {amount:.0f} {unit}, over the limit of {most:g} ({name})"
                raise _too_large(message, where)
            share += amount / most
    return min(max(share, _LEAST_SHARE), 1.0)


_LEAST_SHARE = 1 / 32
"""The part that the smallest media take of the room for those of one request: a picture of one pixel is made larger for the model."""


def check_media(kind: str, data: Any, where: str, limits: Limits) -> Media:
    """Check one piece of media by its header and packets.

    Raises:
        ApiError: 400: not a file of this kind, or unreadable; 413: over a limit.
    """
    if not isinstance(data, bytes):
        raise invalid(f"{where}: the content must be sent with the request (base64 or a data: URL)", where)
    if len(data) > limits.media_mib * 2**20:
        size = len(data) / 2**20
        raise _too_large(f"{where}: {size:.1f} MiB are over the limit of {limits.media_mib:g} MiB (media_mib)", where)
    if kind in ("image", "frame"):
        found = _check_image(data, where, limits)
        return found if kind == "image" else Media(frame_pixels=found.pixels)
    return _check_sound_or_video(kind, data, where, limits)


def _check_image(data: bytes, where: str, limits: Limits) -> Media:
    try:
        with omni_media.images.opened(io.BytesIO(data)) as image:
            width, height = image.size
            form = image.format
    except Image.DecompressionBombError:
        raise _too_large(f"{where}: over the limit of {limits.image_pixels} pixels (image_pixels)", where) from None
    except Exception:  # the readers of many formats raise many things
        known = ", ".join(omni_media.images.FORMATS)
        raise invalid(
            f"{where}: not an image that can be read; the formats are {known}", where, "invalid_image"
        ) from None
    if width * height > limits.image_pixels:
        problem = f"{width} x {height} pixels are over the limit of {limits.image_pixels} pixels (image_pixels)"
        raise _too_large(f"{where}: {problem}", where)
    if form in ("JPEG", "MPO") and has_many_scans(data):
        raise _too_large(f"{where}: a JPEG of more than {MOST_SCANS} scans; store it again", where)
    return Media(pixels=width * height)


_MARKER = re.compile(rb"\xff([^\x00\xff\xd0-\xd7])", re.DOTALL)
_MOST_SEGMENTS = 10_000


def has_many_scans(data: bytes) -> bool:
    """Return if a JPEG has more than :data:`MOST_SCANS` scans: each of a few bytes goes over all pixels."""
    if data.count(b"\xff\xda") <= MOST_SCANS:
        return False
    scans, at = 0, 2
    for _ in range(_MOST_SEGMENTS):  # what is inside a segment, or behind the end of the file, begins no scan
        found = _MARKER.search(data, at)
        if found is None or found[1] == b"\xd9":
            return False
        scans += found[1] == b"\xda"
        if scans > MOST_SCANS:
            return True
        at = found.end() + int.from_bytes(data[found.end() : found.end() + 2], "big")
    return True


def _check_sound_or_video(kind: str, data: bytes, where: str, limits: Limits) -> Media:
    title = "a recording" if kind == "audio" else "a video"
    if kind == "audio" and (found := _plain_wave(data)) is not None:
        return _in_limits(kind, found, 0, where, limits)
    try:
        with omni_media.containers.opened(io.BytesIO(data)) as file:
            sounds = stream_of(file, "audio")
            stream = sounds if kind == "audio" else stream_of(file, "video")
            if stream is None:
                raise invalid(f"{where}: there is no {'sound' if kind == 'audio' else 'picture'} in it", where)
            extent = measured(file, stream, *([] if sounds in (None, stream) else [sounds]))
            size = 0 if kind == "audio" else stream.codec_context.width * stream.codec_context.height
            heard = 0 if sounds is None else int(sounds.codec_context.sample_rate or 0) * sounds.codec_context.channels
    except ApiError:
        raise
    except TooManyPacketsError:
        raise _too_large(f"{where}: the file has too many packets; store it again", where) from None
    except Exception:
        raise invalid(f"{where}: not {title} that can be read", where, f"invalid_{kind}") from None
    longest = extent.seconds if kind == "audio" else max(extent.seconds, extent.end - extent.start)
    pixels = len(extent.times) * size
    return _in_limits(kind, Media(extent.seconds, longest * heard, frame_pixels=pixels), size, where, limits)


async def uploaded_sound(file: UploadFile, field: str, most_mib: float) -> bytes:
    """Return an uploaded recording. PCM, which has no header and is known by its name or its type, gets one.

    Raises:
        ApiError: 413, it is larger; 400, it is empty.
    """
    data = await upload(file, field, most_mib)
    rate = pcm_rate(file.filename or "", file.content_type or "")
    return data if rate is None else wav_header(rate, len(data)) + data


def pcm_rate(name: str, kind: str) -> int | None:
    """Return the sample rate of an uploaded file that is PCM by its name or its type, which may tell it (``audio/pcm;rate=16000``)."""
    if not (kind.partition(";")[0].strip() == "audio/pcm" or name.lower().endswith(".pcm")):
        return None
    told = re.search(r";\s*rate=(\d{4,5})\s*(;|$)", kind)
    return int(told[1]) if told else PCM_RATE


def check_sound(data: bytes, where: str, limits: Limits, least_seconds: float = 0.0) -> None:
    """Decode a recording that is kept, so that what cannot be heard is refused at once.

    Raises:
        ApiError: 400: damaged, silent of samples, not finite, or shorter than ``least_seconds``; 413: over a limit.
    """
    check_media("audio", data, where, limits)
    rate = 16_000
    bounds = DecodingLimits(max_audio_seconds=limits.audio_seconds, max_file_mb=int(limits.media_mib) + 1)
    with _decoding("audio", where):
        samples = sound(MediaSource("recording", {"data": data}, where), rate, bounds)
    if len(samples) < least_seconds * rate:
        here, least = 1000 * len(samples) / rate, 1000 * least_seconds
        raise invalid(f"{where}: {here:.0f} ms of sound; at least {least:.0f} ms are needed", where, "invalid_audio")


def check_image(data: bytes, where: str, limits: Limits) -> None:
    """Decode an image that is kept, so that what cannot be seen is refused at once. :func:`check_media` has taken it.

    Raises:
        ApiError: 400: damaged, truncated, or one side is too long beside the other.
    """
    bounds = DecodingLimits(max_image_pixels=limits.image_pixels, max_request_pixels=limits.image_pixels)
    with _decoding("image", where):
        images(MediaSource("image", {"data": data}, where), bounds)


@contextmanager
def _decoding(kind: str, where: str) -> Iterator[None]:
    try:
        yield
    except InvalidRequestError as error:
        raise undecoded(error, kind, where) from None


def undecoded(error: InvalidRequestError, kind: str, where: str) -> ApiError:
    """Return the answer to media that could not be decoded."""
    if isinstance(error, RequestTooLargeError):
        return _too_large(str(error), where)
    return invalid(str(error), where, f"invalid_{kind}")


def _plain_wave(data: bytes) -> Media | None:
    """Return what a recording in plain WAV is, as conversations have many of: FFmpeg would take a hundred times longer."""
    try:
        with wave.open(io.BytesIO(data)) as file:
            rate, channels = file.getframerate(), file.getnchannels()
            # A writer that could not seek has left a length of its own choice in the header.
            frames = min(file.getnframes(), len(data) // (channels * file.getsampwidth()))
    except (wave.Error, EOFError, ValueError, RuntimeError):
        return None
    return Media(frames / rate, frames * channels) if frames and rate else None


def _in_limits(kind: str, found: Media, pixels: int, where: str, limits: Limits) -> Media:
    """Return what was found, checked. ``pixels``: of a frame."""
    seconds = found.seconds
    most = limits.audio_seconds if kind == "audio" else limits.video_seconds
    if seconds is not None and seconds > most:
        raise _too_large(f"{where}: {seconds:.1f} s are over the limit of {most:g} s ({kind}_seconds)", where)
    if pixels > limits.image_pixels:
        problem = f"frames of {pixels} pixels are over the limit of {limits.image_pixels} (image_pixels)"
        raise _too_large(f"{where}: {problem}", where)
    return found


def _too_large(message: str, where: str) -> ApiError:
    return ApiError(413, message, param=where, code="media_too_large")
