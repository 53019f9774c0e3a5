"""The tokenizer of a tiny checkpoint: a small byte-level BPE with the released markers and semantic tokens."""

from __future__ import annotations

import json
from pathlib import Path

from omni_fish_s2.prompt import IM_END, IM_START, VOICE

MARKERS = [
    "<|endoftext|>",
    IM_START,
    IM_END,
    "<|pad|>",
    "<|phoneme_start|>",
    "<|phoneme_end|>",
    "<|text|>",
    VOICE,
    "<|interleave|>",
    "<|audio_start|>",
    "<|audio_end|>",
    "<|audio_pad|>",
]

_LINES = [
    "system\nconvert the provided text to speech reference to the following:\n\nText:\n",
    "user\nTell me a story about a red fox, a blue house and the sound of the sea.",
    "assistant\n<|speaker:0|>Once upon a time there was a voice.<|speaker:1|>And another one.",
]


def write_tokenizer(folder: Path, merges: int, semantic_tokens: int) -> dict[str, int]:
    """Write ``tokenizer.json`` and its config. Returns the ids needed; the semantic tokens are the last ones."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=256 + merges, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(_LINES * 3, trainer)
    names = [*MARKERS, *(f"<|semantic:{code}|>" for code in range(semantic_tokens))]
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": IM_END,
        "pad_token": "<|pad|>",
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    ids: dict[str, int] = {name: tokenizer.token_to_id(name) for name in MARKERS}  # type: ignore[misc]
    ids["vocabulary"] = tokenizer.get_vocab_size()
    ids["first semantic"] = ids["vocabulary"] - semantic_tokens
    return ids
