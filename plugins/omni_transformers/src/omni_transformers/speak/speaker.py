"""The contract between a model that speaks and its stage: a generator of pieces of sound."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from attrs import evolve, field, frozen

from omni_core.api import ConfigError, InvalidRequestError, RequestTooLargeError, SentenceCutter, Word, did_you_mean
from omni_torch.api import download
from omni_transformers.calls.choice import Loop
from omni_transformers.checkpoints import Source, read
from omni_transformers.loading import generation_config, load_model
from omni_transformers.speak.speaks import PARTS
from omni_transformers.speak.turns import Noise


@frozen
class Loading:
    """The way a speaker is loaded.

    Attributes:
        model_path: the checkpoint's folder.
        device: for the model.
        dtype: of its weights.
        vocoder: folder or hub id of the vocoder or codec. ``None``: the checkpoint's own.
        voices: folder of voices. ``None``: the checkpoint's own.
    """

    model_path: str
    device: str = "cpu"
    dtype: str = "auto"
    vocoder: str | None = None
    voices: str | None = None

    @property
    def source(self) -> Source:
        """The checkpoint's config."""
        return read(self.model_path)

    def model(self) -> Any:
        """Return the model."""
        return load_model(self.model_path, self.dtype, self.device)

    def part(self, architecture: str, name: str = "vocoder", usual: str | None = None) -> Any:
        """Return the model of a second checkpoint: the option ``vocoder``, a folder in the checkpoint's, or what is usual.

        Args:
            architecture: the one that it must have.
            name: of the folder in the checkpoint's.
            usual: hub id of the one that the released checkpoints use.

        Raises:
            ConfigError: there is none.
        """
        name, usual = PARTS.get(self.source.architecture.name, (name, usual))
        path, inside = self.vocoder, self.source.folder / name
        if path is None and (inside / "config.json").exists():
            path = str(inside)
        if path is None and usual is None:
            raise ConfigError(
                f"{self.model_path}: its {name.replace('_', ' ')} is another checkpoint; put it into {inside}, or give its folder or "
                "hub id: --option vocoder=..."
            )
        return load_model(download(path or usual or ""), self.dtype, self.device, part=architecture)


@frozen
class Asked:
    """A request to speak.

    Attributes:
        text: to be spoken; empty while it is still being written.
        voice: a name of the interface's voices. ``None``: it has none.
        given: the parameters of the request that were given.
        reference: a recording of the voice, float32 ``[n]`` at the speaker's rate, and the words that are said in it.
        notices: what the answer lacks; a speaker adds to them.
    """

    text: str
    voice: str | None = None
    given: dict[str, Any] = field(factory=dict)
    reference: tuple[np.ndarray[Any, Any], str | None] | None = None
    notices: list[str] = field(factory=list)

    def named(self, voices: Iterable[str]) -> str:
        """Return which of the voices is asked for; the first, if none is.

        Raises:
            InvalidRequestError: there is no such voice.
        """
        known = {each.casefold(): each for each in reversed([*voices])}
        wanted = self.voice or next(reversed(known.values()), "")
        if wanted.casefold() not in known:
            raise InvalidRequestError(
                f"metadata.speaker: no voice is called {wanted!r}{did_you_mean(wanted, [*voices])}"
            )
        return known[wanted.casefold()]


class Spoken(ABC):
    """A loaded model that makes sound, one way or the other.

    Attributes:
        rate: of its sound, in Hz.
        reference: it speaks with the voice of a recording.
        loop: the model whose calls are computed with those of other requests; ``None``: there is none.
        cuts: of a text that is still being written, it speaks each sentence as soon as it is there; else the whole, at its end.
    """

    rate: int
    reference = False
    loop: Loop | None = None
    cuts = True

    @abstractmethod
    def __init__(self, loading: Loading) -> None:
        """Load the model.

        Raises:
            ConfigError: it cannot be; the message says what to do.
        """


class Speaker(Spoken):
    """A model that speaks piece by piece."""

    @abstractmethod
    def speak(self, asked: Asked) -> Iterator[torch.Tensor | None]:
        """Yield the sound of a request, float ``[n]``, piece by piece; ``None`` lets others have their turn.

        Each step is computed with the request's own random numbers in PyTorch's global generators, without gradients.
        """

    def say(self, sentence: str, asked: Asked) -> Iterator[torch.Tensor | None]:
        """Yield the sound of a sentence of a text that is still being written: by default, as a text of its own with the same seed."""
        return self.speak(evolve(asked, text=sentence))


def sentences(text: str) -> list[str]:
    """Return the sentences of a text; very short ones stay with the next."""
    cutter = SentenceCutter()
    return [*cutter.feed(text), *cutter.finish()]


class BySentence(Speaker):
    """A model that speaks a sentence in one piece. Long texts are spoken sentence by sentence."""

    def speak(self, asked: Asked) -> Iterator[torch.Tensor | None]:
        for sentence in sentences(asked.text):
            yield from self.say(sentence, asked)

    @abstractmethod
    def say(self, sentence: str, asked: Asked) -> Iterator[torch.Tensor | None]:
        """Yield the sound of a sentence."""


@frozen
class Said:
    """The sound of a sentence, float ``[n]``, and its words with their times in it."""

    sound: torch.Tensor
    words: list[Word] = field(factory=list)


class Together(Spoken):
    """A model that speaks sentences of several requests in one batch."""

    @abstractmethod
    def say_all(self, asks: Sequence[tuple[str, Asked]], noises: Sequence[Noise]) -> list[Said]:
        """Return the sound of each sentence, as if it was alone: with the random numbers of its own request."""


CUT = "the speech was cut at max_new_tokens"


def chosen(model: Any, given: dict[str, Any], prompt: int = 0, context: int | None = None) -> Any:
    """Return a model's generation config with the parameters that a request gives: ``temperature``, ``top_k``, ``max_new_tokens``, ...

    Args:
        prompt: length of the prompt, in positions.
        context: positions that the model has; the speech ends there at the latest, and not after 20 tokens, as by transformers' default.

    Raises:
        RequestTooLargeError: the prompt leaves no room for speech.
    """
    config = generation_config(model)
    for name, value in given.items():
        if name in ("top_k", "top_p", "max_new_tokens", "guidance_scale"):
            setattr(config, name, value)
    if config.max_new_tokens:
        config.max_length = None
    if (temperature := given.get("temperature")) is not None:
        config.do_sample, config.temperature = temperature > 0, temperature or None
    if context is not None:
        room = context - prompt
        if room < 1:
            raise RequestTooLargeError(
                f"the text, with that of the voice, has {prompt} of the model's {context} positions; speak it in several requests"
            )
        wanted = config.max_new_tokens or (config.max_length - prompt if config.max_length else room)
        config.max_new_tokens, config.max_length = max(1, min(wanted, room)), None
    return config
