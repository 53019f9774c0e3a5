"""Prompts of models whose processors leave a part of them to their users, by the names of their architectures."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch

from omni_core.api import InvalidRequestError
from omni_transformers.words.messages import Conversation
from omni_transformers.words.prompts import Prompts
from omni_transformers.words.recognisers import TRANSCRIBE

PROMPTS: dict[str, Callable[[Prompts, Conversation], Any]] = {}
"""Makes the inputs of a conversation."""


EXTRA: dict[str, dict[str, Any]] = {
    "VibeVoiceAsrForConditionalGeneration": {"sample": False},  # no noise, which would make each answer another one
}
"""Inputs beside those that a processor makes."""


NEEDS = {
    "Blip2ForConditionalGeneration": "image",
    "Florence2ForConditionalGeneration": "image",
    "InstructBlipForConditionalGeneration": "image",
    "Pix2StructForConditionalGeneration": "image",
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
    """A text is the task, with which the decoder begins: special tokens of the checkpoint, and what they ask for."""
    found = prompts.processor(images=conversation.pictures, return_tensors="pt")
    if text := conversation.text:
        added = tuple(each.content for each in prompts.tokenizer.added_tokens_decoder.values())
        if not text.startswith(added):
            raise InvalidRequestError(
                "messages: this model reads pictures off; a text must be one of its tasks, which begin with a special token"
            )
        found["decoder_input_ids"] = prompts.tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids
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


@prompt(
    "Blip2ForConditionalGeneration",
    "Florence2ForConditionalGeneration",
    "Pix2StructForConditionalGeneration",
    "InstructBlipForConditionalGeneration",
)
def unmarked(prompts: Prompts, conversation: Conversation) -> Any:
    """The processor puts the pictures in front of the text by itself."""
    return prompts.plain(conversation, marked=False)


@prompt("VoxtralForConditionalGeneration")
def in_instructions(prompts: Prompts, conversation: Conversation) -> Any:
    """The form of Mistral's own tokenizer, which the checkpoint's processor has not: turns in ``[INST]``, and a mark for transcripts."""
    tokenizer, listener = prompts.tokenizer, prompts.processor.feature_extractor
    ids, features = [tokenizer.bos_token_id], []

    def add(text: str) -> None:
        ids.extend(tokenizer.encode(text, add_special_tokens=False) if text else [])

    def mark(*names: str) -> None:
        ids.extend(tokenizer.convert_tokens_to_ids(list(names)))

    if spelled := prompts.spelled(conversation):
        raise prompts.refusal(spelled)
    language = None
    for message in conversation.messages:
        opens, closes = _TURNS[message["role"]]
        mark(*opens)
        for part in message["content"]:
            if part["type"] == "audio":
                padded = listener(
                    part["audio"], sampling_rate=listener.sampling_rate, padding=True, truncation=False,
                    pad_to_multiple_of=listener.n_samples, return_tensors="pt",
                ).input_features[0]  # fmt: skip
                windows = padded.reshape(len(padded), -1, listener.nb_max_frames).transpose(0, 1)
                features.append(windows)
                mark("[BEGIN_AUDIO]")
                ids.extend([prompts.processor.audio_token_id] * (len(windows) * listener.nb_max_frames // 8))
            elif (asked := _TRANSCRIBE.fullmatch(part["text"])) and message is conversation.messages[-1] and features:
                language = asked
            else:
                add(part["text"])
        mark(*closes)
    if language is not None:
        add(f"lang:{language['code']}" if language["code"] else "")
        mark("[TRANSCRIBE]")
    found = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=torch.long)}
    return found | ({"input_features": torch.cat(features)} if features else {})


_TRANSCRIBE = re.compile(re.escape(TRANSCRIBE) + r"(?: The language is: (?P<code>[\w-]+)\.)?")

_TURNS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "system": (("[SYSTEM_PROMPT]",), ("[/SYSTEM_PROMPT]",)),
    "developer": (("[SYSTEM_PROMPT]",), ("[/SYSTEM_PROMPT]",)),
    "user": (("[INST]",), ("[/INST]",)),
    "assistant": ((), ("</s>",)),
    "tool": (("[TOOL_RESULTS]",), ("[/TOOL_RESULTS]",)),
}
