"""The tokenizer of a tiny checkpoint: a small byte-level BPE with the released special tokens and chat layout."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from omni_testing.tiny.writing import LINES, write_qwen_tokenizer

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
    "{% macro written(content) %}{% if content is string %}{{ content }}{% else %}{% for part in content %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif part['type'] == 'audio' %}<|audio_start|><|audio_pad|><|audio_end|>"
    "{% elif part['type'] == 'video' %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}{% endmacro %}"
    "{% set first = 0 %}"
    "{% if tools %}<|im_start|>system\n"
    "{% if messages[0]['role'] == 'system' %}{% set first = 1 %}{{ written(messages[0]['content']) }}\n\n{% endif %}"
    "These functions can be called:\n<tools>\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}</tools>\n"
    'Write a call as <tool_call>\n{"name": NAME, "arguments": OBJECT}\n</tool_call><|im_end|>\n{% endif %}'
    "{% for message in messages[first:] %}"
    "{% if message['role'] == 'tool' %}"  # answers of tools that follow each other are one turn of the user's side
    "{% if loop.first or loop.previtem['role'] != 'tool' %}<|im_start|>user{% endif %}"
    "{{ '\\n' }}<tool_response>\n{{ written(message['content']) }}\n</tool_response>"
    "{% if loop.last or loop.nextitem['role'] != 'tool' %}<|im_end|>\n{% endif %}"
    "{% else %}<|im_start|>{{ message['role'] }}\n{{ written(message['content']) }}"
    "{% for call in message['tool_calls'] or [] %}{% set function = call['function'] or call %}"
    "{% if not loop.first or written(message['content']) %}{{ '\\n' }}{% endif %}"
    '<tool_call>\n{"name": "{{ function[\'name\'] }}", "arguments": '
    "{% if function['arguments'] is string %}{{ function['arguments'] }}{% else %}{{ function['arguments'] | tojson }}{% endif %}"
    "}\n</tool_call>{% endfor %}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Of the released layout: tools in the system's turn, calls in tags in the assistant's, their answers in tags in the user's."""


def write_tokenizer(folder: Path, merges: int, lines: Sequence[str] = LINES) -> dict[str, int]:
    """Train and write a byte-level BPE over a few lines, with the special tokens in their released order.

    Returns:
        The ids of the special tokens, of the roles and of the newline, and the size of the ``vocabulary``.
    """
    media = {
        "image_token": "<|image_pad|>",
        "audio_token": "<|audio_pad|>",
        "video_token": "<|video_pad|>",
        "vision_bos_token": "<|vision_start|>",
        "vision_eos_token": "<|vision_end|>",
        "audio_bos_token": "<|audio_start|>",
        "audio_eos_token": "<|audio_end|>",
    }
    fast = write_qwen_tokenizer(folder, merges, lines, SPECIAL_TOKENS, CHAT_TEMPLATE, media)
    ids = {token: fast.convert_tokens_to_ids(token) for token in SPECIAL_TOKENS}
    for role in ("system", "user", "assistant", "\n"):
        (ids[role],) = fast.encode(role, add_special_tokens=False)
    ids["vocabulary"] = len(fast) + 3
    return ids
