"""The voice of a request: one of the pipeline's own, or an uploaded recording; and other names for them."""

from __future__ import annotations

from typing import Any

from omni_core.api import VOICE, did_you_mean, shown
from omni_serve.auth import Key
from omni_serve.errors import ApiError, invalid
from omni_serve.ignored import ignore
from omni_serve.parameters import choices_of
from omni_serve.server import Server

DEFAULT = "default"

_OPENAI = frozenset(
    ("alloy", "ash", "ballad", "cedar", "coral", "echo", "fable", "marin", "nova", "onyx", "sage", "shimmer", "verse")
)
"""OpenAI's names, which its clients have built in: the pipeline's default, unless they are names or aliases of a voice here."""


def voice_names(server: Server) -> list[str]:
    """Return the names of the pipeline's own voices, as far as they are known."""
    return server.interface.voices or choices_of(server.interface, VOICE)


def apply_voice(
    server: Server, key: Key, voice: Any, inputs: dict[str, Any], metadata: dict[str, Any], where: str
) -> None:
    """Put the voice that was asked for into a request; an uploaded one is read by :func:`omni_serve.calls.with_recordings`.

    Args:
        key: whose uploaded voices are meant.
        voice: a name, an id, ``{"id": ...}``, or ``None`` for the pipeline's default.
        where: its path in the request, for messages.

    Raises:
        ApiError: 400, there is no such voice.
    """
    if isinstance(voice, dict):
        voice, where = voice.get("id"), f"{where}.id"
    if voice is None or voice == DEFAULT:
        return
    if not isinstance(voice, str):
        raise invalid(f"{where}: must be a name or {{'id': ...}}", where, "invalid_type")
    voice = server.settings.voice_aliases.get(voice, server.settings.voice_aliases.get("*", voice))
    if voice == DEFAULT:
        return
    interface = server.interface
    kept = server.voices.find(voice, key) if server.voices is not None else None
    if kept is not None:
        if "reference" not in interface.inputs:
            raise invalid(f"{where}: this pipeline cannot speak with an uploaded voice", where, "unsupported_value")
        inputs["references"] = [kept]  # read when the request runs
        return
    declares = any(VOICE in each.names for each in interface.metadata)
    known = voice_names(server)
    if declares and (interface.voices_open or not known or voice.casefold() in [each.casefold() for each in known]):
        metadata[VOICE] = voice
        return
    if voice.casefold() in _OPENAI:
        ignore(where)
        return
    uploaded = [each.name for each in server.voices.voices_of(key)] if server.voices is not None else []
    raise ApiError(
        400,
        f"{where}: no voice is called {shown(voice)}{did_you_mean(voice, [DEFAULT, *known, *uploaded])}",
        code="voice_not_found",
        param=where,
    )
