"""Read and check the requests of ``response.create`` and ``conversation.item.create``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attrs import frozen

from omni_serve.errors import invalid
from omni_serve.ignored import ignore
from omni_serve.realtime.config import Offer, SessionConfig, updated
from omni_serve.realtime.conversation import Conversation
from omni_serve.realtime.items import Item, messages_of, read_item, too_large

_CHANGES = ("output_modalities", "instructions", "audio", "tools", "tool_choice", "max_output_tokens")
_OWN = ("conversation", "input", "metadata")


@frozen
class AskedResponse:
    """A response that a client asks for.

    Attributes:
        config: the session's, with the changes of this response.
        messages: what the pipeline answers.
        outside: it does not become a part of the conversation.
    """

    config: SessionConfig
    messages: list[dict[str, Any]]
    outside: bool
    metadata: Mapping[str, Any] | None


def read_response(
    given: Mapping[str, Any],
    config: SessionConfig,
    offer: Offer,
    conversation: Conversation,
    new_id: Callable[[str], str],
) -> AskedResponse:
    """Return the response that the fields of ``response.create`` ask for.

    Raises:
        ApiError: 400 or 404, a field is not honoured, or there is nothing to respond to.
    """
    changes = {name: value for name, value in given.items() if name not in _OWN and value is not None}
    for name in [each for each in changes if each in SessionConfig.model_fields and each not in _CHANGES]:
        ignore(f"response.{name}")  # it belongs to the session
        del changes[name]
    wire = config.audio.input.format.wire
    config = updated(config, changes, offer, "response") if changes else config
    outside = given.get("conversation") or "auto"
    if outside not in ("auto", "none"):
        raise invalid("response.conversation: must be 'auto' or 'none'", "response.conversation", "invalid_value")
    metadata = given.get("metadata")
    if metadata is not None and not isinstance(metadata, Mapping):
        raise invalid("response.metadata: must be an object", "response.metadata", "invalid_type")

    def read(each: Any, where: str) -> Item:
        if isinstance(each, Mapping) and each.get("type") == "item_reference":
            return conversation.find(each.get("id"), f"{where}.id")
        item = read_item(each, new_id("item"), wire, conversation.most_bytes, where)
        check_item(item, offer, conversation.most_bytes, where)
        return item

    items = given.get("input")
    if items is None:
        items = conversation.items
    elif isinstance(items, list):
        items = [read(each, f"response.input[{index}]") for index, each in enumerate(items)]
    else:
        raise invalid("response.input: must be a list of items", "response.input", "invalid_type")
    messages = messages_of(items, config.instructions, offer)
    _end_with_a_question(messages, config.instructions)
    return AskedResponse(config, messages, outside == "none", metadata)


def _end_with_a_question(messages: list[dict[str, Any]], instructions: str) -> None:
    """End the messages in one that a model answers: models answer users and tools.

    Clients also ask for what no user has asked, such as a greeting: then the instructions, or the system's last message, stand where the
    user's would. Without either, the last question is answered again.

    Raises:
        ApiError: 400, there is none.
    """
    said: str | list[dict[str, Any]] = instructions
    if messages and messages[-1]["role"] == "system":
        said = messages[-1]["content"]
    elif not said:
        while messages and messages[-1]["role"] == "assistant":
            messages.pop()
    if messages and messages[-1]["role"] in ("user", "tool"):
        return
    if not said:
        raise invalid(
            "There is nothing to respond to: add a message of the user, or give instructions.",
            None,
            "conversation_empty",
        )
    messages.append({"role": "user", "content": said if isinstance(said, list) else [{"type": "text", "text": said}]})


def check_item(item: Item, offer: Offer, most_bytes: int, where: str = "item") -> None:
    """Check that the pipeline can take an item, and that it is not too large.

    Raises:
        ApiError: 400 or 413.
    """
    for index, part in enumerate(item.content):
        medium = {"input_audio": "audio", "input_image": "image"}.get(part.type)
        if medium is not None and offer.inputs and medium not in offer.inputs:
            path = f"{where}.content[{index}]"
            raise invalid(f"{path}: this pipeline takes no {medium}", path, "unsupported_value")
    if item.type != "message" and offer.tools is None:
        raise invalid(f"{where}.type: this pipeline calls no tools", f"{where}.type", "unsupported_value")
    if item.size > most_bytes:
        raise too_large(where, most_bytes)
