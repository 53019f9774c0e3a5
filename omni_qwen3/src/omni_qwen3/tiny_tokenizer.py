"""The tokenizer of a tiny checkpoint: a small byte-level BPE with the released special tokens and chat layout."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

SPECIAL_TOKENS = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<|audio_start|>",
    "<|audio_end|>",
    "<tts_pad>",
    "<tts_text_bos>",
    "<tts_text_eod>",
    "<tts_text_bos_single>",
    "<|audio_pad|>",
]

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif part['type'] == 'audio' %}<|audio_start|><|audio_pad|><|audio_end|>"
    "{% elif part['type'] == 'video' %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


LINES = (
    "You are a friendly voice that answers in words and in speech.",
    "What is in the picture and what do you hear?",
    *["Tell me a story about a red fox, a blue house and the sound of the sea."] * 3,
)
"""The text that a tiny checkpoint's tokenizer is trained on."""


def write_tokenizer(folder: Path, merges: int, lines: Sequence[str] = LINES) -> dict[str, int]:
    """Train and write a byte-level BPE over a few lines, with the special tokens in their released order.

    Returns:
        The ids of the special tokens, of the roles and of the newline, and the size of the ``vocabulary``.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import Qwen2TokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    role_lines = ["system\n", "user\n", "assistant\n"] * 50  # each role becomes one token
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    roles = sum(len(role) - 1 for role in ("system", "user", "assistant"))
    trainer = trainers.BpeTrainer(vocab_size=256 + roles + merges, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([*role_lines, *lines], trainer)
    tokenizer.add_special_tokens(SPECIAL_TOKENS)
    fast = Qwen2TokenizerFast(
        tokenizer_object=tokenizer,
        unk_token=None,
        bos_token=None,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=CHAT_TEMPLATE,
        extra_special_tokens={
            "image_token": "<|image_pad|>",
            "audio_token": "<|audio_pad|>",
            "video_token": "<|video_pad|>",
            "vision_bos_token": "<|vision_start|>",
            "vision_eos_token": "<|vision_end|>",
            "audio_bos_token": "<|audio_start|>",
            "audio_eos_token": "<|audio_end|>",
        },
    )
    fast.add_special_tokens({"additional_special_tokens": SPECIAL_TOKENS})
    fast.save_pretrained(folder)
    ids = {token: fast.convert_tokens_to_ids(token) for token in SPECIAL_TOKENS}
    for role in ("system", "user", "assistant", "\n"):
        (ids[role],) = fast.encode(role, add_special_tokens=False)
    ids["vocabulary"] = len(fast) + 3
    return ids
