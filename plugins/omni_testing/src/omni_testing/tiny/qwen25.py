"""Writes a complete Qwen2.5-Omni checkpoint in the released on-disk layout, tiny, with random weights.

The weights are drawn at unit gain, so that replies differ from prompt to prompt and speech is not silent; transformers' own
initialisation gives constant tokens. The replies are meaningless.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from omni_testing.tiny.qwen25_config import SHAPES, Shape, codec_ids, model_config
from omni_testing.tiny.qwen25_tokenizer import write_tokenizer
from omni_testing.tiny.writing import drawing, new_folder

VOICES = {"Chelsie": "<|tts_chelsie|>", "Ethan": "<|tts_ethan|>"}
"""The voices, and the token of each that begins the text of speech."""


def write_tiny_checkpoint(directory: str | Path, *, seed: int = 0, shape: str = "a", dtype: str = "float32") -> Path:
    """Write a checkpoint: config, tokenizer with chat template, processor files, voices, sharded safetensors under the released names.

    Args:
        directory: made if missing; must not hold a checkpoint already.
        seed: of the weights. The same seed and shape give the same weights.
        shape: one of :data:`SHAPES`.
        dtype: of the weights on disk, ``float32`` or ``bfloat16``; those of token2wav are float32.

    Raises:
        ValueError: an unknown shape. FileExistsError: the folder holds a ``config.json``.
    """
    import torch
    from transformers import Qwen2_5OmniConfig, Qwen2_5OmniForConditionalGeneration

    folder = new_folder(directory, shape, SHAPES)
    dims = SHAPES[shape]
    ids = write_tokenizer(folder, dims.merges)
    raw = model_config(dims, ids)
    with drawing(seed):
        model = Qwen2_5OmniForConditionalGeneration(Qwen2_5OmniConfig(**raw)).eval()
        _redraw(model, ids, dims)
        _write_voices(folder, ids, dims)
        model.thinker.to(getattr(torch, dtype))
        model.talker.to(getattr(torch, dtype))
        model.save_pretrained(folder, max_shard_size="1MB")
    saved = json.loads((folder / "config.json").read_text())
    saved["architectures"] = raw["architectures"]
    (folder / "config.json").write_text(json.dumps(saved, indent=2, sort_keys=True) + "\n")
    _write_processor_files(folder)
    return folder


def _redraw(model: Any, ids: dict[str, int], dims: Shape) -> None:
    """Redraw every weight at unit gain, and scale the rows of the ends so that some replies end before their limit."""
    import torch

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            last, module = name.split(".")[-1], name.split(".")[-2]
            if "norm" in module or module.startswith("ln_"):
                parameter.fill_(1.0) if last == "weight" else parameter.zero_()
                if module == "linear":
                    parameter.normal_(0.0, 0.02)
            elif last in ("alpha", "beta"):
                parameter.zero_()
            elif last == "bias":
                parameter.normal_(0.0, 0.1)
            elif "embed_tokens" in name or "codec_embed" in name:
                parameter.normal_(0.0, 1.0)
            else:
                gain = 3.0 if module in ("lm_head", "codec_head") else 1.0
                if "resblocks" in name and "convs2" in name:
                    gain = 0.25  # residual branches: at full gain they amplify rounding
                parameter.normal_(0.0, gain / parameter[0].numel() ** 0.5)
        for name, parameter in model.token2wav.named_parameters():
            if "_norm.linear" in name or "norm_out.linear" in name:
                parameter.normal_(0.0, 0.3 / dims.dit_hidden**0.5)
        model.token2wav.code2wav_bigvgan_model.conv_post.weight *= 0.1  # quiet enough that nothing is clipped
        # The markers that end speech are chosen now and then, the other ids that are no codes never.
        markers = codec_ids(dims)
        head = model.talker.codec_head.weight
        head[dims.codes :] *= 0.0
        end = head[markers["tts_codec_end_token_id"]].normal_(0.0, 3.0 * dims.stop_gain / head.shape[1] ** 0.5)
        # The end is likelier behind the text, where each input has the embedding of padding in it.
        padding = model.thinker.model.language_model.embed_tokens.weight[ids["<tts_pad>"]]
        direction = model.talker.thinker_to_talker_proj.weight @ padding
        end += dims.end_of_text_gain * direction / direction.norm()
        model.thinker.lm_head.weight[ids["<|im_end|>"]] *= dims.end_gain


def _write_voices(folder: Path, ids: dict[str, int], dims: Shape) -> None:
    """Write ``spk_dict.pt``: for each voice a token, an embedding and the mel frames of a recording."""
    import torch

    voices = {
        name: {
            "bos_token": ids[token],
            "cond": torch.randn(1, dims.voice),
            "ref_mel": torch.randn(1, 20 + 3 * number, dims.mel),
        }
        for number, (name, token) in enumerate(VOICES.items())
    }
    torch.save(voices, folder / "spk_dict.pt")


def _write_processor_files(folder: Path) -> None:
    """Write the processors' settings: patches of 14 pixels, log-mel features of 16 kHz audio."""
    settings = {
        "image_processor_type": "Qwen2VLImageProcessor",
        "processor_class": "Qwen2_5OmniProcessor",
        "feature_extractor_type": "WhisperFeatureExtractor",
        "patch_size": 14,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "min_pixels": 28 * 28,
        "max_pixels": 112 * 112,
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711],
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
    (folder / "preprocessor_config.json").write_text(json.dumps(settings, indent=2) + "\n")
