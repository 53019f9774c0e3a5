"""Text prompts of Qwen2.5-Omni: the checkpoint's tokenizer, by transformers, and its chat template."""

from __future__ import annotations

from typing import Any

from omni_core.api import ConfigError, InvalidRequestError
from omni_qwen3.chat import Chat
from omni_qwen3.chat_template import ChatTemplate
from omni_qwen3.tokenizer import load_older
from omni_qwen25.interface import SPEECH_PROMPT
from omni_torch.api import encoded, longest_token


class Prompts:
    """Renders and encodes conversations."""

    def __init__(self, model_path: str) -> None:
        self._tokenizer = load_older(model_path, {})
        self._template = ChatTemplate(model_path, self._tokenizer.special_tokens_map)
        self.special_tokens: list[str] = self._tokenizer.all_special_tokens
        self.longest_token = longest_token(self._tokenizer.backend_tokenizer)

    def token(self, number: int) -> str:
        """Return the text of an id. Raises ConfigError if no token has it."""
        token = self._tokenizer.convert_ids_to_tokens(number)
        if token is None:
            raise ConfigError(f"the tokenizer has no token of the id {number}, which config.json names")
        return str(token)

    def read(self, inputs: Any) -> Chat:
        """Check the messages of a request.

        Raises:
            InvalidRequestError: they are malformed, or come with tools.
        """
        chat = Chat(inputs, self.special_tokens)
        if chat.tools:
            raise InvalidRequestError("inputs.tools: Qwen2.5-Omni calls no tools")
        return chat

    def render(self, chat: Chat, *, speaks: bool) -> str:
        """Return the prompt of a conversation, up to the opening of the assistant's reply.

        The released model speaks with one system message, which is put before a conversation that has none and wants speech.

        Raises:
            InvalidRequestError: the chat template refuses the messages.
        """
        messages = chat.messages
        if speaks and messages[0]["role"] != "system":
            messages = [{"role": "system", "content": [{"type": "text", "text": SPEECH_PROMPT}]}, *messages]
        return self._template.render(messages)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a prompt; special tokens in it are recognised, none are added."""
        return encoded(self._tokenizer.backend_tokenizer, text)
