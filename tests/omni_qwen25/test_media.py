"""Prompts with images, clips and videos: ids, features and positions as transformers' processor and model make them."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import av
import numpy as np
import pytest
import torch
from qwen25_reference import answer, model
from qwen25_stages import Stages
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoTokenizer, WhisperFeatureExtractor
from transformers.models.qwen2_5_omni.processing_qwen2_5_omni import Qwen2_5OmniProcessor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from omni_core.errors import ConfigError, RequestTooLargeError
from omni_core.protocol.messages import OmniRequest, StagePayload
from omni_qwen25.interface import LIMITS
from omni_qwen25.positions import Piece, alternating, chunks
from omni_qwen25.preprocessing import Preprocessor, create_preprocessing

RANDOM = np.random.default_rng(0)
IMAGE = RANDOM.integers(0, 256, (60, 90, 3), dtype=np.uint8)
CLIP = RANDOM.normal(0, 0.2, 16_000 * 2).astype(np.float32)
FRAMES = RANDOM.integers(0, 256, (12, 56, 56, 3), dtype=np.uint8)


def write_video(path: Path, seconds: int, sound: float) -> Path:
    """Write a video of random pictures, two per second, with a track of so many seconds of noise. Nothing in it is compressed with loss."""
    draw = np.random.default_rng(seconds)
    with av.open(str(path), "w") as container:
        pictures = container.add_stream("ffv1", rate=2)
        pictures.width, pictures.height, pictures.pix_fmt = 56, 56, "bgr0"
        track = container.add_stream("pcm_s16le", rate=16_000, layout="mono")
        for index in range(2 * seconds):
            frame = av.VideoFrame.from_ndarray(draw.integers(0, 256, (56, 56, 3), dtype=np.uint8), format="rgb24")
            frame.pts, frame.time_base = index, Fraction(1, 2)
            container.mux(pictures.encode(frame))
        container.mux(pictures.encode(None))
        samples = draw.integers(-9000, 9000, (1, int(16_000 * sound)), dtype=np.int16)
        heard = av.AudioFrame.from_ndarray(samples, format="s16", layout="mono")
        heard.sample_rate, heard.pts, heard.time_base = 16_000, 0, Fraction(1, 16_000)
        container.mux(track.encode(heard))
        container.mux(track.encode(None))
    return path


def request(*content: dict[str, Any], **metadata: Any) -> OmniRequest:
    params = {
        "thinker": {"max_new_tokens": 6},
        "talker": {"temperature": 0.0, "max_new_tokens": 10},
        "token2wav": {"seed": 1},
    }
    return OmniRequest(
        {"messages": [{"role": "user", "content": [*content, {"type": "text", "text": "Well?"}]}]},
        params,
        metadata=metadata,
    )


@pytest.fixture(scope="module")
def stages(tiny: dict[str, Path]) -> Stages:
    return Stages(tiny["a"])


def expected(folder: Path, prompt: dict[str, Any], **options: Any) -> Any:
    """Return the reference's answer to the ids and the features of our preprocessing."""
    inputs: dict[str, Any] = {"input_ids": prompt["input_ids"][None]}
    if "audio" in prompt:
        lengths = prompt["audio"]["feature_lengths"]
        clips = [clip.T for clip in prompt["audio"]["input_features"]]
        inputs["input_features"] = pad_sequence(clips, batch_first=True).transpose(1, 2)
        inputs["feature_attention_mask"] = (torch.arange(int(lengths.max())) < lengths[:, None]).long()
    for name in ("pixel_values", "image_grid_thw", "pixel_values_videos", "video_grid_thw"):
        if name in prompt.get("image", {}):
            # The talker of transformers 5 refuses pixels, which the model's `generate` hands to both.
            inputs[f"thinker_{name}" if "pixel" in name else name] = prompt["image"][name]
    if "video_grid_thw" in inputs:
        inputs["video_second_per_grid"] = torch.ones(len(inputs["video_grid_thw"]))
    return answer(folder, inputs, tokens=6, codes=10, seed=1, **options)


