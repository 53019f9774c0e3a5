"""Routes of a request: next stages, fan-in, terminal stages, and projections between stages. Plain functions without torch."""

from __future__ import annotations

from typing import Any

from omni_core.api import SPEECH, InvalidRequestError, OmniRequest, StagePayload


def reads_aloud(request: OmniRequest) -> bool:
    """Return True if the text of a request is to be spoken, and none written."""
    return request.modalities is not None and SPEECH in request.modalities


def wants_audio(request: OmniRequest) -> bool:
    """Return True if a request asks for speech."""
    return request.modalities is None or "audio" in request.modalities or SPEECH in request.modalities


def terminal_stages(request: OmniRequest, sound: str = "code2wav") -> list[str]:
    """Return the terminal stages of the speech pipeline for a request.

    Args:
        sound: the stage that makes the sound.

    Raises:
        InvalidRequestError: it requests audio without text, or a given text spoken and more.
    """
    if reads_aloud(request):
        if request.modalities != [SPEECH]:
            raise InvalidRequestError(f"modalities: {SPEECH!r} is the given text spoken and no more; ask for it alone")
        return [sound]
    if request.modalities is not None and "text" not in request.modalities:
        raise InvalidRequestError("modalities: must contain 'text', because audio is the spoken text")
    return ["decode", sound] if wants_audio(request) else ["decode"]


def aligned_terminal_stages(request: OmniRequest) -> list[str]:
    """Return those of a pipeline in which ``align`` is behind the sound. Raises as :func:`terminal_stages`."""
    return terminal_stages(request, "align")


def encoders_needed(data: dict[str, Any]) -> list[str]:
    """Return the encoders that a preprocessed prompt has inputs for."""
    return [stage for stage, key in (("image_encoder", "image"), ("audio_encoder", "audio")) if data.get(key)]


def route_preprocessing(request_id: str, output: StagePayload) -> list[str]:
    """Return the stages after preprocessing: the encoders needed, and the aggregation."""
    return [*encoders_needed(output.data), "mm_aggregate"]


def wait_for_encoders(request_id: str, source: str, payload: StagePayload) -> list[str] | None:
    """Return the stages that the aggregation waits for; ``None`` until preprocessing's payload names the encoders."""
    if source != "preprocessing":
        return None
    return ["preprocessing", *payload.data["encoders"]]


def to_image_encoder(payload: StagePayload) -> dict[str, Any]:
    """Project a payload to the image encoder's inputs, in a new container."""
    return dict(payload.data["image"])


def to_audio_encoder(payload: StagePayload) -> dict[str, Any]:
    """Project a payload to the audio encoder's inputs, in a new container."""
    return dict(payload.data["audio"])


def to_aggregate(payload: StagePayload) -> dict[str, Any]:
    """Project a payload to the prompt, without the encoders' heavy inputs."""
    kept = {name: value for name, value in payload.data.items() if name not in ("image", "audio")}
    return {**kept, "encoders": encoders_needed(payload.data)}


def route_thinker(request_id: str, output: StagePayload, talker: str = "talker_ar") -> list[str]:
    """Return the stages after the thinker: the talker only if speech is requested, ``decode`` only if text is."""
    wanted = ["decode", talker] if wants_audio(output.request) else ["decode"]
    return [talker] if reads_aloud(output.request) else wanted
