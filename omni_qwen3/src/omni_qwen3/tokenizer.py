"""Reads a checkpoint's tokenizer and chat template, and checks that they belong to the checkpoint's config.

``transformers`` is imported only for checkpoints in an older layout: it takes half a second, and these files need none of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from attrs import frozen
from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers

from omni_core.errors import ConfigError, InvalidRequestError
from omni_qwen3.config import QwenConfig
from omni_torch.checkpoints import load_checked, read_json, read_tokenizer

if TYPE_CHECKING:
    from omni_qwen3.chat_template import ChatTemplate

WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""The pattern by which Qwen's tokenizers divide text before the merges: digits one by one, words with the space before them."""

CLASSES = ("Qwen2Tokenizer", "Qwen2TokenizerFast")
"""Values of ``tokenizer_class`` for which text is divided so, whatever ``tokenizer.json`` says."""


class ChatTokenizer(Protocol):
    """The methods of a tokenizer that preprocessing calls."""

    @property
    def special_tokens(self) -> Sequence[str]:
        """The tokens that structure a prompt, which a user's text must not contain."""

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


def load_tokenizer(model_path: str, config: QwenConfig) -> Tokenizer:
    """Read the tokenizer alone, to decode.

    Raises:
        ConfigError: it is missing, unreadable, or another checkpoint's.
    """
    if (Path(model_path) / "tokenizer.json").is_file():
        made: Tokenizer = read_tokenizer(model_path, _markers(config))
        return made
    older: Tokenizer = _OlderTokenizer.load(model_path, config).inner.backend_tokenizer
    return older


def load_chat_tokenizer(model_path: str, config: QwenConfig) -> ChatTokenizer:
    """Read the tokenizer with the chat template.

    Raises:
        ConfigError: it is missing, unreadable, another checkpoint's, or has no chat template.
    """
    from omni_qwen3.chat_template import ChatTemplate, read_template  # not for stages that only decode

    template, path = read_template(model_path), Path(model_path) / "tokenizer_config.json"
    settings = read_json(path) if path.is_file() else {}
    is_known = settings.get("tokenizer_class") in CLASSES and not settings.get("add_prefix_space")
    if template is None or not is_known or not (Path(model_path) / "tokenizer.json").is_file():
        return _OlderTokenizer.load(model_path, config)
    tokenizer = read_tokenizer(model_path, _markers(config))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.normalizer = normalizers.NFC()
    words = pre_tokenizers.Split(Regex(WORDS), behavior="isolated")
    bytewise = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, bytewise])
    named = {name: each for name, each in settings.items() if name.endswith("_token") and isinstance(each, str)}
    added = tokenizer.get_added_tokens_decoder().values()
    special = dict.fromkeys([*named.values(), *(each.content for each in added if each.special)])
    return _Tokenizer(tokenizer, ChatTemplate(template, named, model_path), list(special))


def _known(token: str | None, number: int) -> str:
    if token is None:
        raise ConfigError(f"the tokenizer has no token of the id {number}, which config.json names")
    return token


def _markers(config: QwenConfig) -> dict[str, int]:
    return {"<|im_start|>": config.im_start, "<|im_end|>": config.im_end}


@frozen
class _Tokenizer:
    """A tokenizer of the ``tokenizers`` library."""

    inner: Tokenizer
    template: ChatTemplate
    special_tokens: Sequence[str]

    def token(self, number: int) -> str:
        return _known(self.inner.id_to_token(number), number)

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> str:
        return self.template.render(messages, tools)

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self.inner.encode(text, add_special_tokens=False).ids
        return ids


@frozen
class _OlderTokenizer:
    """A tokenizer of transformers, which reads older layouts."""

    inner: Any

    @classmethod
    def load(cls, model_path: str, config: QwenConfig) -> _OlderTokenizer:
        from transformers import AutoTokenizer

        tokenizer = load_checked(f"{model_path}: the tokenizer", lambda: AutoTokenizer.from_pretrained(model_path))
        for name, expected in _markers(config).items():
            found = tokenizer.convert_tokens_to_ids(name)
            if found != expected:
                raise ConfigError(f"{model_path}: the tokenizer's id of {name} is {found}, config.json says {expected}")
        if tokenizer.chat_template is None:
            raise ConfigError(f"{model_path} has no chat template (chat_template.jinja); download the checkpoint again")
        return cls(tokenizer)

    @property
    def special_tokens(self) -> Sequence[str]:
        tokens: list[str] = self.inner.all_special_tokens
        return tokens

    def token(self, number: int) -> str:
        return _known(self.inner.convert_ids_to_tokens(number), number)

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> str:
        render = partial(self.inner.apply_chat_template, tokenize=False, add_generation_prompt=True)
        try:
            rendered: str = render(messages, tools=list(tools) or None)
        except Exception as error:  # templates raise what they like
            raise InvalidRequestError(f"messages: the checkpoint's chat template refuses them: {error}") from error
        return rendered

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self.inner(text, add_special_tokens=False)["input_ids"]
        return ids
