"""Videos of ``omni run`` and of the Python client, by a pipeline that makes frames."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import av
import click
import numpy as np
import pytest

import omni_core
from omni_cli.deploy.writing import dump_json
from omni_cli.request import out
from omni_cli.request.videos import save_video
from omni_core.config.schema import PipelineConfig, StageConfig
from omni_core.interface import Interface
from omni_core.protocol.outputs import ImageResult

FRAMES = """
import numpy as np
from omni_core.protocol.outputs import ImageResult

def film(payload):
    frames = np.zeros((12, 34, 48, 3), np.uint8)
    for number in range(12):
        frames[number, :, 4 * number : 4 * number + 4] = (250, 120, 10)
    return ImageResult(frames, frames_per_second=6.0)
"""


def config() -> PipelineConfig:
    return PipelineConfig(
        model_path="none",
        name="film",
        stages=[StageConfig(name="film", process="one", factory="frames:film", terminal=True)],
        interface=Interface(inputs=["text"], outputs=["video"]),
    )


@pytest.fixture
def pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "frames.py").write_text(FRAMES)
    (tmp_path / "film.json").write_text(dump_json(config()))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    return tmp_path / "film.json"


def run(pipeline: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "omni_core.cli", "run", str(pipeline), "--text", "a bar that moves", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)


def test_a_video_is_written_and_told(pipeline: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.mp4"
    answer = run(pipeline, "--json", "--out", str(path))
    assert answer.returncode == 0, answer.stderr
    document = json.loads(answer.stdout)
    assert document["video"] == {"width": 48, "height": 34, "frames": 12, "frames_per_second": 6.0}
    with av.open(str(path)) as file:
        assert file.streams.video[0].average_rate == 6
        frames = np.stack([each.to_ndarray(format="rgb24") for each in file.decode(video=0)])
    assert frames.shape == (12, 34, 48, 3)
    for number, frame in enumerate(frames):
        assert abs(int(frame[17, 4 * number + 2, 0]) - 250) < 40, "the bar of every frame is where it was drawn"
        assert int(frame[17, (4 * number + 26) % 48, 0]) < 40


def test_a_reply_has_its_frames(pipeline: Path) -> None:
    with omni_core.open(config()) as pipe:
        video = pipe.chat("a bar that moves").outputs["video"]
    assert isinstance(video, ImageResult)
    assert (video.pixels.shape, video.pixels.dtype, video.frames_per_second) == ((12, 34, 48, 3), np.uint8, 6.0)


def test_a_picture_of_a_video_is_refused_before_it_is_made(pipeline: Path, tmp_path: Path) -> None:
    answer = run(pipeline, "--out", str(tmp_path / "x.png"))
    assert answer.returncode == 2
    assert "videos are written as .mp4" in answer.stderr


def test_odd_sizes_and_broken_rates_are_kept(tmp_path: Path) -> None:
    frames = np.full((5, 17, 31, 3), 90, np.uint8)
    save_video(ImageResult(frames, frames_per_second=29.97), tmp_path / "x.mp4")
    with av.open(str(tmp_path / "x.mp4")) as file:
        stream = file.streams.video[0]
        assert (stream.height, stream.width) == (18, 32)
        assert float(stream.average_rate or 0) == pytest.approx(29.97, abs=1e-3)
        assert len(list(file.decode(video=0))) == 5


@pytest.mark.parametrize(
    ("name", "text"), [("nowhere/x.mp4", "does not exist"), ("note.mp4", "no MP4 file"), ("x.avi", "written as .mp4")]
)
def test_a_place_where_no_video_can_be_written_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "note.mp4").write_text("a note, not a video")
    with pytest.raises(click.UsageError, match=text):
        out.check_video_out(Path(name))
