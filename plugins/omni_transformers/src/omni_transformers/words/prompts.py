"""The inputs of a model's forward, from the messages of a request, by its processor and chat template."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from omni_core.api import InvalidRequestError, OmniRequest, text_of

ROLES = ("system", "developer", "user", "assistant", "tool")


class Prompts:
    """Makes the inputs of requests.

    Args:
        processor: of the checkpoint, or its tokenizer.
        kinds: of parts that the model takes.
    """

    def __init__(self, processor: Any, kinds: Sequence[str]) -> None:
        self._processor, self._kinds = processor, kinds

    def inputs(self, request: OmniRequest) -> Any:
        """Return the inputs of a forward, tensors with a batch of one.

        Raises:
            InvalidRequestError: the messages are malformed, or the chat template refuses them.
        """
        messages = [{"role": each["role"], "content": text_of(each)} for each in _messages(request.inputs)]
        if getattr(self._processor, "chat_template", None) is None:
            text = "\n".join(each["content"] for each in messages)
            return self._processor(text, return_tensors="pt")
        try:
            return self._processor.apply_chat_template(
                messages, tokenize=True, add_generation_prompt=True, return_dict=True, return_tensors="pt"
            )
        except Exception as error:
            raise InvalidRequestError(f"messages: the checkpoint's chat template refuses them: {error}") from None


def _messages(inputs: Any) -> list[dict[str, Any]]:
    messages = inputs.get("messages") if isinstance(inputs, dict) else None
    if not isinstance(messages, list) or not messages:
        raise InvalidRequestError("inputs.messages: must be a non-empty list of {'role': ..., 'content': ...}")
    for index, each in enumerate(messages):
        if not isinstance(each, dict) or "content" not in each or each.get("role") not in ROLES:
            raise InvalidRequestError(
                f"messages[{index}]: must be {{'role': ..., 'content': ...}} with a role of {', '.join(ROLES)}"
            )
    return messages
