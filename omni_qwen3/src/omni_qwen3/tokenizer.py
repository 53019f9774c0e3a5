"""Reads a checkpoint's tokenizer and chat template, and checks that they belong to the checkpoint's config.

``transformers`` is imported only for checkpoints in an older layout: it takes half a second, and these files need none of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from attrs import frozen
from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers

from omni_core.api import ConfigError
from omni_qwen3.config import QwenConfig
from omni_torch.api import LARGEST_TEXT, checked_file, encoded, load_checked, longest_token, read_json, read_tokenizer

if TYPE_CHECKING:
    from omni_qwen3.chat_template import ChatTemplate

WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""The pattern by which Qwen's tokenizers divide text before the merges: digits one by one, words with the space before them."""

FILES = (
    "tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt", "added_tokens.json", "special_tokens_map.json", "config.json",
)  # fmt: skip
"""The files that transformers reads of a tokenizer."""

CLASSES = ("Qwen2Tokenizer", "Qwen2TokenizerFast")
"""Values of ``tokenizer_class`` for which text is divided so, whatever ``tokenizer.json`` says."""


class ChatTokenizer(Protocol):
    """The methods of a tokenizer that preprocessing calls."""

    @property
    def special_tokens(self) -> Sequence[str]:
        """The tokens that structure a prompt, which a user's text must not contain."""

    @property
    def longest_token(self) -> int:
        """The bytes of the longest token, at least."""

    def token(self, number: int) -> str:
        """Return the text of an id.

        Raises:
            ConfigError: no token has it.
        """

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> str:
        """Return the prompt of a conversation, up to the opening of the assistant's reply.

        Raises:
            InvalidRequestError: the chat template fails on these messages.
        """

    def encode(self, text: str) -> list[int]:
        """Return the ids of a prompt; special tokens in it are recognised, none are added."""


def load_tokenizer(model_path: str, ids: Mapping[str, int]) -> Tokenizer:
    """Read the tokenizer alone, to decode, from ``tokenizer.json`` or from an older layout.

    Args:
        ids: the required id of each named token.

    Raises:
        ConfigError: it is missing, unreadable, or another checkpoint's.
    """
    if (Path(model_path) / "tokenizer.json").is_file():
        made: Tokenizer = read_tokenizer(model_path, ids)
        return made
    older: Tokenizer = load_older(model_path, ids).backend_tokenizer
    return older


def load_older(model_path: str, ids: Mapping[str, int]) -> Any:
    """Read a tokenizer by transformers, which knows older layouts (``vocab.json`` and ``merges.txt``) and other classes.

    Args:
        ids: the required id of each named token.

    Raises:
        ConfigError: it is missing, unreadable, or another checkpoint's.
    """
    from transformers import AutoTokenizer

    folder = Path(model_path)
    if not (folder / "tokenizer.json").is_file():
        for name in ("vocab.json", "merges.txt"):
            if not (folder / name).is_file():
                raise ConfigError(
                    f"{folder} has no tokenizer: tokenizer.json is missing, and so is {name}, with which it could be made; "
                    "download the checkpoint again"
                )
    for name in FILES:
        if (folder / name).exists():
            checked_file(folder / name, LARGEST_TEXT)
    tokenizer = load_checked(
        f"{model_path}: the tokenizer", lambda: AutoTokenizer.from_pretrained(model_path, trust_remote_code=False)
    )
    for name, expected in ids.items():
        found = tokenizer.convert_tokens_to_ids(name)
        if found != expected:
            raise ConfigError(f"{model_path}: the tokenizer's id of {name} is {found}, config.json says {expected}")
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    return tokenizer


def load_older_chat(model_path: str, ids: Mapping[str, int]) -> ChatTokenizer:
    """Read the tokenizer as :func:`load_older` does, with the chat template. Raises ConfigError as :func:`load_chat_tokenizer`."""
    from omni_qwen3.chat_template import ChatTemplate  # not for stages that only decode

    older = load_older(model_path, ids)
    return _OlderTokenizer(older, ChatTemplate(model_path, older.special_tokens_map))


def load_chat_tokenizer(model_path: str, config: QwenConfig) -> ChatTokenizer:
    """Read the tokenizer with the chat template.

    Raises:
        ConfigError: it is missing, unreadable, another checkpoint's, or has no chat template.
    """
    from omni_qwen3.chat_template import ChatTemplate

    path = Path(model_path) / "tokenizer_config.json"
    settings = read_json(path) if path.exists() else {}
    is_known = settings.get("tokenizer_class") in CLASSES and not settings.get("add_prefix_space")
    if not is_known or not (Path(model_path) / "tokenizer.json").is_file():
        return load_older_chat(model_path, markers(config))
    tokenizer = read_tokenizer(model_path, markers(config))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.normalizer = normalizers.NFC()
    words = pre_tokenizers.Split(Regex(WORDS), behavior="isolated")
    bytewise = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, bytewise])
    named = {name: each for name, each in settings.items() if name.endswith("_token") and isinstance(each, str)}
    added = tokenizer.get_added_tokens_decoder().values()
    special = dict.fromkeys([*named.values(), *(each.content for each in added if each.special)])
    return _Tokenizer(tokenizer, ChatTemplate(model_path, named), list(special))


def _known(token: str | None, number: int) -> str:
    if token is None:
        raise ConfigError(f"the tokenizer has no token of the id {number}, which config.json names")
    return token


def markers(config: QwenConfig) -> dict[str, int]:
    """Return the tokens around a turn, whose ids ``config.json`` names."""
    return {"<|im_start|>": config.im_start, "<|im_end|>": config.im_end}


@frozen
class _Tokenizer:
    """A tokenizer of the ``tokenizers`` library."""

    inner: Tokenizer
    template: ChatTemplate
    special_tokens: Sequence[str]

    @property
    def longest_token(self) -> int:
        return longest_token(self.inner)

    def token(self, number: int) -> str:
        return _known(self.inner.id_to_token(number), number)

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> str:
        return self.template.render(messages, tools)

    def encode(self, text: str) -> list[int]:
        return encoded(self.inner, text)


@frozen
class _OlderTokenizer:
    """A tokenizer of transformers, which reads older layouts."""

    inner: Any
    template: ChatTemplate

    @property
    def special_tokens(self) -> Sequence[str]:
        tokens: list[str] = self.inner.all_special_tokens
        return tokens

    @property
    def longest_token(self) -> int:
        return longest_token(self.inner.backend_tokenizer)

    def token(self, number: int) -> str:
        return _known(self.inner.convert_ids_to_tokens(number), number)

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> str:
        return self.template.render(messages, tools)

    def encode(self, text: str) -> list[int]:
        return encoded(self.inner.backend_tokenizer, text)