def test_images_and_clips(tiny: dict[str, Path], stages: Stages) -> None:
    clip = {"type": "audio", "samples": CLIP, "sample_rate": 16_000}
    short = {"type": "audio", "samples": CLIP[:9000], "sample_rate": 16_000}
    image = {"type": "image", "image": IMAGE}
    small = {"type": "image", "image": IMAGE[:30, :30]}
    asked = [request(image, clip, small), request(clip, short), request(image)]
    for reply in stages.run(*asked):
        other = expected(tiny["a"], reply.prompt)
        assert (reply.ids, reply.codes) == (other.ids, other.codes)
        assert (torch.from_numpy(reply.samples) - other.samples).abs().max() < 1e-4


def test_clips_are_not_allowed_to_be_longer_than_the_extractor_reads(tiny: dict[str, Path]) -> None:
    with pytest.raises(ConfigError, match="max_audio_seconds: 301 is more than the model's extractor reads, 300"):
        create_preprocessing(str(tiny["a"]), max_audio_seconds=301)


def test_videos(tiny: dict[str, Path], stages: Stages) -> None:
    video = {"type": "video", "frames": FRAMES}
    [reply] = stages.run(request(video))
    other = expected(tiny["a"], reply.prompt)
    assert (reply.ids, reply.codes) == (other.ids, other.codes)


def with_sound(folder: Path, prompt: dict[str, Any]) -> list[str]:
    """Return the placeholders of the reference's processor for the videos of a prompt, all of which have sound."""
    processor = object.__new__(Qwen2_5OmniProcessor)
    processor.video_processor = SimpleNamespace(merge_size=2)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for name in ("video_token", "audio_token", "audio_bos_token", "audio_eos_token"):
        setattr(processor, name, getattr(tokenizer, name))
    grids = prompt["image"]["video_grid_thw"]
    videos = {"video_grid_thw": grids, "video_second_per_grid": [1.0] * len(grids)}
    sound = {"num_audio_tokens": prompt["audio"]["clip_tokens"]}
    settings = {"position_id_per_seconds": 25, "seconds_per_chunk": 2.0}
    return [
        processor.replace_video_with_audio_token(videos, index, sound, index, **settings) for index in range(len(grids))
    ]


@pytest.mark.parametrize("shape", [pytest.param("a", marks=pytest.mark.full), "c"])
def test_videos_with_sound(tiny: dict[str, Path], tmp_path: Path, shape: str) -> None:
    """Videos whose sound is shorter and longer than their pictures, beside a clip and an image; several at a time."""
    short = {"type": "video", "path": write_video(tmp_path / "short.mkv", 5, 3.3)}
    long = {"type": "video", "path": write_video(tmp_path / "long.mkv", 3, 5.1)}
    clip = {"type": "audio", "samples": CLIP[:9000], "sample_rate": 16_000}
    image = {"type": "image", "image": IMAGE}
    frames = [{"image": each} for each in FRAMES]
    live = {
        "type": "video",
        "frames": frames,
        "times": [number / 2 for number in range(len(frames))],
        "sound": {"samples": CLIP, "sample_rate": 16_000},
    }
    asked = [
        request(live, clip),
        request(short, use_audio_in_video=True),
        request(image, long, clip, use_audio_in_video=True),
        request(short, long, use_audio_in_video=True),
    ]
    replies = Stages(tiny[shape]).run(*asked)
    assert [len(reply.prompt["audio"]["clip_tokens"]) for reply in replies] == [2, 1, 2, 2]
    for reply in replies:
        other = expected(tiny[shape], reply.prompt, use_audio_in_video=True)
        assert (reply.ids, reply.codes) == (other.ids, other.codes)
        assert (torch.from_numpy(reply.samples) - other.samples).abs().max() < 1e-4
        text = AutoTokenizer.from_pretrained(tiny[shape]).decode(reply.prompt["input_ids"])
        for placeholders in with_sound(tiny[shape], reply.prompt):
            assert text.count(f"<|vision_bos|>{placeholders}<|vision_eos|>") == 1
    assert len({tuple(reply.ids) for reply in replies}) > 1, "the media made no difference"


