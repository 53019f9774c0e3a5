"""Text prompts of Qwen2.5-Omni: the checkpoint's tokenizer and chat template, by transformers."""

from __future__ import annotations

from typing import Any

from omni_core.errors import ConfigError, InvalidRequestError
from omni_qwen3.chat import Chat
from omni_qwen3.interface import chat_template
from omni_qwen25.interface import SPEECH_PROMPT
from omni_torch.checkpoints import load_checked


class Prompts:
    """Renders and encodes conversations."""

    def __init__(self, model_path: str) -> None:
        from transformers import AutoTokenizer

        tokenizer = load_checked(f"{model_path}: the tokenizer", lambda: AutoTokenizer.from_pretrained(model_path))
        template = tokenizer.chat_template or chat_template(model_path)
        if template is None:
            raise ConfigError(f"{model_path} has no chat template (chat_template.json); download the checkpoint again")
        tokenizer.chat_template = template
        self._tokenizer = tokenizer
        self.special_tokens: list[str] = tokenizer.all_special_tokens

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
        try:
            return str(self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
        except Exception as error:  # templates raise what they like
            raise InvalidRequestError(f"messages: the checkpoint's chat template refuses them: {error}") from error

    def encode(self, text: str) -> list[int]:
        """Return the ids of a prompt; special tokens in it are recognised, none are added."""
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids
