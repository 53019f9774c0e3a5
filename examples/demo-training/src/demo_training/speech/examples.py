"""Training data of the thinker: conversations, prepared by the pipeline's own preprocessing, each with its reply."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from attrs import frozen

from demo_training.speech import pictures, questions, sounds
from omni_core.api import OmniRequest, StagePayload
from omni_demo.speech.phrases import (
    COLOURS,
    KEYWORDS,
    PICTURE_PROMPTS,
    SOUND_PROMPTS,
    TOPICS,
    UNKNOWN,
    picture_reply,
    sound_reply,
)
from omni_media.api import Limits
from omni_qwen3.preprocessing import Preprocessor

Part = dict[str, Any]


@frozen(eq=False)
class Example:
    """A preprocessed example: the prompt's ids and positions, the encoders' inputs, and the ids of the reply with its
    end.
    """

    ids: torch.Tensor  # [P]
    positions: torch.Tensor  # [3, P]
    reply: torch.Tensor  # [R]
    pixels: torch.Tensor | None  # [patches, values]
    grid: torch.Tensor | None  # [pictures, 3]
    clips: list[torch.Tensor]  # [128, frames] each


class Examples:
    """Makes examples. ``folder`` holds the checkpoint's config, tokenizer and processor files."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoTokenizer

        self._preprocess = Preprocessor(str(folder), Limits(), video_fps=2.0, max_context=None)
        self._tokenizer = AutoTokenizer.from_pretrained(folder)

    def written(self, random: np.random.Generator) -> Example:
        """Return a question in text: three in five are documented."""
        text, reply = self._question(random, 0.6)
        return self._example(self._history(random), [_text(text)], reply)

    def seen(self, random: np.random.Generator) -> Example:
        """Return a picture, most often with a question about it."""
        return self._beside(*self._picture(random), random)

    def heard(self, random: np.random.Generator) -> Example:
        """Return a sound, most often with a question about it."""
        return self._beside(*self._sound(random), random)

    def _picture(self, random: np.random.Generator) -> tuple[Part, str, tuple[str, ...]]:
        """Return a picture, the reply to it, and the questions that go with it."""
        colour = str(random.choice(COLOURS)) if random.random() < 0.65 else None
        part = {"type": "image", "image": pictures.draw_picture(colour, random)}
        return part, UNKNOWN if colour is None else picture_reply(colour), PICTURE_PROMPTS

    def _sound(self, random: np.random.Generator) -> tuple[Part, str, tuple[str, ...]]:
        """Return a sound, the reply to it, and the questions that go with it."""
        word = str(random.choice(KEYWORDS)) if random.random() < 0.6 else None
        wave = sounds.something_else(random) if word is None else sounds.say(word, random)
        part = {"type": "audio", "samples": wave, "sample_rate": sounds.RATE}
        return part, UNKNOWN if word is None else sound_reply(word), SOUND_PROMPTS

    def _beside(self, part: Part, reply: str, prompts: tuple[str, ...], random: np.random.Generator) -> Example:
        kind, parts = random.random(), [part]
        if kind < 0.1:
            text, reply = self._question(random, 0.7)
            while questions.simple(text) in map(questions.simple, prompts):
                text, reply = self._question(random, 0.7)
            parts.append(_text(text))
        elif kind < 0.8:
            parts.append(_text(questions.spelt(str(random.choice(prompts)), random)))
            if random.random() < 0.3:
                parts.reverse()
        return self._example(self._history(random), parts, reply)

    def _question(self, random: np.random.Generator, known: float) -> tuple[str, str]:
        if random.random() >= known:
            return questions.something_else(random), UNKNOWN
        topic = TOPICS[int(random.integers(len(TOPICS)))]
        return questions.spelt(str(random.choice(topic.prompts)), random), topic.reply

    def _history(self, random: np.random.Generator) -> list[dict[str, Any]]:
        """Return earlier turns of the conversation, mostly none: questions, pictures and sounds. They do not change the reply."""
        kind = random.random()
        if kind < 0.65:
            return []
        if kind < 0.7:
            return [{"role": "system", "content": "You are a helpful voice."}]
        turns: list[dict[str, Any]] = []
        for _ in range(int(random.integers(1, 4))):
            parts, reply = self._turn(random)
            turns += [{"role": "user", "content": parts}, {"role": "assistant", "content": reply}]
        return turns

    def _turn(self, random: np.random.Generator) -> tuple[list[Part], str]:
        """Return an earlier turn: half of them text, the others a picture or a sound, with or without a question."""
        kind = random.random()
        if kind < 0.5:
            text, reply = self._question(random, 0.7)
            return [_text(text)], reply
        draw = self._picture if kind < 0.85 else self._sound
        part, reply, prompts = draw(random)
        question = [] if random.random() < 0.4 else [_text(str(random.choice(prompts)))]
        return [part, *question], reply

    def _example(self, history: list[dict[str, Any]], parts: list[Part], reply: str) -> Example:
        messages = [*history, {"role": "user", "content": parts}]
        request = OmniRequest({"messages": messages}, modalities=["text"])
        data = self._preprocess(StagePayload("", request, None))
        image, audio = data.get("image"), data.get("audio")
        ids = self._tokenizer(reply + "<|im_end|>", add_special_tokens=False)["input_ids"]
        return Example(
            ids=data["input_ids"],
            positions=data["positions"],
            reply=torch.tensor(ids),
            pixels=None if image is None else image["pixel_values"],
            grid=None if image is None else image["image_grid_thw"],
            clips=[] if audio is None else _clips(audio),
        )


def _clips(audio: dict[str, Any]) -> list[torch.Tensor]:
    """Return the features ``[128, frames]`` of each sound without padding."""
    lengths = audio["feature_lengths"].tolist()
    return [mel[:, :length] for mel, length in zip(audio["input_features"], lengths, strict=True)]


def _text(text: str) -> Part:
    return {"type": "text", "text": text}
