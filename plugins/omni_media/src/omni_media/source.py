"""The source of a piece of media: a file or bytes, its title in error messages, and the limits on its size."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import IO, Any

from attrs import define, field, frozen

from omni_core.api import InvalidRequestError, RequestTooLargeError

Fits = Callable[[int, int, int], None]
"""Raises RequestTooLargeError if so many pictures of a height and a width are more than there is room for."""

LARGEST_ASPECT_RATIO = 200
"""The largest ratio of two sides; the reference's image processor rejects anything more extreme."""


@frozen
class Limits:
    """Bounds on the media of one request. Pipelines offer them as options.

    Attributes:
        max_image_pixels: width times height of an image, before resizing.
        max_audio_seconds: length of one audio clip.
        max_video_seconds: length of one video.
        max_video_frames: frames taken from one video; a longer one is sampled more sparsely.
        max_file_mb: size of one media file, in MiB.
        max_request_pixels: of all images of a request together, as they are decoded.
        max_request_samples: of all clips and sound tracks of a request, of every channel, as they are decoded.
        max_request_frame_pixels: of all frames of a request's videos, as they are decoded.
    """

    max_image_pixels: int = 50_000_000
    max_audio_seconds: float = 600.0
    max_video_seconds: float = 600.0
    max_video_frames: int = 768
    max_file_mb: int = 512
    max_request_pixels: int = 200_000_000
    max_request_samples: int = 120_000_000
    max_request_frame_pixels: int = 40_000_000_000

    def option(self, name: str) -> str:
        """Return what the pipeline calls a limit, for messages; a subclass may call it otherwise."""
        return name


LIMITS = Limits()
"""Those of a stage that offers no options for them."""


@define
class Spent:
    """The media of a request that have been decoded so far; see the limits of these names."""

    request_pixels: int = 0
    request_samples: int = 0
    request_frame_pixels: int = 0


@frozen
class MediaSource:
    """One content part of a message: ``part`` holds ``path``, ``data`` (bytes), or decoded values; ``spent`` is its request's."""

    kind: str
    part: Mapping[str, Any]
    where: str = ""
    spent: Spent = field(factory=Spent)

    @property
    def title(self) -> str:
        """Return the part's name in error messages: its path in the request, and its file."""
        path = self.part.get("path")
        named = f"{self.kind} {str(path)!r}" if path else self.kind
        return f"{self.where} ({named})" if self.where else f"the {named}"

    def fail(self, problem: str) -> InvalidRequestError:
        """Return the error for this piece of media."""
        return InvalidRequestError(f"{self.title}: {problem}")

    def too_large(self, problem: str) -> RequestTooLargeError:
        """Return the error for this piece of media, or all up to it, being over a limit."""
        return RequestTooLargeError(f"{self.title}: {problem}")

    def spend(self, name: str, amount: int, limits: Limits) -> None:
        """Count what is about to be decoded, against a limit of the request that is called ``max_`` and ``name``.

        Raises:
            RequestTooLargeError: it would be over the limit.
        """
        total = getattr(self.spent, name) + amount
        setattr(self.spent, name, total)
        most = getattr(limits, f"max_{name}")
        if total > most:
            _, _, unit = name.partition("_")
            unit = unit.replace("frame_pixels", "pixels of frames")
            raise self.too_large(
                f"with it the request has over {most} {unit}, the limit for all its media ({limits.option(f'max_{name}')})"
            )

    def open(self, limits: Limits) -> IO[bytes]:
        """Open the file or the bytes, with their existence and size checked."""
        data = self.part.get("data")
        if data is not None:
            if not isinstance(data, bytes):
                raise self.fail(f"`data` must be bytes, is {type(data).__name__}")
            stream: IO[bytes] = io.BytesIO(data)
        else:
            stream = self._open_path()
        size = stream.seek(0, io.SEEK_END)
        stream.seek(0)
        if 0 < size <= limits.max_file_mb * 2**20:
            return stream
        stream.close()
        if size == 0:
            raise self.fail("the file is empty")
        most, name = limits.max_file_mb, limits.option("max_file_mb")
        raise self.too_large(f"{size / 2**20:.0f} MiB are over the limit of {most} MiB ({name})")

    def content(self, limits: Limits) -> bytes:
        """Return what tells this piece from others: the bytes of the file, or the decoded values with their shape.

        Raises:
            InvalidRequestError: it cannot be opened, or is over the limit.
        """
        import numpy as np  # here: the modules of plugins import this one

        for name in ("samples", "image", "frames"):
            if self.part.get(name) is not None:
                array = np.asarray(self.part[name])
                return f"{name} {self.part.get('sample_rate')} {array.dtype} {array.shape} ".encode() + array.tobytes()
        with self.open(limits) as stream:
            return stream.read()

    def _open_path(self) -> IO[bytes]:
        from pathlib import Path  # here: the plugin's module imports this one

        path = self.part.get("path")
        if not isinstance(path, str | Path):
            raise self.fail("needs `path` (a file) or `data` (bytes)")
        try:
            return Path(path).open("rb")
        except OSError as error:
            raise self.fail(f"cannot be opened: {error.strerror}") from error

    def check_sides(self, width: int, height: int) -> None:
        """Check the size of a picture, in pixels.

        Raises:
            InvalidRequestError: there are no pixels, or one side is too long beside the other.
        """
        if not width or not height:
            raise self.fail(f"{width} x {height} pixels: there is nothing to see")
        if max(width, height) > LARGEST_ASPECT_RATIO * min(width, height):
            raise self.fail(f"{width} x {height} pixels: one side is over {LARGEST_ASPECT_RATIO} times the other")


def source_of(part: Mapping[str, Any] | MediaSource, kind: str) -> MediaSource:
    """Return a content part as a source; one that is a source already has its place in the request."""
    return part if isinstance(part, MediaSource) else MediaSource(kind, part)
