"""The tokenizer of a tiny checkpoint: a small byte-level BPE with the released special tokens and chat layout."""

from __future__ import annotations

from pathlib import Path

from omni_testing.tiny.writing import LINES, write_qwen_tokenizer

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


def write_tokenizer(folder: Path, merges: int) -> dict[str, int]:
    """Train and write a byte-level BPE over a few lines, with the special tokens.

    Returns:
        The ids of the special tokens and of ``user``, and the size of the ``vocabulary``.
    """
    media = {
        "image_token": "<|IMAGE|>",
        "audio_token": "<|AUDIO|>",
        "video_token": "<|VIDEO|>",
        "vision_bos_token": "<|vision_bos|>",
        "vision_eos_token": "<|vision_eos|>",
        "audio_bos_token": "<|audio_bos|>",
        "audio_eos_token": "<|audio_eos|>",
    }
    fast = write_qwen_tokenizer(folder, merges, LINES, SPECIAL_TOKENS, CHAT_TEMPLATE, media)
    ids = {token: fast.convert_tokens_to_ids(token) for token in SPECIAL_TOKENS}
    (ids["user"],) = fast.encode("user", add_special_tokens=False)
    ids["vocabulary"] = len(fast) + 3
    return ids
