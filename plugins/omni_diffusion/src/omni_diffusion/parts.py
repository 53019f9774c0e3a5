"""The parts of a request: its prompt, and with guidance its negative prompt. Imports no torch."""

from __future__ import annotations

from typing import Any

from omni_core.api import InvalidRequestError, StagePayload


def parts(payload: StagePayload, guidance_scale: float = 4.0, negative_prompt: str = " ") -> dict[str, Any]:
    """Return the texts to encode by role, each with the image to edit if there is one.

    Args:
        guidance_scale, negative_prompt: those of requests that do not say any.

    Raises:
        InvalidRequestError: no text, several images, or another kind of content.
    """
    text, image = _content(payload.request.inputs)
    params = payload.request.params
    found = {"positive": {"text": text, "image": image}}
    if params.get("guidance_scale", guidance_scale) > 1:
        found["negative"] = {"text": params.get("negative_prompt", negative_prompt), "image": image}
    return found


def _content(inputs: Any) -> tuple[str, dict[str, Any] | None]:
    """Return the text and the image part of the last message of the user."""
    messages = [each for each in (inputs or {}).get("messages", []) if each.get("role") == "user"]
    if not messages:
        raise InvalidRequestError("messages: no message of the user; its text is what the image shows")
    content = messages[-1].get("content")
    found = [{"type": "text", "text": content}] if isinstance(content, str) else list(content or [])
    texts = [each["text"] for each in found if each.get("type") == "text"]
    if not texts:
        raise InvalidRequestError("messages: no text; it says what the image shows, or what is changed in a given one")
    if others := {each.get("type") for each in found} - {"text", "image"}:
        raise InvalidRequestError(
            f"messages: {', '.join(sorted(map(str, others)))} cannot be read; text and one image can"
        )
    images = [each for each in found if each.get("type") == "image"]
    if len(images) > 1:
        raise InvalidRequestError(f"messages: {len(images)} images; one can be edited at a time")
    return "".join(texts), images[0] if images else None
