"""The beta API's words: of transcription sessions, which its clients still use, and of sessions, whose fields are refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FIELDS = {
    "modalities": "output_modalities",
    "voice": "audio.output.voice",
    "speed": "audio.output.speed",
    "input_audio_format": "audio.input.format",
    "output_audio_format": "audio.output.format",
    "input_audio_transcription": "audio.input.transcription",
    "input_audio_noise_reduction": "audio.input.noise_reduction",
    "turn_detection": "audio.input.turn_detection",
    "max_response_output_tokens": "max_output_tokens",
}
"""Fields of the beta API's session, and their names now."""

_INPUT = "audio.input."

_FORMATS = {"pcm16": "audio/pcm", "g711_ulaw": "audio/pcmu", "g711_alaw": "audio/pcma"}


def read_transcription(session: Mapping[str, Any]) -> dict[str, Any]:
    """Return the session of ``transcription_session.update`` in the words of ``session.update``."""
    sound: dict[str, Any] = {}
    others: dict[str, Any] = {}
    for name, value in session.items():
        if FIELDS.get(name, "").startswith(_INPUT):
            sound[FIELDS[name].removeprefix(_INPUT)] = value
        else:
            others[name] = value
    if isinstance(kind := sound.get("format"), str):
        sound["format"] = {"type": _FORMATS.get(kind, kind)}
    return {**others, "type": "transcription", "audio": {"input": sound}}


def shown_transcription(session: Mapping[str, Any]) -> dict[str, Any]:
    """Return such a session, as :meth:`Session.shown` has it, in the words of the beta API."""
    sound = session["audio"]["input"]
    form = next(old for old, new in _FORMATS.items() if new == sound["format"]["type"])
    return {
        **{name: session[name] for name in ("id", "object", "expires_at")},
        "input_audio_format": form,
        "input_audio_transcription": sound["transcription"],
        "turn_detection": sound["turn_detection"],
    }
