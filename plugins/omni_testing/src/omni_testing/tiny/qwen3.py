"""Writes a complete Qwen3-Omni checkpoint in the released on-disk layout, tiny, with random weights.

The weights are drawn at unit gain, so that replies differ from prompt to prompt and speech is not silent; transformers' own
initialisation gives constant tokens and silence. The replies are meaningless.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from omni_testing.tiny.qwen3_config import SHAPES, Shape, codec_ids, complete_saved_config, model_config
from omni_testing.tiny.qwen3_tokenizer import write_tokenizer
from omni_testing.tiny.writing import drawing, new_folder


def write_tiny_checkpoint(directory: str | Path, *, seed: int = 0, shape: str = "a", dtype: str = "float32") -> Path:
    """Write a checkpoint: config, tokenizer with chat template, processor files, sharded safetensors under the released names.

    Args:
        directory: made if missing; must not hold a checkpoint already.
        seed: of the weights. The same seed and shape give the same bytes.
        shape: one of :data:`SHAPES`.
        dtype: of the weights on disk, ``float32`` or ``bfloat16``.

    Raises:
        ValueError: an unknown shape. FileExistsError: the folder holds a ``config.json``.
    """
    import torch
    from transformers import Qwen3OmniMoeConfig, Qwen3OmniMoeForConditionalGeneration

    folder = new_folder(directory, shape, SHAPES)
    dims = SHAPES[shape]
    ids = write_tokenizer(folder, dims.merges)
    with drawing(seed):
        model = Qwen3OmniMoeForConditionalGeneration(Qwen3OmniMoeConfig(**model_config(dims, ids))).eval()
        _redraw(model, ids, dims)
        model.to(getattr(torch, dtype)).save_pretrained(folder, max_shard_size="200MB" if dims.hidden >= 512 else "1MB")
    complete_saved_config(folder, dims)
    write_processor_files(folder)
    return folder


def _redraw(model: Any, ids: dict[str, int], dims: Shape) -> None:
    """Redraw every weight at unit gain, and scale the end-of-turn rows so that some replies end before their limit."""
    import torch

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if (
                name.endswith(("norm.weight", "layernorm.weight", "layer_norm.weight", "gamma"))
                or "norm" in name.split(".")[-2]
            ):
                parameter.fill_(1.0) if name.endswith("weight") or name.endswith("gamma") else parameter.zero_()
            elif name.endswith(("alpha", "beta")):
                parameter.zero_()
            elif name.endswith(".scale"):
                parameter.fill_(0.5)
            elif name.endswith("bias"):
                parameter.normal_(0.0, 0.1)
            elif "embedding" in name or "embed_tokens" in name or "pos_embed" in name:
                parameter.normal_(0.0, 1.0)
            else:
                fan_in = parameter[0].numel() if "experts" not in name else parameter.shape[-1]
                gain = 3.0 if name.endswith(("lm_head.weight", "codec_head.weight")) else 1.0
                if ".block." in name and ".conv2." in name:
                    gain = 0.25  # a vocoder's residual branches: at full gain they amplify rounding a thousandfold
                parameter.normal_(0.0, gain / fan_in**0.5)
        # Quiet enough that the final clamp to [-1, 1] clips nothing.
        model.code2wav.decoder[-1].conv.weight *= 0.12
        # Reply lengths: these factors were chosen so that, over the tests' prompts, some replies end before their
        # limit.
        model.thinker.lm_head.weight[ids["<|im_end|>"]] *= dims.im_end_gain
        model.talker.codec_head.weight[codec_ids(dims)["codec_eos_token_id"]] *= 1.3


def write_processor_files(folder: Path) -> None:
    """Write the processors' settings: image and video patches of 16 pixels, log-mel features of 16 kHz audio."""
    pixels = {
        "patch_size": 16,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "do_rescale": True,
        "do_normalize": True,
        "do_convert_rgb": True,
        "rescale_factor": 1 / 255,
        "resample": 3,
    }
    image = {
        **pixels,
        "image_processor_type": "Qwen2VLImageProcessor",
        "processor_class": "Qwen3OmniMoeProcessor",
        "feature_extractor_type": "WhisperFeatureExtractor",
        "size": {"shortest_edge": 32 * 32, "longest_edge": 128 * 128},
        "do_resize": True,
        "feature_size": 128,
        "sampling_rate": 16000,
        "hop_length": 160,
        "chunk_length": 300,
        "n_fft": 400,
        "n_samples": 4800000,
        "nb_max_frames": 30000,
        "padding_value": 0.0,
        "padding_side": "right",
        "return_attention_mask": True,
        "dither": 0.0,
    }
    video = {
        **pixels,
        "video_processor_type": "Qwen2VLVideoProcessor",
        "size": {"shortest_edge": 32 * 32, "longest_edge": 128 * 128},
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(image, indent=2) + "\n")
    (folder / "video_preprocessor_config.json").write_text(json.dumps(video, indent=2) + "\n")
