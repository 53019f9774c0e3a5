"""Builds the prompt of a request: markers, text and voices in the order that the model was trained on."""

from __future__ import annotations

import re

import torch
from attrs import frozen
from tokenizers import Tokenizer

from omni_fish_s2.config import FishConfig
from omni_fish_s2.payloads import SpeechInputs
from omni_fish_s2.text import SPEAKER_TAG
from omni_torch.api import read_tokenizer

IM_START, IM_END, VOICE = "<|im_start|>", "<|im_end|>", "<|voice|>"

INSTRUCTION = "convert the provided text to speech"
WITH_REFERENCE = f"{INSTRUCTION} reference to the following:\n\nText:\n"
SPEECH = "\n\nSpeech:\n"


@frozen(eq=False)
class Voice:
    """A reference voice: its transcript, and its frames ``[n, codebooks]`` int64."""

    text: str
    codes: torch.Tensor


class PromptBuilder:
    """Converts text and voices to token ids. Each part of a prompt is tokenised on its own.

    Attributes:
        reserved: matches the markers that a user's text must not contain.

    Raises:
        ConfigError: the checkpoint has no ``tokenizer.json``, or its markers are not those of the config.
    """

    def __init__(self, model_path: str, config: FishConfig) -> None:
        markers_of = {IM_END: config.im_end, "<|semantic:0|>": config.semantic_begin}
        self._tokenizer: Tokenizer = read_tokenizer(model_path, markers_of)
        self._config = config
        added = self._tokenizer.get_added_tokens_decoder().values()
        markers = [token.content for token in added if token.special or token.content.startswith("<|")]
        self.reserved = re.compile("|".join(re.escape(each) for each in markers if not SPEAKER_TAG.fullmatch(each)))

    def build(self, turns: list[str], voices: list[Voice]) -> SpeechInputs:
        """Return the prompt of the first turn, and the ids between the speech of each turn and the next one."""
        ids: list[int] = []
        inputs = SpeechInputs()
        if voices:
            ids += self._ids(f"{IM_START}system\n", WITH_REFERENCE, _tagged(voices), SPEECH)
            inputs["codes"] = torch.cat([voice.codes for voice in voices])
            inputs["codes_start"] = len(ids)
            ids += (inputs["codes"][:, 0] + self._config.semantic_begin).tolist()
            ids += self._ids(f"{IM_END}\n")
        else:
            ids += self._ids(f"{IM_START}system\n", INSTRUCTION, f"{IM_END}\n")
        first, *later = turns
        inputs["token_ids"] = torch.tensor(ids + self._turn(first))
        inputs["turns"] = [self.following(text) for text in later]
        return inputs

    def following(self, text: str) -> torch.Tensor:
        """Return the int64 ids that follow the speech of a turn, so that ``text`` is spoken next."""
        return torch.tensor(self._ids(f"{IM_END}\n") + self._turn(text))

    def _turn(self, text: str) -> list[int]:
        """Return the user's turn, and the opening of the speech that answers it."""
        return self._ids(f"{IM_START}user\n", text, f"{IM_END}\n", f"{IM_START}assistant\n{VOICE}")

    def _ids(self, *parts: str) -> list[int]:
        return [token for part in parts for token in self._tokenizer.encode(part, add_special_tokens=False).ids]


def _tagged(voices: list[Voice]) -> str:
    """Return the transcripts of the voices, each after its speaker tag."""
    return "\n".join(
        voice.text if SPEAKER_TAG.search(voice.text) else f"<|speaker:{index}|>{voice.text}"
        for index, voice in enumerate(voices)
    )