def test_prompts_equal_those_of_the_processor(tiny: dict[str, Path], stages: Stages) -> None:
    """The reference's processor, which needs torchvision for videos, without its video part."""
    folder = tiny["a"]
    [ours] = stages.run(
        request({"type": "image", "image": IMAGE}, {"type": "audio", "samples": CLIP, "sample_rate": 16_000})
    )
    tokenizer = AutoTokenizer.from_pretrained(folder)
    processor = object.__new__(Qwen2_5OmniProcessor)
    images = Qwen2VLImageProcessorPil.from_pretrained(folder)(IMAGE, return_tensors="pt")
    sound = WhisperFeatureExtractor.from_pretrained(folder)(
        [CLIP], sampling_rate=16_000, padding="max_length", return_attention_mask=True, return_tensors="pt"
    )
    frames = int(sound["attention_mask"].sum())
    image = ours.prompt["image"]
    assert image["image_grid_thw"].tolist() == images["image_grid_thw"].tolist()
    assert torch.allclose(image["pixel_values"], images["pixel_values"], atol=1e-5)
    [features] = ours.prompt["audio"]["input_features"]
    assert features.shape == (128, frames)
    assert torch.allclose(features, sound["input_features"][0, :, :frames], atol=2e-5)
    text = tokenizer.decode(ours.prompt["input_ids"])
    assert text.count("<|IMAGE|>") == int(images["image_grid_thw"].prod()) // 4
    assert text.count("<|AUDIO|>") == ours.prompt["audio"]["clip_tokens"][0] == ((frames - 1) // 2 + 1 - 2) // 2 + 1
    assert processor.get_chunked_index(np.array([0, 20, 60, 61, 180, 181]), 50) == chunks([0, 20, 60, 61, 180, 181], 50)


@pytest.mark.parametrize("sound", [60, 130, 20])
def test_positions_of_pictures_and_sound_together(tiny: dict[str, Path], sound: int) -> None:
    from omni_qwen25.config import read_config
    from omni_qwen25.positions import rope_index

    config = read_config(tiny["a"])
    reference = model(tiny["a"]).thinker
    markers = config.raw["thinker_config"]
    video = Piece("video", (6, 2, 2), 1.0, sound)
    clip, image = Piece("audio", sound=9), Piece("image", (1, 2, 3))
    kinds = {"video": config.video, "audio": config.audio}
    both = [kinds[kind] for kind, begin, end in alternating(video, 25, 2) for _ in range(begin, end)]
    vision = markers["vision_start_token_id"], markers["vision_end_token_id"]
    ids = [5, 6, vision[0], config.audio_start, *both, config.audio_end, vision[1], 7]
    ids += [config.audio_start, *[config.audio] * 9, config.audio_end, vision[0], *[config.image] * 6, vision[1], 8, 9]
    tensor = torch.tensor(ids)
    positions, delta = rope_index(tensor, [video, clip, image], {config.image, config.video, config.audio}, 25, 2)
    wanted, wanted_delta = reference.get_rope_index(
        tensor[None],
        image_grid_thw=torch.tensor([[1, 4, 6]]),
        video_grid_thw=torch.tensor([[6, 4, 4]]),
        attention_mask=torch.ones(1, len(ids)),
        use_audio_in_video=True,
        audio_seqlens=torch.tensor([4 * sound, 36]),
        second_per_grids=torch.tensor([1.0]),
    )
    assert torch.equal(positions, wanted[:, 0])
    assert delta == int(wanted_delta)


def test_what_is_too_large_is_refused_before_the_work(tiny: dict[str, Path]) -> None:
    """By what the encoder would be sent, by the context, and by the length of a text."""

    def refused(words: str, *content: dict[str, Any], **options: Any) -> None:
        preprocess = Preprocessor(
            str(tiny["a"]), LIMITS, **{"video_fps": 2.0, "max_context": None, "payload_bytes": None, **options}
        )
        with pytest.raises(RequestTooLargeError, match=words):
            preprocess(StagePayload("r", request(*content), None))

    video, clip = {"type": "video", "frames": FRAMES}, {"type": "audio", "samples": CLIP, "sample_rate": 16_000}
    refused("MiB for the model", video, payload_bytes={"image_encoder": 1000})
    refused("the sound of the request", clip, payload_bytes={"audio_encoder": 1000})
    refused("positions", video, max_context=100)
    refused("tokens or more", {"type": "text", "text": "a b " * 250_000}, max_context=1000)
