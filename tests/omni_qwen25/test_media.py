"""Prompts with images, clips and videos: ids, features and positions as transformers' processor and model make them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from qwen25_reference import answer, model
from qwen25_stages import Stages
from transformers import AutoTokenizer, WhisperFeatureExtractor
from transformers.models.qwen2_5_omni.processing_qwen2_5_omni import Qwen2_5OmniProcessor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from omni_core.protocol.messages import OmniRequest
from omni_qwen25.positions import Piece, alternating, chunks

RANDOM = np.random.default_rng(0)
IMAGE = RANDOM.integers(0, 256, (60, 90, 3), dtype=np.uint8)
CLIP = RANDOM.normal(0, 0.2, 16_000 * 2).astype(np.float32)
FRAMES = RANDOM.integers(0, 256, (12, 56, 56, 3), dtype=np.uint8)


def request(*content: dict[str, Any]) -> OmniRequest:
    params = {
        "thinker": {"max_new_tokens": 6},
        "talker": {"temperature": 0.0, "max_new_tokens": 10},
        "token2wav": {"seed": 1},
    }
    return OmniRequest(
        {"messages": [{"role": "user", "content": [*content, {"type": "text", "text": "Well?"}]}]}, params
    )


@pytest.fixture(scope="module")
def stages(tiny: dict[str, Path]) -> Stages:
    return Stages(tiny["a"])


def expected(tiny: dict[str, Path], prompt: dict[str, Any]) -> Any:
    """Return the reference's answer to the ids and the features of our preprocessing."""
    inputs: dict[str, Any] = {"input_ids": prompt["input_ids"][None]}
    if "audio" in prompt:
        lengths = prompt["audio"]["feature_lengths"]
        inputs["input_features"] = prompt["audio"]["input_features"]
        inputs["feature_attention_mask"] = (torch.arange(int(lengths.max())) < lengths[:, None]).long()
    for name in ("pixel_values", "image_grid_thw", "pixel_values_videos", "video_grid_thw"):
        if name in prompt.get("image", {}):
            # The talker of transformers 5 refuses pixels, which the model's `generate` hands to both.
            inputs[f"thinker_{name}" if "pixel" in name else name] = prompt["image"][name]
    if "video_grid_thw" in inputs:
        inputs["video_second_per_grid"] = torch.ones(len(inputs["video_grid_thw"]))
    return answer(tiny["a"], inputs, tokens=6, codes=10, seed=1)


def test_images_and_clips(tiny: dict[str, Path], stages: Stages) -> None:
    clip = {"type": "audio", "samples": CLIP, "sample_rate": 16_000}
    short = {"type": "audio", "samples": CLIP[:9000], "sample_rate": 16_000}
    image = {"type": "image", "image": IMAGE}
    small = {"type": "image", "image": IMAGE[:30, :30]}
    asked = [request(image, clip, small), request(clip, short), request(image)]
    for reply in stages.run(*asked):
        other = expected(tiny, reply.prompt)
        assert (reply.ids, reply.codes) == (other.ids, other.codes)
        assert (torch.from_numpy(reply.samples) - other.samples).abs().max() < 1e-4


def test_videos(tiny: dict[str, Path], stages: Stages) -> None:
    video = {"type": "video", "frames": FRAMES}
    [reply] = stages.run(request(video))
    other = expected(tiny, reply.prompt)
    assert (reply.ids, reply.codes) == (other.ids, other.codes)


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
    features = ours.prompt["audio"]["input_features"]
    assert features.shape == (1, 128, frames)
    assert torch.allclose(features, sound["input_features"][..., :frames], atol=2e-5)
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
