"""Prompts of models whose processors leave a part of them to their users, by the names of their architectures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from omni_core.api import InvalidRequestError
from omni_transformers.words.messages import Conversation
from omni_transformers.words.prompts import Prompts

PROMPTS: dict[str, Callable[[Prompts, Conversation], Any]] = {}
"""Makes the inputs of a conversation."""


EXTRA: dict[str, dict[str, Any]] = {
    "VibeVoiceAsrForConditionalGeneration": {"sample": False},  # no noise, which would make each answer another one
}
"""Inputs beside those that a processor makes."""


NEEDS = {
    "Blip2ForConditionalGeneration": "image",
    "GotOcr2ForConditionalGeneration": "image",
    "PaliGemmaForConditionalGeneration": "image",
    "VisionEncoderDecoderModel": "image",
}
"""The kind of part without which a model does nothing."""

ONE_AT_A_TIME = {"RecurrentGemmaForCausalLM"}
"""Models that keep the state of a text in their modules."""


DROPS_PROCESSORS = {"JanusForConditionalGeneration"}
"""Models whose own ``generate()`` drops what chooses the next token, and adds nothing to a text."""


def prompt(*architectures: str) -> Callable[[Callable[[Prompts, Conversation], Any]], Any]:
    """Register the decorated function."""

    def register(write: Callable[[Prompts, Conversation], Any]) -> Any:
        PROMPTS.update(dict.fromkeys(architectures, write))
        return write

    return register


@prompt("VisionEncoderDecoderModel")
def behind_the_picture(prompts: Prompts, conversation: Conversation) -> Any:
    """The text, special tokens and all, is what the decoder begins with: the task."""
    found = prompts.processor(images=conversation.pictures, return_tensors="pt")
    if conversation.text:
        ids = prompts.tokenizer(conversation.text, add_special_tokens=False, return_tensors="pt").input_ids
        found["decoder_input_ids"] = ids
    return found


@prompt("GotOcr2ForConditionalGeneration")
def read_off(prompts: Prompts, conversation: Conversation) -> Any:
    """The processor writes one of the two prompts that the model was trained with."""
    text = conversation.text.strip()
    if not conversation.pictures or text not in ("", "OCR", "OCR with format"):
        raise InvalidRequestError("messages: this model takes pictures, and as a text none, 'OCR' or 'OCR with format'")
    several = len(conversation.pictures) > 1
    return prompts.processor(
        images=[conversation.pictures] if several else conversation.pictures, multi_page=several, format=text.endswith("format"),
        return_tensors="pt",
    )  # fmt: skip


@prompt("Blip2ForConditionalGeneration")
def unmarked(prompts: Prompts, conversation: Conversation) -> Any:
    """The processor puts the pictures in front of the text by itself."""
    return prompts.plain(conversation, marked=False)
