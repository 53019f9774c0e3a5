"""Checkpoints of realistic sizes with random weights: the tests' tiny ones with larger networks. Speakers speak until they are stopped."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from attrs import frozen

sys.path.insert(0, str(Path(__file__).parents[1] / "tests/helpers"))

import omni_transformers.stand_ins.first  # noqa: F401

# isort: split

import transformers
from tiny_transformers import checkpoint
from tiny_transformers.speakers import coded
from tiny_transformers.speakers_by_frame import goes_on
from transformers import GenerationConfig

from omni_transformers.speak.higgs import codec_class


@frozen
class Larger:
    """A larger network.

    Attributes:
        rate: frames of a second of sound.
        sizes: changed fields of the config, nested ones by dicts.
        codec: the same of the codec, if that is a checkpoint of its own.
        told: further fields of the generation config.
        change: changes the fresh model.
    """

    rate: float
    sizes: Mapping[str, Any]
    codec: Mapping[str, Any] | None = None
    told: Mapping[str, Any] = {}
    change: Callable[[Any], object] = coded


def _never_ends(weight: str, end: int, channels: int) -> Callable[[Any], None]:
    def change(model: Any) -> None:
        with torch.no_grad():
            model.get_parameter(weight).unflatten(0, (channels, -1))[:, end] = 0.0

    return change


def _quieter(codec: Any) -> None:
    """Make the sound of a fresh codec quieter, which would clip."""
    *_, last = (each for each in codec.decoder.modules() if isinstance(each, torch.nn.Conv1d))
    with torch.no_grad():
        last.weight.mul_(0.1)
        last.bias.mul_(0.1)


_MIMI = {
    "hidden_size": 512, "num_filters": 64, "upsample_groups": 512, "intermediate_size": 2048, "num_attention_heads": 8,
    "num_key_value_heads": 8, "head_dim": 64, "num_hidden_layers": 2, "sliding_window": 250, "layer_scale_initial_scale": 0.01,
}  # fmt: skip
_POCKET_CODEC = {**_MIMI, "latent_stride": 16, "latent_dim": 32}
_CONVOLUTIONS = {"num_filters": 16, "downsampling_ratios": [2, 2, 4, 5, 5, 8], "depths": [3, 3, 3, 3, 3, 3, 8]}
_HEAD = {"hidden_size": 512, "num_hidden_layers": 6, "latent_dim": 32, "frequency_embedding_size": 256}


def _layers(hidden: int, layers: int, heads: int, **more: Any) -> dict[str, Any]:
    return {
        "hidden_size": hidden,
        "intermediate_size": 4 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "initializer_range": 0.02,
        **more,
    }


LARGER = {
    "PocketTTSForConditionalGeneration": Larger(
        12.5,
        {**_layers(1024, 6, 16, head_dim=64), "latent_dim": 32, "frame_rate": 12.5, "flow_head_config": {**_HEAD, "condition_dim": 1024}},
        _POCKET_CODEC,
    ),
    "GradiumPhononTTSForConditionalGeneration": Larger(
        12.5,
        {**_layers(768, 6, 12, head_dim=64), "latent_dim": 32, "frame_rate": 12.5, "flow_head_config": {**_HEAD, "condition_dim": 768}},
        _POCKET_CODEC,
    ),
    "CsmForConditionalGeneration": Larger(
        12.5,
        {
            **_layers(768, 8, 12, head_dim=64),
            "num_codebooks": 8,
            "depth_decoder_config": {
                **_layers(512, 2, 8, head_dim=64), "num_codebooks": 8, "backbone_hidden_size": 768, "max_position_embeddings": 20,
            },
            "codec_config": {**_MIMI, "num_hidden_layers": 4, "num_quantizers": 8},
        },
    ),
    "HiggsAudioV2ForConditionalGeneration": Larger(
        50.0,
        {**_layers(512, 8, 8, head_dim=64), "num_codebooks": 8},
        {"acoustic_model_config": {"decoder_hidden_size": 512, "hidden_size": 256}, "target_bandwidths": [2.0]},
        change=_never_ends("audio_lm_head.weight", 33, 8),
    ),
    "DiaForConditionalGeneration": Larger(
        44_100 / 512,
        {
            "encoder_config": _layers(256, 4, 4, head_dim=64),
            "decoder_config": {
                **_layers(512, 6, 8, head_dim=64), "cross_num_attention_heads": 8, "cross_num_key_value_heads": 8, "cross_head_dim": 64,
                "cross_hidden_size": 256, "num_channels": 9, "max_position_embeddings": 3072,
            },
            "delay_pattern": [0, 8, 9, 10, 11, 12, 13, 14, 15],
            "initializer_range": 0.02,
        },
        {
            "encoder_hidden_size": 16, "downsampling_ratios": [2, 4, 8, 8], "decoder_hidden_size": 768, "upsampling_ratios": [8, 8, 4, 2],
            "n_codebooks": 9, "hidden_size": 256, "hop_length": 512,
        },
        change=_never_ends("logits_dense.weight", 32, 9),
    ),
    "VibeVoiceForConditionalGeneration": Larger(
        7.5,
        {
            "audio_config": {"hidden_size": 64, **_CONVOLUTIONS, "initializer_range": 0.02},
            "semantic_model_config": {"hidden_size": 128, **_CONVOLUTIONS},
            "text_config": _layers(512, 8, 8, head_dim=64, layer_types=None),
            "diffusion_head_config": {
                "hidden_size": 512, "latent_size": 64, "num_hidden_layers": 4, "intermediate_size": 1536, "frequency_embedding_size": 256,
            },
        },
        told={"num_diffusion_steps": 10},
        change=goes_on,
    ),
}  # fmt: skip
"""By architecture. Pocket TTS and Phonon have their released sizes, the others are smaller than what was released."""


def made(architecture: str, seconds: float, folder: Path) -> int:
    """Write a checkpoint whose requests speak for some seconds; return its parameters, with those of its codec.

    Pocket TTS and Phonon speak for 2 s and a third of a second for each letter instead.
    """
    larger, tiny = LARGER[architecture], checkpoint(architecture)
    count = 0
    if larger.codec is not None:
        change_codec = _quieter if larger.codec is _POCKET_CODEC else coded
        codec = _codec(architecture)
        count += grown(codec, tiny / "audio_tokenizer", larger.codec, folder / "audio_tokenizer", change_codec)
    frames = round(seconds * larger.rate)
    told = GenerationConfig.from_pretrained(tiny).to_dict() | dict(larger.told)
    length = {"max_length": frames + 18} if architecture.startswith("Dia") else {"max_new_tokens": frames}
    told = {**told, "max_length": None, **length}

    def change(model: Any) -> None:
        coded(model)
        larger.change(model)
        model.generation_config = GenerationConfig.from_dict(told)

    return count + grown(getattr(transformers, architecture), tiny, larger.sizes, folder, change)


def listening(tokens: int, folder: Path) -> int:
    """Write a Whisper with windows of 30 s that writes so many tokens of each; return its parameters."""
    wide = {"d_model": 640, "encoder_attention_heads": 10, "decoder_attention_heads": 10}
    deep = {"encoder_layers": 6, "decoder_layers": 8, "encoder_ffn_dim": 2560, "decoder_ffn_dim": 2560}
    sizes = {
        **wide,
        **deep,
        "num_mel_bins": 80,
        "max_source_positions": 1500,
        "max_target_positions": 448,
        "init_std": 0.02,
    }
    tiny = checkpoint("WhisperForConditionalGeneration")

    def change(model: Any) -> None:
        told = model.generation_config
        told.update(max_length=4 + tokens, suppress_tokens=[*told.suppress_tokens, 256], alignment_heads=None)
        told.logprob_threshold, told.compression_ratio_threshold = -99.0, 99.0  # no window is written again

    size = grown(transformers.WhisperForConditionalGeneration, tiny, sizes, folder, change)
    tokenizer = transformers.WhisperProcessor.from_pretrained(tiny).tokenizer
    features = transformers.WhisperFeatureExtractor(feature_size=80, chunk_length=30)
    transformers.WhisperProcessor(features, tokenizer).save_pretrained(folder)
    return size


def _codec(architecture: str) -> Any:
    if architecture.startswith("Higgs"):
        return codec_class()
    return transformers.DacModel if architecture.startswith("Dia") else transformers.PocketTTSAudioTokenizerModel


def grown(
    kind: Any, tiny: Path, sizes: Mapping[str, Any], folder: Path, change: Callable[[Any], object] = coded
) -> int:
    """Write a checkpoint like another, with a larger network; return its parameters.

    Args:
        kind: the class of the model.
        sizes: changed fields of the config.
        change: changes the fresh model.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for file in tiny.iterdir():
        if file.is_file() and file.suffix != ".safetensors":
            (folder / file.name).write_text(file.read_text().replace(str(tiny), str(folder)))  # of the codec
    torch.manual_seed(0)
    given = kind.config_class.from_pretrained(tiny).to_dict()
    model = kind(kind.config_class.from_dict(_merged(given, sizes))).eval()
    if hasattr(model, "generation_config") and (tiny / "generation_config.json").exists():
        model.generation_config = GenerationConfig.from_pretrained(tiny)
    change(model)
    model.save_pretrained(folder)
    return sum(each.numel() for each in model.parameters())


def _merged(given: Mapping[str, Any], sizes: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **given,
        **{
            name: _merged(given.get(name) or {}, value) if isinstance(value, Mapping) else value
            for name, value in sizes.items()
        },
    }
