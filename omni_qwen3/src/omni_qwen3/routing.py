"""Which way a request goes: routes, fan-in, terminals, and projections between stages. Plain functions, no torch."""

from __future__ import annotations

from typing import Any

from omni_core.errors import InvalidRequestError
from omni_core.protocol.messages import OmniRequest, StagePayload

MODALITIES = ("text", "audio")


def check_modalities(request: OmniRequest, allowed: tuple[str, ...] = MODALITIES) -> list[str]:
    """The outputs a request wants; by default all that the pipeline offers.

    Raises:
        InvalidRequestError: an unknown modality, or none, or no text (speech is spoken text).
    """
    wanted = request.modalities
    if wanted is None:
        return list(allowed)
    unknown = [name for name in wanted if name not in allowed] if isinstance(wanted, list | tuple) else [wanted]
    if unknown:
        raise InvalidRequestError(
            f"modalities: {unknown[0]!r} is not offered; this pipeline offers: {', '.join(allowed)}"
        )
    if "text" not in wanted:
        raise InvalidRequestError("modalities: must contain 'text'; audio is the spoken text")
    return list(wanted)


def wants_audio(request: OmniRequest) -> bool:
    return request.modalities is None or "audio" in request.modalities


def terminal_stages(request: OmniRequest) -> list[str]:
    """The terminal stages of the speech pipeline for a request."""
    return ["decode", "code2wav"] if "audio" in check_modalities(request) else ["decode"]


def text_terminal_stages(request: OmniRequest) -> list[str]:
    """The terminal stages of the text pipeline for a request."""
    check_modalities(request, ("text",))
    return ["decode"]


def encoders_needed(data: dict[str, Any]) -> list[str]:
    """The encoders that a preprocessed prompt has inputs for."""
    return [stage for stage, key in (("image_encoder", "image"), ("audio_encoder", "audio")) if data.get(key)]


def route_preprocessing(request_id: str, output: StagePayload) -> list[str]:
    return [*encoders_needed(output.data), "mm_aggregate"]


def wait_for_encoders(request_id: str, source: str, payload: StagePayload) -> list[str] | None:
    """What the aggregation waits for; only preprocessing's payload says which encoders run."""
    if source != "preprocessing":
        return None
    return ["preprocessing", *payload.data["encoders"]]


def to_image_encoder(payload: StagePayload) -> dict[str, Any]:
    """The encoder's inputs, in a container of their own."""
    return dict(payload.data["image"])


def to_audio_encoder(payload: StagePayload) -> dict[str, Any]:
    """The encoder's inputs, in a container of their own."""
    return dict(payload.data["audio"])


def to_aggregate(payload: StagePayload) -> dict[str, Any]:
    """The prompt, without the encoders' heavy inputs."""
    kept = {name: value for name, value in payload.data.items() if name not in ("image", "audio")}
    return {**kept, "encoders": encoders_needed(payload.data)}


def route_thinker(request_id: str, output: StagePayload) -> list[str]:
    return ["decode", "talker_ar"] if wants_audio(output.request) else ["decode"]
