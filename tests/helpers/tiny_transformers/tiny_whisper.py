"""A tiny Whisper, whose window is 2 s, and recordings."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import pre_tokenizers
from transformers import (
    GenerationConfig,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
    WhisperProcessor,
    WhisperTokenizer,
)

from omni_core.api import OmniRequest
from tiny_transformers import maker

WINDOW = 2.0
LANGUAGES = ("en", "de", "ja")
TASKS = ("<|translate|>", "<|transcribe|>", "<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>")


def tone(seconds: float, number: int = 0) -> np.ndarray:
    """Return a recording at 16 kHz, float32 ``[n]``: a wavering tone and some noise."""
    random, at = np.random.default_rng(number), np.arange(round(seconds * 16_000)) / 16_000
    wave = 0.3 * np.sin(2 * np.pi * (200 + 100 * number) * at * (1 + 0.2 * np.sin(3 * at)))
    made: np.ndarray = (wave + 0.05 * random.standard_normal(len(at))).astype(np.float32)
    return made


def hear(samples: np.ndarray, **params: Any) -> OmniRequest:
    """Return a request that has a recording at 16 kHz written down."""
    part = {"type": "audio", "samples": samples, "sample_rate": 16_000}
    return OmniRequest({"messages": [{"role": "user", "content": [part]}]}, {"listen": params})


def whisper(folder: Path, multilingual: bool = True, tokens: int = 12, **generation: Any) -> None:
    """Write a Whisper.

    Args:
        tokens: about so many of them has a text, whatever is heard.
        generation: of its generation config; ``None``: not in it.
    """
    vocabulary = {character: number for number, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = WhisperTokenizer({**vocabulary, "<|endoftext|>": 256}, [], language=None)
    stamps = [f"<|{number * 0.02:.2f}|>" for number in range(round(WINDOW / 0.02) + 1)]
    languages = [f"<|{each}|>" for each in LANGUAGES] if multilingual else ["<|en|>"]
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|startoftranscript|>", *languages, *TASKS]})
    tokenizer.add_tokens(stamps, special_tokens=False)
    ids = {each: tokenizer.convert_tokens_to_ids(each) for each in (*languages, *TASKS, *stamps[:1])}
    config = WhisperConfig(
        vocab_size=len(tokenizer),
        num_mel_bins=16,
        d_model=32,
        encoder_layers=1,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        max_source_positions=round(WINDOW * 50),
        max_target_positions=80,
        pad_token_id=256,
        bos_token_id=256,
        eos_token_id=256,
        decoder_start_token_id=257,
        init_std=0.3,
        median_filter_width=3,
    )
    torch.manual_seed(0)
    model = WhisperForConditionalGeneration(config)
    with (
        torch.no_grad()
    ):  # times are told only where they are asked for; from a position on, the end is likelier than anything else
        model.model.decoder.embed_tokens.weight[ids[stamps[0]] :] *= 0.5
        way = torch.nn.functional.normalize(torch.randn(32), dim=0)
        model.model.decoder.embed_tokens.weight[256] = 2 * way
        model.model.decoder.embed_positions.weight[tokens:] += 40 * way
    readable = {vocabulary[each] for each in string.ascii_lowercase + "Ġ"}
    given = {
        **{f"{each}_token_id": 256 for each in ("pad", "bos", "eos")},
        "decoder_start_token_id": 257,
        "max_length": 80,
        "suppress_tokens": [each for each in range(ids["<|notimestamps|>"]) if each not in (*readable, 256)],
        "begin_suppress_tokens": [vocabulary["Ġ"], 256],
        "is_multilingual": multilingual,
        "no_timestamps_token_id": ids["<|notimestamps|>"],
        "prev_sot_token_id": ids["<|startofprev|>"],
        "alignment_heads": [[0, 0], [1, 1]],
        "max_initial_timestamp_index": 20,
        "return_timestamps": False,
        "logprob_threshold": -1.5,
    }
    if multilingual:
        given["lang_to_id"] = {each: ids[each] for each in languages}
        given["task_to_id"] = {each: ids[f"<|{each}|>"] for each in ("transcribe", "translate")}
    told = {name: value for name, value in {**given, **generation}.items() if value is not None}
    model.generation_config = GenerationConfig(**told)
    model.save_pretrained(folder)
    features = WhisperFeatureExtractor(feature_size=16, chunk_length=round(WINDOW))
    WhisperProcessor(features, tokenizer).save_pretrained(folder)


@maker("WhisperForConditionalGeneration")
def _whisper(folder: Path) -> None:
    whisper(folder)
