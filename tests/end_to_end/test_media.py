"""Media are decoded as by the reference's processor: transparency, filters, valid videos of every shape."""

from __future__ import annotations

import json
import shutil
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import media
import numpy as np
import pytest
import torch
from PIL import Image
from tiers import few
from transformers import AutoFeatureExtractor, AutoTokenizer
from transformers.image_utils import load_image as load_reference_image
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from omni_core.errors import ConfigError, InvalidRequestError
from omni_core.protocol.messages import OmniRequest, StagePayload
from omni_media.api import Limits, MediaSource, Video, frames, images
from omni_qwen3.patches import PatchSettings, image_patches
from omni_qwen3.preprocessing import Preprocessor


def source(kind: str, **part: Any) -> MediaSource:
    return MediaSource(kind, part, "messages[0].content[0]")


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).integers(0, 255, shape, dtype=np.uint8)


def transparent(folder: Path, mode: str) -> Path:
    """A picture half of which is transparent, with colours behind."""
    rgba = Image.fromarray(noise(64, 96, 4), "RGBA")
    path = folder / f"{mode}.png"
    if mode == "P":
        palette = rgba.convert("RGB").quantize(32)
        palette.save(path, transparency=bytes(range(0, 256, 8)))
    elif mode == "P one":
        rgba.convert("RGB").quantize(32).save(path, transparency=3)
    elif mode == "RGB":
        rgba.convert("RGB").save(path, transparency=tuple(rgba.getpixel((0, 0))[:3]))
    else:
        rgba.convert(mode).save(path)
    return path


@pytest.mark.parametrize("mode", few(["P", "P one", "RGB", "RGBA", "LA", "L"], 3))
@pytest.mark.parametrize("resample", [2, 3])
def test_a_file_is_decoded_as_by_the_reference(
    checkpoints: dict[str, Path], tmp_path: Path, mode: str, resample: int
) -> None:
    folder = shutil.copytree(checkpoints["a"], tmp_path / "checkpoint")
    values = json.loads((folder / "preprocessor_config.json").read_text())
    (folder / "preprocessor_config.json").write_text(json.dumps({**values, "resample": resample}))
    path = transparent(tmp_path, mode)
    expected = Qwen2VLImageProcessorPil.from_pretrained(folder)(load_reference_image(str(path)), return_tensors="pt")
    settings, _ = PatchSettings.read(folder)
    patches, grid = image_patches(images(source("image", path=str(path)), Limits())[0], settings)
    assert [grid] == expected["image_grid_thw"].tolist()
    assert torch.allclose(patches, expected["pixel_values"], atol=1e-6)


