"""The tokenizer of a tiny checkpoint: a small byte-level BPE with the released special tokens and chat layout."""

from __future__ import annotations

from pathlib import Path

SPECIAL_TOKENS = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|AUDIO|>",
    "<|audio_bos|>",
    "<|audio_eos|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_bos|>",
    "<|vision_eos|>",
    "<|vision_pad|>",
    "<|IMAGE|>",
    "<|VIDEO|>",
    "<tts_pad>",
    "<tts_text_bos>",
    "<tts_text_eod>",
    "<|tts_chelsie|>",
    "<|tts_ethan|>",
]

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if loop.first and message['role'] != 'system' %}<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{% endif %}"
    "<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_bos|><|IMAGE|><|vision_eos|>"
    "{% elif part['type'] == 'audio' %}<|audio_bos|><|AUDIO|><|audio_eos|>"
    "{% elif part['type'] == 'video' %}<|vision_bos|><|VIDEO|><|vision_eos|>"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

LINES = (
    "You are a friendly voice that answers in words and in speech.",
    "What is in the picture and what do you hear?",
    *["Tell me a story about a red fox, a blue house and the sound of the sea."] * 3,
)
"""The text that the tokenizer is trained on."""


def write_tokenizer(folder: Path, merges: int) -> dict[str, int]:
    """Train and write a byte-level BPE over a few lines, with the special tokens.

    Returns:
        The ids of the special tokens and of ``user``, and the size of the ``vocabulary``.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import Qwen2TokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    roles = ["system\n", "user\n", "assistant\n"] * 50  # each becomes one token
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    size = 256 + sum(len(role) - 1 for role in ("system", "user", "assistant")) + merges
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([*roles, *LINES], trainer)
    tokenizer.add_special_tokens(SPECIAL_TOKENS)
    fast = Qwen2TokenizerFast(
        tokenizer_object=tokenizer,
        unk_token=None,
        bos_token=None,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=CHAT_TEMPLATE,
        extra_special_tokens={
            "image_token": "<|IMAGE|>",
            "audio_token": "<|AUDIO|>",
            "video_token": "<|VIDEO|>",
            "vision_bos_token": "<|vision_bos|>",
            "vision_eos_token": "<|vision_eos|>",
            "audio_bos_token": "<|audio_bos|>",
            "audio_eos_token": "<|audio_eos|>",
        },
    )
    fast.add_special_tokens({"additional_special_tokens": SPECIAL_TOKENS})
    fast.save_pretrained(folder)
    ids = {token: fast.convert_tokens_to_ids(token) for token in SPECIAL_TOKENS}
    (ids["user"],) = fast.encode("user", add_special_tokens=False)
    ids["vocabulary"] = len(fast) + 3
    return ids
