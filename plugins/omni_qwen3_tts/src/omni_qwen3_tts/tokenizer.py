"""Reads a checkpoint's tokenizer with the ``tokenizers`` library, and divides a text that is still being written into tokens."""

from __future__ import annotations

import unicodedata
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from omni_core.api import ConfigError, InvalidRequestError
from omni_qwen3_tts.config import TTSConfig
from omni_torch.api import LARGEST_TEXT, checked_file, encoded, load_checked, read_json, read_tokenizer

WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""The pattern by which Qwen's tokenizers divide text before the merges: digits one by one, words with the space before them."""

OPENING = "<|im_start|>assistant\n"
"""Stands before the text to speak, as one token of each of its three parts."""


class TextTokenizer:
    """A checkpoint's tokenizer.

    Raises:
        ConfigError: it is missing, unreadable, or another checkpoint's.
    """

    def __init__(self, model_path: str, config: TTSConfig) -> None:
        ids = {"<|im_start|>": config.im_start, "<|im_end|>": config.im_end}
        self._inner = _read(Path(model_path), ids)
        self._reserved = [each.content for each in self._inner.get_added_tokens_decoder().values()]
        self._reach = max(map(len, self._reserved), default=1) - 1
        self.opening = encoded(self._inner, OPENING)
        if len(self.opening) != 3:
            raise ConfigError(f"{model_path}: the tokenizer makes {len(self.opening)} tokens of {OPENING!r}, not 3")

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text without tokens of the prompt's own structure."""
        return encoded(self._inner, text)

    def checked(self, text: str, where: str, before: str = "") -> str:
        """Return the end of a text that must be looked at with the next part of it.

        Args:
            before: what this returned for the part before.

        Raises:
            InvalidRequestError: the text holds a token of the prompt's own structure.
        """
        seen = before + text
        for each in self._reserved:
            if each in seen:
                raise InvalidRequestError(
                    f"{where}: contains {each!r}, which is reserved for the prompt's own structure"
                )
        return seen[-self._reach :] if self._reach else ""

    def style(self, text: str) -> list[int]:
        """Return the tokens of an instruction, with the user's turn around it. Raises as :meth:`checked`."""
        self.checked(text, "params.talker.instructions")
        return encoded(self._inner, f"<|im_start|>user\n{text}<|im_end|>\n")


def _read(folder: Path, ids: dict[str, int]) -> Tokenizer:
    if (folder / "tokenizer.json").is_file():
        tokenizer = read_tokenizer(str(folder), ids)
    else:
        tokenizer = _older(folder)
        for name, expected in ids.items():
            if (found := tokenizer.token_to_id(name)) != expected:
                raise ConfigError(f"{folder}: the tokenizer's id of {name} is {found}, config.json says {expected}")
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.normalizer = normalizers.NFC()
    words = pre_tokenizers.Split(Regex(WORDS), behavior="isolated")
    bytewise = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, bytewise])
    return tokenizer


def _older(folder: Path) -> Tokenizer:
    """Make a tokenizer of the released layout: ``vocab.json``, ``merges.txt``, and the added tokens of ``tokenizer_config.json``."""
    vocab, merges = (str(checked_file(folder / name, LARGEST_TEXT)) for name in ("vocab.json", "merges.txt"))
    model = load_checked(f"{folder}: the tokenizer", lambda: models.BPE.from_file(vocab, merges))
    tokenizer = Tokenizer(model)
    tokenizer.decoder = decoders.ByteLevel()
    added: dict[str, Any] = read_json(folder / "tokenizer_config.json").get("added_tokens_decoder") or {}
    for number, each in sorted(added.items(), key=lambda item: int(item[0])):
        token = AddedToken(each["content"], special=bool(each.get("special")), normalized=False)
        if tokenizer.token_to_id(each["content"]) is None:
            tokenizer.add_tokens([token]) if not token.special else tokenizer.add_special_tokens([token])
        if (found := tokenizer.token_to_id(each["content"])) != int(number):
            raise ConfigError(f"{folder}: the tokenizer's id of {each['content']} is {found}, its config says {number}")
    return tokenizer


def settled(text: str, known: int = 1) -> int:
    """Return the length of the longest beginning whose tokens no further text changes; 0 if there is none.

    It ends after a letter or a digit, before a mark or a space; or before a space that is no line break. No word of :data:`WORDS` goes
    over such a place, and no character there joins with the one before it.

    Args:
        known: places before this one have been looked at.
    """
    for end in range(len(text) - 1, max(known, 1) - 1, -1):
        before, after = unicodedata.category(text[end - 1]), unicodedata.category(text[end])
        is_mark = after[0] in "PS" and after != "Sk"
        if (before[0] in "LN" and is_mark) or (after == "Zs" and not text[end - 1].isspace()):
            return end
    return 0


class TextCutter:
    """Takes a text in pieces; gives back those of whole tokens. Spaces at either end are not spoken."""

    def __init__(self) -> None:
        self._left, self._begun = "", False

    def feed(self, text: str) -> str:
        """Add text; return the next part of whole tokens, which may be empty."""
        known = len(self._left)
        self._left += text
        if not self._begun:
            self._left = self._left.lstrip()
            self._begun = bool(self._left)
        end = settled(self._left, known)
        part, self._left = self._left[:end], self._left[end:]
        return part

    def finish(self) -> str:
        """Return what is left; no more text follows."""
        rest, self._left = self._left.rstrip(), ""
        return rest
