"""Reads ``tekken.json``, the tokenizer of Mistral's checkpoints that have no other: the text of tokens, and the settings of sound."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from attrs import frozen

from omni_core.api import ConfigError
from omni_torch.api import read_json

FILE = "tekken.json"

BUFFER = 10
"""Tokens behind the end of a sound in which its last word is written, beside those of the delay."""


@frozen
class Streaming:
    """The settings of sound that streams, in tokens of the text.

    Attributes:
        samples: of a token.
        before: tokens of silence before the sound.
        delay: tokens after which the text of a sound follows it.
        behind: tokens of silence behind the sound.
    """

    samples: int
    before: int
    delay: int
    behind: int


class Tekken:
    """The tokens of a checkpoint. Special ones have the first ids.

    Attributes:
        all_special_ids: those of special tokens.
        streaming: the settings of its sound.
        prompt: the tokens before the first one that is written.

    Raises:
        ConfigError: the file is missing, or does not say what is needed.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / FILE
        if not path.exists():
            raise ConfigError(f"{folder}: has no {FILE}, which its text and sound need; download the checkpoint again")
        told = read_json(path)
        try:
            self._special = int(told["config"]["default_num_special_tokens"])
            size = int(told["config"]["default_vocab_size"]) - self._special
            self.all_special_ids = range(self._special)
            self._bytes = [base64.b64decode(each["token_bytes"]) for each in told["vocab"][:size]]
            ids = {str(each["token_str"]): int(each["rank"]) for each in told["special_tokens"]}
            self.streaming = _streaming(told["audio"])
            silent = self.streaming.before + self.streaming.delay
            self.prompt = [ids["<s>"], *[ids["[STREAMING_PAD]"]] * silent]
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"{path}: not the tokenizer of sound that streams: {type(error).__name__}: {error}"
            ) from error

    def decode(self, ids: Sequence[int], **options: Any) -> str:
        """Return the text of tokens, without special ones. Characters do not go on behind a special token."""
        groups = groupby(ids, lambda each: each < self._special)
        return "".join(
            b"".join(self._bytes[each - self._special] for each in run).decode("utf-8", "replace")
            for is_special, run in groups
            if not is_special
        )


def _streaming(audio: dict[str, Any]) -> Streaming:
    rate, hop = int(audio["sampling_rate"]), int(audio["audio_encoding_config"]["hop_length"])
    samples = int(rate // audio["frame_rate"])
    length = int(audio["transcription_delay_ms"] / 1000.0 * rate)
    frames = length // hop if length % hop == 0 else math.ceil(length / hop - 1)
    delay = math.ceil(frames / (samples // hop))
    return Streaming(samples, int(audio["streaming_n_left_pad_tokens"]), delay, delay + 1 + BUFFER)
