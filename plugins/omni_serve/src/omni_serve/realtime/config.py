"""The configuration of a realtime session in the names of the GA API, and what a pipeline can do of it.

A field that is not honoured is an error that names it. Fields of the beta API are refused with the name that they have now.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from attrs import frozen
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from omni_core.api import did_you_mean
from omni_serve.encoders import PCM_RATE
from omni_serve.errors import ApiError, api_error, invalid
from omni_serve.realtime.audio import LAW_RATE, AudioType, Wire

BETA_FIELDS = {
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

READ_ONLY = ("id", "object", "expires_at")
"""Fields of a session object that clients send back as they got them."""


class Strict(BaseModel):
    """Unknown fields are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


RATES: dict[AudioType, int] = {"audio/pcm": PCM_RATE, "audio/pcmu": LAW_RATE, "audio/pcma": LAW_RATE}
"""The rates of the Realtime API."""


class Format(Strict):
    """A format of sound on the wire."""

    type: AudioType
    rate: int | None = None

    @model_validator(mode="after")
    def _check(self) -> Format:
        if self.rate not in (None, RATES[self.type]):
            raise ValueError(f"the rate of {self.type} is {RATES[self.type]}")
        return self

    @property
    def wire(self) -> Wire:
        """Return the format."""
        return Wire(self.type, self.rate or RATES[self.type])

    def shown(self) -> dict[str, Any]:
        """Return it as clients know it."""
        return {"type": self.type, "rate": self.wire.rate} if self.wire.is_pcm else {"type": self.type}


PCM = Format(type="audio/pcm", rate=24_000)


class ServerVad(Strict):
    """The server finds the turns of the user by voice activity."""

    type: Literal["server_vad"]
    threshold: float = Field(default=0.5, ge=0, le=1)
    prefix_padding_ms: int = Field(default=300, ge=0, le=5_000)
    silence_duration_ms: int = Field(default=500, ge=20, le=10_000)
    create_response: bool = True
    interrupt_response: bool = True


SERVER_VAD = ServerVad(type="server_vad")


class Transcription(Strict):
    """The user's turns are written down, too."""

    model: str | None = None
    language: str | None = None
    prompt: str | None = None


class AudioInput(Strict):
    """The format of the client's sound, and the end of its turns; ``turn_detection: null``: where the client says so."""

    format: Format = PCM
    turn_detection: ServerVad | None = SERVER_VAD
    transcription: Transcription | None = None
    noise_reduction: None = None


class AudioOutput(Strict):
    """The voice, the speed and the format of speech."""

    format: Format = PCM
    voice: str | dict[str, Any] | None = None
    speed: float = Field(default=1.0, ge=0.25, le=1.5)


class Audio(Strict):
    """Both directions."""

    input: AudioInput = AudioInput()
    output: AudioOutput = AudioOutput()


class FunctionTool(Strict):
    """A tool that the client runs."""

    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class SessionConfig(BaseModel):
    """The configuration. Further fields are parameters of the pipeline."""

    model_config = ConfigDict(extra="allow", frozen=True)

    type: Literal["realtime"] = "realtime"
    model: str | None = None
    output_modalities: list[Literal["text", "audio"]] = Field(default=["audio"], min_length=1, max_length=1)
    instructions: str = ""
    audio: Audio = Audio()
    tools: list[FunctionTool] = Field(default=[], fail_fast=True)
    tool_choice: Literal["auto", "none"] = "auto"
    max_output_tokens: int | Literal["inf"] = "inf"
    include: list[str] | None = Field(default=None, max_length=0)
    truncation: Literal["auto"] = "auto"

    @property
    def speaks(self) -> bool:
        """Return if replies are spoken."""
        return self.output_modalities == ["audio"]

    @property
    def parameters(self) -> dict[str, Any]:
        """Return the parameters of the pipeline."""
        return dict(self.model_extra or {})

    def shown(self) -> dict[str, Any]:
        """Return it as clients see it."""
        made = self.model_dump()
        made["audio"]["input"]["format"] = self.audio.input.format.shown()
        made["audio"]["output"]["format"] = self.audio.output.format.shown()
        made["tools"] = [tool.model_dump(exclude_none=True) for tool in self.tools]
        return made


