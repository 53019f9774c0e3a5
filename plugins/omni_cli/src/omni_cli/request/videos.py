"""The video of a reply: the file it is written to, and what the JSON document says of it."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

from omni_core.api import ImageResult


def as_document(video: ImageResult) -> dict[str, Any]:
    """Return what the JSON document of a reply says of its video."""
    frames, height, width, _ = video.pixels.shape
    return {"width": width, "height": height, "frames": frames, "frames_per_second": video.frames_per_second}


def save_video(video: ImageResult, out: Path) -> None:
    """Write the frames as an MP4 file: H.264, or MPEG-4 where PyAV was built without it. Odd sizes get a row or a column more, as both
    store colours for two by two pixels.
    """
    import av  # check_video_out has looked for it
    import numpy as np

    rate = Fraction(video.frames_per_second).limit_denominator(1001)
    _, height, width, _ = video.pixels.shape
    frames = np.pad(np.asarray(video.pixels, np.uint8), [(0, 0), (0, height % 2), (0, width % 2), (0, 0)], mode="edge")
    codec = "libx264" if "libx264" in av.codecs_available else "mpeg4"
    with av.open(str(out), "w", format="mp4") as file:
        stream = file.add_stream(codec, rate=rate)
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = "yuv420p"
        stream.codec_context.qmin, stream.codec_context.qmax = 1, 20  # the default of MPEG-4 shows blocks
        for pixels in frames:
            file.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        file.mux(stream.encode(None))
