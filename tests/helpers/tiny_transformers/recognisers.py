"""Models that write recordings down. Whisper's window is 2 s."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

import torch
from tokenizers import pre_tokenizers
from transformers import GenerationConfig, WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration, WhisperProcessor, WhisperTokenizer

from tiny_transformers import maker

WINDOW = 2.0
LANGUAGES = ("en", "de", "ja")
TASKS = ("<|translate|>", "<|transcribe|>", "<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>")


def whisper(folder: Path, multilingual: bool = True, tokens: int = 12, **generation: Any) -> None:
    """Write a Whisper that ends a text after about so many ``tokens``, whatever it hears. ``generation``: of its config; ``None`` removes."""
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
    model = WhisperForConditionalGeneration(config)
    with torch.no_grad():  # from a position on, the end is likelier than anything else
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