@frozen(kw_only=True)
class Offer:
    """The part of it that a pipeline can do.

    Attributes:
        inputs, outputs: kinds of parts and modalities; empty: not declared.
        tools: it calls tools.
        transcribes: it writes recordings down.
        check: raises ApiError for a voice, a model or a parameter that there is not.
        vad: how turns are found where a client does not say it.
    """

    inputs: tuple[str, ...] = ("text", "audio", "image")
    outputs: tuple[str, ...] = ("text", "audio")
    tools: str | None = "tagged-json"
    transcribes: bool = True
    check: Callable[[SessionConfig], None] = lambda config: None
    vad: ServerVad = SERVER_VAD

    def first(self) -> SessionConfig:
        """Return the configuration before a client has changed it."""
        speaks = "audio" in self.outputs or not self.outputs
        audio = Audio(input=AudioInput(turn_detection=self.vad))
        return SessionConfig(output_modalities=["audio" if speaks else "text"], audio=audio)

    def verify(self, config: SessionConfig, where: str) -> None:
        """Raise ApiError 400 for what the pipeline cannot do."""
        wanted = config.output_modalities[0]
        if self.outputs and wanted not in self.outputs:
            raise invalid(
                f"{where}.output_modalities: this pipeline answers in {' and '.join(self.outputs)} only",
                f"{where}.output_modalities",
                "unsupported_value",
            )
        if config.tools and self.tools is None:
            raise invalid(
                f"{where}.tools: this pipeline declares no format for calls of tools",
                f"{where}.tools",
                "unsupported_parameter",
            )
        if config.audio.input.transcription is not None and not self.transcribes:
            raise invalid(
                f"{where}.audio.input.transcription: this pipeline declares no way to write down recordings; send null",
                f"{where}.audio.input.transcription",
                "unsupported_value",
            )
        try:
            self.check(config)
        except ApiError as error:
            if error.param and not error.param.startswith(where):
                error.param, error.message = f"{where}.{error.param}", f"{where}.{error.message}"
            raise


def updated(config: SessionConfig, patch: Mapping[str, Any], offer: Offer, where: str = "session") -> SessionConfig:
    """Return the configuration with the fields of ``patch``: objects are merged, other values replaced.

    Raises:
        ApiError: 400; ``param`` is the path of the field.
    """
    for name in patch:
        if name in BETA_FIELDS:
            raise invalid(
                f"{where}.{name}: is a name of the beta API; it is {where}.{BETA_FIELDS[name]} now",
                f"{where}.{name}",
                "unknown_parameter",
            )
    kind = _at(patch, "audio", "input", "turn_detection", "type")
    if kind == "semantic_vad":
        raise invalid(
            f"{where}.audio.input.turn_detection.type: semantic_vad needs a model that judges if a sentence is complete, which "
            "this server does not have; use server_vad, or null and commit the turns yourself",
            f"{where}.audio.input.turn_detection.type",
            "unsupported_value",
        )
    given = {name: value for name, value in patch.items() if name not in READ_ONLY}
    before = config.model_dump()
    if isinstance(
        _at(patch, "audio", "input", "turn_detection"), dict
    ):  # it says the differences from the server's own
        before["audio"]["input"]["turn_detection"] = (
            before["audio"]["input"]["turn_detection"] or offer.vad.model_dump()
        )
    try:
        made = SessionConfig.model_validate(_merged(before, given))
    except ValidationError as error:
        raise _explained(error, where) from None
    offer.verify(made, where)
    return made


def _explained(error: ValidationError, where: str) -> ApiError:
    """Return the error with the field's path; an unknown field gets the nearest name."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    if first["type"] == "extra_forbidden":
        path = ".".join([where, *(str(each) for each in first["loc"])])
        model: Any = SessionConfig
        for each in first["loc"][:-1]:
            found = (
                model.model_fields.get(str(each)) if isinstance(model, type) and issubclass(model, BaseModel) else None
            )
            model = next((kind for kind in _models(found.annotation)), None) if found is not None else None
        names = list(model.model_fields) if model is not None else []
        return invalid(
            f"{path}: this server does not know this field{did_you_mean(str(first['loc'][-1]), names)}",
            path,
            "unknown_parameter",
        )
    made = api_error(error)
    made.param = f"{where}.{made.param}" if made.param else where
    made.message = f"{where}.{made.message}"
    return made


def _models(annotation: Any) -> list[type[BaseModel]]:
    """Return the models in an annotation: of ``Model``, ``Model | None`` and ``list[Model]``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for each in getattr(annotation, "__args__", ()) for model in _models(each)]


def _merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    made = dict(old)
    for name, value in new.items():
        before = made.get(name)
        if isinstance(before, dict) and isinstance(value, dict) and name not in ("format", "voice"):
            made[name] = _merged(before, value)
        else:
            made[name] = value
    return made


def _at(data: Any, *path: str) -> Any:
    for name in path:
        data = data.get(name) if isinstance(data, Mapping) else None
    return data