def test_an_array_with_an_alpha_channel_is_put_on_white(checkpoints: dict[str, Path]) -> None:
    settings, _ = PatchSettings.read(checkpoints["a"])
    array = noise(64, 96, 4)
    processor = Qwen2VLImageProcessorPil.from_pretrained(checkpoints["a"])
    expected = processor(Image.fromarray(array), return_tensors="pt")["pixel_values"]
    patches, _ = image_patches(images(source("image", image=array), Limits())[0], settings)
    assert torch.allclose(patches, expected, atol=1e-6)
    with pytest.raises(InvalidRequestError, match=r"must be uint8 \[height, width, 3 or 4\], is uint8 \[64, 96\]"):
        images(source("image", image=array[..., 0]), Limits())[0]
    with pytest.raises(InvalidRequestError, match=r"must be a uint8 array .* is of type Image"):
        images(source("image", image=Image.fromarray(array)), Limits())[0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"resample": 9}, "preprocessor_config.json.resample: must be a whole number from 0 to 5, is 9"),
        ({"resample": "bicubic"}, "preprocessor_config.json.resample"),
        ({"do_normalize": False}, "do_normalize: must be True"),
        ({"image_mean": [0.5]}, "image_mean: must be a list of 3 numbers"),
        ({"image_std": [0, 0, 0]}, "image_std"),
        ({"patch_size": 0}, "patch_size: must be a whole number from 1 to 256, is 0"),
        ({"size": {"shortest_edge": -1}}, "size.shortest_edge"),
        ({"size": 3}, "size: must be an object"),
        ({"merge_size": 4}, "video_preprocessor_config.json.merge_size: must be that of the image processor, 4, is 2"),
    ],
)
def test_settings_that_are_not_implemented_are_named(
    checkpoints: dict[str, Path], tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    folder = shutil.copytree(checkpoints["a"], tmp_path / "checkpoint")
    path = folder / "preprocessor_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ConfigError) as caught:
        PatchSettings.read(folder)
    assert words in str(caught.value)


def test_a_checkpoint_without_settings_is_named(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    folder = shutil.copytree(checkpoints["a"], tmp_path / "checkpoint")
    (folder / "preprocessor_config.json").unlink()
    with pytest.raises(ConfigError, match=r"neither preprocessor_config\.json nor processor_config\.json"):
        Preprocessor(str(folder), Limits(), video_fps=2.0, max_context=None)


def test_processor_files_of_transformers_5_are_read(
    checkpoints: dict[str, Path], tmp_path: Path, files: dict[str, str]
) -> None:
    """``processor.save_pretrained`` writes one file with a section per processor, and the chat template apart."""
    folder = shutil.copytree(checkpoints["a"], tmp_path / "checkpoint")
    image = Qwen2VLImageProcessorPil.from_pretrained(folder).to_dict()
    video = json.loads((folder / "video_preprocessor_config.json").read_text())
    sound = AutoFeatureExtractor.from_pretrained(folder).to_dict()
    nested = {
        "image_processor": {**image, "image_mean": [0.4, 0.5, 0.6]},
        "video_processor": video,
        "feature_extractor": sound,
    }
    (folder / "processor_config.json").write_text(json.dumps(nested | {"processor_class": "Qwen3OmniMoeProcessor"}))
    for name in ("preprocessor_config.json", "video_preprocessor_config.json"):
        (folder / name).unlink()
    AutoTokenizer.from_pretrained(folder).save_pretrained(folder)
    parts = [{"type": kind, "path": files[kind]} for kind in ("image", "audio", "video")]
    request = OmniRequest(inputs={"messages": [{"role": "user", "content": parts}]})
    new, old = [
        Preprocessor(str(each), Limits(), video_fps=2.0, max_context=None)(StagePayload("r", request, None))
        for each in (folder, checkpoints["a"])
    ]
    assert torch.equal(new["input_ids"], old["input_ids"])
    assert torch.equal(new["audio"]["input_features"][0], old["audio"]["input_features"][0])
    assert torch.equal(new["image"]["pixel_values_videos"], old["image"]["pixel_values_videos"])
    assert not torch.equal(new["image"]["pixel_values"], old["image"]["pixel_values"]), (
        "the nested settings had no effect"
    )


def write(path: Path, times: list[float], sound: float | None, codec: str = "ffv1") -> Path:
    """A video with a picture at each of the times, and a sound track of some seconds."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "bgr0" if codec == "ffv1" else "yuv420p"
        stream.time_base = stream.codec_context.time_base = Fraction(1, 10)
        track = (
            container.add_stream("pcm_s16le" if codec == "ffv1" else "aac", rate=16_000, layout="mono")
            if sound
            else None
        )
        for number, time in enumerate(times):
            frame = av.VideoFrame.from_ndarray(np.full((48, 64, 3), 40 * number % 255, np.uint8), format="rgb24")
            frame.pts, frame.time_base = round(time * 10), Fraction(1, 10)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
        if track is not None and sound is not None:
            samples = (media.tone(1, sound) * 32767).astype(np.int16)[None]
            audio = av.AudioFrame.from_ndarray(samples, format="s16", layout="mono")
            audio.sample_rate, audio.pts, audio.time_base = 16_000, 0, Fraction(1, 16_000)
            container.mux(track.encode(audio))
            container.mux(track.encode(None))
    return path


VALID = {
    "a still with music": ([0.0], 5.0),
    "slides": ([0.0, 5.0, 10.0], 15.0),
    "pictures shorter than their sound": ([n / 10 for n in range(15)], 5.2),
    "slides without sound": ([0.0, 5.0, 10.0], None),
    "sound shorter than its pictures": ([n / 10 for n in range(40)], 0.5),
}


@pytest.mark.parametrize("name", few(VALID, 4))
@pytest.mark.parametrize("with_sound", [False, True])
@pytest.mark.parametrize("kind", few(["mkv", "mp4"], 1))
def test_valid_videos_are_decoded(tmp_path: Path, name: str, with_sound: bool, kind: str) -> None:
    times, sound = VALID[name]
    path = write(tmp_path / f"video.{kind}", times, sound, "ffv1" if kind == "mkv" else "mpeg4")
    video: Video = frames(source("video", path=str(path)), 2.0, Limits(), sound_rate=16_000 if with_sound else None)
    assert len(video.frames) == (len(times) if len(times) < 4 else -(-len(times) // 5))
    assert (video.sound is not None) == (with_sound and sound is not None)


def test_long_sound_does_not_lower_the_rate_of_few_pictures(tmp_path: Path) -> None:
    path = write(tmp_path / "video.mp4", [n / 10 for n in range(20)], 30.0, "mpeg4")
    limits = Limits(max_video_frames=8)
    assert frames(source("video", path=str(path)), 2.0, limits).fps == 2.0
    assert frames(source("video", path=str(path)), 8.0, limits).fps == pytest.approx(4.0, rel=0.1)


@pytest.mark.parametrize("with_sound", [False, True])
def test_a_truncated_video_is_an_error(tmp_path: Path, with_sound: bool) -> None:
    whole = write(tmp_path / "whole.mkv", [n / 10 for n in range(200)], 20.0)
    data = whole.read_bytes()
    with pytest.raises(InvalidRequestError, match=r"truncated: \d+\.\d of 20"):
        frames(source("video", data=data[: len(data) // 2]), 2.0, Limits(), sound_rate=16_000 if with_sound else None)
