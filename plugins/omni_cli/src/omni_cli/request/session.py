"""A pipeline that is run for one request, with its reply on a display, in a file, or as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from omni_cli.request.display import Display
from omni_cli.request.generation import Generation
from omni_cli.request.images import StepsShown, as_document, save_images
from omni_cli.request.out import STANDARD_OUTPUT, written_to
from omni_cli.request.sound import sound_writer
from omni_cli.request.videos import as_document as video_document
from omni_cli.request.videos import save_video
from omni_cli.request.wav import WavWriter
from omni_core import Reply
from omni_core.api import PipelineConfig, open_async
from omni_core.runtime_api import receive_reply, reply_document, seconds_of


async def one_reply(
    config: PipelineConfig,
    notices: list[str],
    generation: Generation,
    messages: list[dict[str, Any]],
    out: Path | None,
    trace: Path | None = None,
    *,
    as_json: bool,
) -> None:
    """Run the pipeline for one request: ``omni run``."""
    sound = out if written_to(out) == "audio" else None
    writer = None
    if sound:
        writer = WavWriter(sys.stdout.buffer) if sound == STANDARD_OUTPUT else sound_writer(sound)
    with Display(quiet=as_json, text_to=sys.stderr if out == STANDARD_OUTPUT else None) as display:
        for notice in notices:
            display.notice(notice)
        async with open_async(config, on_progress=display.stage) as pipe:
            display.clear()
            if trace is not None:
                await pipe.start_profile()
            try:
                reply = await receive_reply(
                    StepsShown(pipe, display), generation.request(messages), display, [writer] if writer else []
                )
            finally:
                if writer is not None:
                    writer.close()
                if trace is not None:
                    summary = await pipe.stop_profile(trace)
            for line in [
                *reply.notices,
                *_about_speech(reply, out),
                *_about_image(reply, out),
                *_about_video(reply, out),
            ]:
                display.notice(line)
            if trace is not None:
                display.notice(f"{summary.events} events in {trace}; open it at https://ui.perfetto.dev")
    if as_json:
        found = reply_document(reply, str(sound) if sound else None)
        if "image" in reply.outputs:
            found["image"] = as_document(reply.outputs["image"])
        if "video" in reply.outputs:
            found["video"] = video_document(reply.outputs["video"])
        click.echo(json.dumps(found, default=str))


def _about_image(reply: Reply, out: Path | None) -> list[str]:
    """Save the image, if there is one, and say where, and how it can be made again."""
    image = reply.outputs.get("image")
    if image is None:
        return _missing("image", out)
    _, height, width, _ = image.pixels.shape
    seed = f" (seed {', '.join(map(str, image.seeds))})" if image.seeds else ""
    if out is None or written_to(out) != "image":
        return [f"An image of {width} x {height} pixels{seed}; --out FILE.png keeps it."]
    return [f"{width} x {height} pixels in {each}{seed}" for each in save_images(image.pixels, out)]


def _about_video(reply: Reply, out: Path | None) -> list[str]:
    """Save the video, if there is one, and say where."""
    video = reply.outputs.get("video")
    if video is None:
        return _missing("video", out)
    frames, height, width, _ = video.pixels.shape
    what = f"{frames / video.frames_per_second:.2f} s of {width} x {height} pixels"
    if out is None or written_to(out) != "video":
        return [f"A video: {what}; --out FILE.mp4 keeps it."]
    save_video(video, out)
    return [f"{what} in {out}"]


def _missing(kind: str, out: Path | None) -> list[str]:
    return [f"The reply has no {kind}; {out} is not written."] if written_to(out) == kind else []


def _about_speech(reply: Reply, out: Path | None) -> list[str]:
    """Say how long the speech is, and where, or how it is kept."""
    seconds = seconds_of(reply)
    if seconds is None:
        return []
    if not seconds:
        return ["The model said nothing: the reply has no speech" + (f"; {out} is not written." if out else ".")]
    if out is None or written_to(out) != "audio":
        return [f"{seconds:.2f} s of speech at {reply.audio.sample_rate} Hz; --out speech.wav keeps it."]
    return [f"{seconds:.2f} s of speech in {out}"] if out != STANDARD_OUTPUT else []
