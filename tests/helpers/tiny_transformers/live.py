"""Recognisers that hear sound as it comes; those of Nemotron are in ``frame_recognisers``."""

from __future__ import annotations

import base64
import json
import string
from pathlib import Path
from typing import Any

import torch
import transformers as T

from tiny_transformers import maker
from tiny_transformers.frame_recognisers import letters
from tiny_transformers.tiny import save, shrunk

KYUTAI, VOXTRAL = "KyutaiSpeechToTextForConditionalGeneration", "VoxtralRealtimeForConditionalGeneration"

SPECIAL = 40
"""Special tokens of :func:`tekken`."""


@maker(KYUTAI)
def kyutai(folder: Path) -> None:
    tokenizer = letters()
    sizes = {
        "vocab_size": len(tokenizer),
        "num_codebooks": 4,
        "codebook_vocab_size": 33,
        "audio_bos_token_id": 32,
        "_own": ("audio_pad_token_id",),
        "audio_pad_token_id": len(tokenizer) + 4 * 33,
        "num_key_value_heads": 4,
        "sliding_window": 12,
        "codec_config": {
            "num_quantizers": 4,
            "codebook_size": 32,
            "codebook_dim": 8,
            "vector_quantization_hidden_dimension": 8,
            "num_filters": 4,
            "num_semantic_quantizers": 1,
            "upsample_groups": 32,
            "sliding_window": 9,
        },
    }
    features = T.KyutaiSpeechToTextFeatureExtractor(audio_delay_seconds=0.2, audio_silence_prefix_seconds=0.1)
    save(folder, KYUTAI, T.KyutaiSpeechToTextProcessor(features, tokenizer), sizes, scale=0.25)
    model = T.KyutaiSpeechToTextForConditionalGeneration.from_pretrained(folder)
    model.generation_config.pad_token_id, model.generation_config.eos_token_id = 0, None
    for name, each in model.codec_model.named_buffers():
        if name.endswith("embed_sum"):  # else all codes are equal
            each.normal_()
    model.save_pretrained(folder)


@maker(VOXTRAL)
def voxtral(folder: Path) -> None:
    heard = {"sliding_window": 11, "num_mel_bins": 16, "head_dim": 8}
    sizes: dict[str, Any] = {"tie_word_embeddings": True, "audio_config": heard, "text_config": {"sliding_window": 9}}
    config = shrunk(T.VoxtralRealtimeConfig(), {"vocab_size": SPECIAL + 54, **sizes})
    model = T.VoxtralRealtimeForConditionalGeneration(config)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.normal_(0, 0.6)
    model.generation_config.bos_token_id, model.generation_config.eos_token_id = 1, 2
    model.generation_config.pad_token_id = 11
    model.save_pretrained(folder)
    T.VoxtralRealtimeFeatureExtractor(feature_size=16).save_pretrained(folder)
    (folder / "tekken.json").write_text(json.dumps(tekken(16, 2)))


def tekken(bins: int, before: int) -> dict[str, Any]:
    """Return the contents of ``tekken.json`` of letters, with or without a space before them, and the halves of another one."""
    named = {0: "<unk>", 1: "<s>", 2: "</s>", 11: "<pad>", 32: "[STREAMING_PAD]", 33: "[STREAMING_WORD]"}
    special = [{"rank": each, "token_str": named.get(each, f"<SPECIAL_{each}>")} for each in range(SPECIAL)]
    words = [bytes([*space, each]) for each in string.ascii_lowercase.encode() for space in ([], [32])]
    return {
        "config": {"default_vocab_size": SPECIAL + 54, "default_num_special_tokens": SPECIAL, "version": "v13"},
        "vocab": [
            {"rank": rank, "token_bytes": base64.b64encode(each).decode()}
            for rank, each in enumerate([*words, b" \xc3", b"\xa9"])
        ],
        "special_tokens": special,
        "audio": {
            "sampling_rate": 16_000,
            "frame_rate": 12.5,
            "audio_encoding_config": {"num_mel_bins": bins, "hop_length": 160, "window_size": 400},
            "transcription_format": "streaming",
            "transcription_delay_ms": 480,
            "streaming_n_left_pad_tokens": before,
        },
    }
