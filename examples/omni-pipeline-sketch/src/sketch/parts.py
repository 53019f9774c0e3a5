"""The content of a request, and its parts: everything, and for guidance the same without its text or its image. Imports no torch."""

from __future__ import annotations

from typing import Any

from omni_core.api import InvalidRequestError, OmniRequest, StagePayload
from sketch.interface import IMAGE_GUIDANCE, TEXT_GUIDANCE

LONGEST_TEXT = 512
"""Bytes of a text."""


def content(inputs: Any) -> tuple[str, dict[str, Any] | None]:
    """Return the text and the image part of the last message of the user.

    Raises:
        InvalidRequestError: no text, a text that is too long, or several images; the message says which.
    """
    messages = [each for each in (inputs or {}).get("messages", []) if each.get("role") == "user"]
    if not messages:
        raise InvalidRequestError("messages: no message of the user; its text says what is drawn")
    given = messages[-1].get("content")
    found = [{"type": "text", "text": given}] if isinstance(given, str) else list(given or [])
    text = " ".join(each["text"] for each in found if each.get("type") == "text").strip()
    if not text:
        raise InvalidRequestError("messages: no text; it says what is drawn")
    if len(text.encode()) > LONGEST_TEXT:
        raise InvalidRequestError(f"messages: the text has {len(text.encode())} bytes; {LONGEST_TEXT} are allowed")
    images = [each for each in found if each.get("type") == "image"]
    if len(images) > 1:
        raise InvalidRequestError(f"messages: {len(images)} images; one can be read")
    return text, images[0] if images else None


def check(request: OmniRequest) -> None:
    """Refuse a request whose content cannot be drawn. It is the ``terminal_stages_fn``, which is asked before admission."""
    content(request.inputs)


def parts(payload: StagePayload) -> dict[str, Any]:
    """Return what is read by role; ``no_text`` and ``no_image`` are there where their guidance needs them."""
    text, image = content(payload.request.inputs)
    params = payload.request.params
    # The last token is chosen and not computed, so one more is asked for than is drawn from.
    thinking = {
        "max_new_tokens": params.get("thoughts", 0) + 1,
        "temperature": params.get("temperature", 0.0),
        "seed": params.get("seed"),
    }
    found = {"all": {"text": text, "image": image, "sampling": thinking}}
    if params.get("text_guidance", TEXT_GUIDANCE) > 1:
        found["no_text"] = {"text": "", "image": image, "sampling": {"max_new_tokens": 1}}
    if image is not None and params.get("image_guidance", IMAGE_GUIDANCE) > 1:
        found["no_image"] = {"text": text, "image": None, "sampling": {"max_new_tokens": 1}}
    return found
