"""The configuration of a realtime session in the names of the GA API, and what a pipeline can do of it.

A field that has no effect here is ignored (:mod:`omni_serve.ignored`); one that cannot be ignored is an error that names it, and the others
apply. Fields of the beta API are refused with the name that they have now.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

from attrs import frozen
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from omni_core.api import did_you_mean, shown
from omni_serve.encoders import PCM_RATE, SampleRate
from omni_serve.errors import ApiError, api_error, invalid
from omni_serve.g711 import LAW_RATE
from omni_serve.ignored import check_unknown, ignore
from omni_serve.parameters import ignore_parameter
from omni_serve.realtime import beta
from omni_serve.realtime.audio import AudioType, Wire
from omni_serve.realtime.patches import at, merged, without
from omni_serve.realtime.sentence_end import Eagerness

READ_ONLY = ("id", "object", "expires_at")
"""Fields of a session object that clients send back as they got them."""


class Fields(BaseModel):
    """A part of a configuration. Unknown fields are left out: :func:`check_names` tells of them."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class Format(Fields):
    """A format of sound on the wire. PCM has any rate, where the Realtime API has 24 kHz only."""

    type: AudioType
    rate: SampleRate | None = None

    @model_validator(mode="after")
    def _check(self) -> Format:
        if self.type != "audio/pcm" and self.rate not in (None, LAW_RATE):
            raise ValueError(f"the rate of {self.type} is {LAW_RATE}")
        return self

    @property
    def wire(self) -> Wire:
        """Return the format."""
        return Wire(self.type, self.rate or (PCM_RATE if self.type == "audio/pcm" else LAW_RATE))

    def shown(self) -> dict[str, Any]:
        """Return it as clients know it."""
        return {"type": self.type, "rate": self.wire.rate} if self.wire.law is None else {"type": self.type}


PCM = Format(type="audio/pcm", rate=24_000)


class ServerVad(Fields):
    """The server finds the turns of the user by voice activity; ``semantic_vad``: and ends them by what was said, too."""

    type: Literal["server_vad", "semantic_vad"]
    threshold: float = Field(default=0.5, ge=0, le=1)
    prefix_padding_ms: int = Field(default=300, ge=0, le=5_000)
    silence_duration_ms: int = Field(default=500, ge=20, le=10_000)
    create_response: bool = True
    interrupt_response: bool = True
    eagerness: Eagerness | None = None

    @model_validator(mode="before")
    @classmethod
    def _of_its_type(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        return {**given, "eagerness": given.get("eagerness") or "auto" if given.get("type") == "semantic_vad" else None}


SERVER_VAD = ServerVad(type="server_vad")

_OF_REPLIES = ("create_response", "interrupt_response")
"""Its fields that a session without replies has not."""


class Transcription(Fields):
    """The user's turns are written down, too."""

    model: str | None = None
    language: str | None = None
    prompt: str | None = None


class AudioInput(Fields):
    """The format of the client's sound, and the end of its turns; ``turn_detection: null``: where the client says so."""

    format: Format = PCM
    turn_detection: ServerVad | None = SERVER_VAD
    transcription: Transcription | None = None


class AudioOutput(Fields):
    """The voice, the speed and the format of speech."""

    format: Format = PCM
    voice: str | dict[str, Any] | None = None
    speed: float = Field(default=1.0, ge=0.25, le=1.5)
    timestamps: Literal["none", "word"] | None = None

    @property
    def tells_words(self) -> bool:
        """Return if the times of the words are told."""
        return self.timestamps == "word"


class Audio(Fields):
    """Both directions."""

    input: AudioInput = AudioInput()
    output: AudioOutput = AudioOutput()


class FunctionTool(Fields):
    """A tool that the client runs."""

    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None

    @property
    def of_chat(self) -> dict[str, Any]:
        """It in the form of a chat."""
        return {"type": "function", "function": self.model_dump(exclude={"type"}, exclude_none=True)}


class NamedTool(Fields):
    """The tool that a reply must call."""

    type: Literal["function"]
    name: str


class SessionConfig(BaseModel):
    """The configuration. Further fields are parameters of the pipeline."""

    model_config = ConfigDict(extra="allow", frozen=True)

    type: Literal["realtime", "transcription"] = "realtime"
    model: str | None = None
    output_modalities: list[Literal["text", "audio"]] = Field(default=["audio"], min_length=1, max_length=1)
    instructions: str = ""
    audio: Audio = Audio()
    tools: list[FunctionTool] = Field(default=[], fail_fast=True)
    tool_choice: Literal["auto", "none", "required"] | NamedTool = "auto"
    max_output_tokens: int | Literal["inf"] = "inf"

    @property
    def speaks(self) -> bool:
        """Return if replies are spoken."""
        return self.output_modalities == ["audio"]

    @property
    def transcribes_only(self) -> bool:
        """Return if the session writes down what is said, and answers nothing."""
        return self.type == "transcription"

    @property
    def parameters(self) -> dict[str, Any]:
        """Return the parameters of the pipeline."""
        return dict(self.model_extra or {})

    def shown(self) -> dict[str, Any]:
        """Return it as clients see it. What is not set is left out, but for turns by hand, which are ``null``."""
        made = {**self.model_dump(exclude_none=True), "truncation": "auto"}
        sound = made["audio"]["input"]
        sound["format"] = self.audio.input.format.shown()
        sound["turn_detection"] = sound.get("turn_detection")
        if self.transcribes_only:
            for name in _OF_REPLIES if sound["turn_detection"] else ():
                del sound["turn_detection"][name]
            return {"type": self.type, "audio": {"input": sound}}
        made["audio"]["output"]["format"] = self.audio.output.format.shown()
        return made


@contextmanager
def _placed(where: str) -> Iterator[None]:
    """Put the path of the object before that of its field, in an ApiError."""
    try:
        yield
    except ApiError as error:
        if error.param and not error.param.startswith(where):
            error.message = error.message.replace(error.param, f"{where}.{error.param}", 1)
            error.param = f"{where}.{error.param}"
        raise


@frozen(kw_only=True)
class Offer:
    """The part of it that a pipeline can do.

    Attributes:
        inputs, outputs: kinds of parts and modalities; empty: not declared.
        tools: it calls tools.
        forces: it can begin a reply with a call.
        transcribes: it writes recordings down.
        listens: it writes down sound that is still coming.
        reads_transcripts: a reply reads what is said in a recording, not its sound.
        paces: it speaks at another speed itself.
        reads: tells if a further field is a parameter of it.
        check: raises ApiError for a voice, a model or a parameter that there is not; ``where`` is the path of the configuration.
        vad: how turns are found where a client does not say it.
        sound_in_video: it hears the sound of a video at the time of its pictures.
    """

    inputs: tuple[str, ...] = ("text", "audio", "image")
    outputs: tuple[str, ...] = ("text", "audio")
    tools: str | None = "tagged-json"
    forces: bool = True
    transcribes: bool = True
    listens: bool = False
    reads_transcripts: bool = False
    paces: bool = False
    reads: Callable[[str], bool] = lambda name: True
    check: Callable[[SessionConfig, str], None] = lambda config, where: None
    vad: ServerVad = SERVER_VAD
    sound_in_video: bool = False

    @property
    def sight(self) -> Literal["video with sound", "video", "image"] | None:
        """Return what it takes of the frames of a turn, which are seen with its sound: of ``image``, the newest."""
        if self.inputs and "audio" not in self.inputs:
            return None
        if not self.inputs or "video" in self.inputs:
            return "video with sound" if self.sound_in_video else "video"
        return "image" if "image" in self.inputs else None

    def first(self) -> SessionConfig:
        """Return the configuration before a client has changed it."""
        speaks = "audio" in self.outputs or not self.outputs
        audio = Audio(input=AudioInput(turn_detection=self.vad))
        return SessionConfig(output_modalities=["audio" if speaks else "text"], audio=audio)

    def verify(self, config: SessionConfig, where: str) -> None:
        """Raise ApiError 400 for what the pipeline cannot do."""
        wanted = config.output_modalities[0]
        if config.transcribes_only:
            if not self.transcribes:
                message = f"{where}.type: this pipeline declares no way to write down recordings"
                raise invalid(message, f"{where}.type", "unsupported_value")
        elif self.outputs and wanted not in self.outputs:
            raise invalid(
                f"{where}.output_modalities: this pipeline answers in {' and '.join(self.outputs)} only",
                f"{where}.output_modalities",
                "unsupported_value",
            )
        if config.tools and config.tool_choice != "none" and self.tools is None:
            raise invalid(
                f"{where}.tools: this pipeline declares no format for calls of tools",
                f"{where}.tools",
                "unsupported_parameter",
            )
        if config.tools and config.tool_choice not in ("auto", "none") and not self.forces:
            message = f"{where}.tool_choice: only 'auto' and 'none' are supported: with this pipeline the model decides"
            raise invalid(message, f"{where}.tool_choice", "unsupported_value")
        names = [tool.name for tool in config.tools]
        if isinstance(config.tool_choice, NamedTool) and (name := config.tool_choice.name) not in names:
            message = f"{where}.tool_choice: no tool is called {shown(name)}{did_you_mean(name, names)}"
            raise invalid(message, f"{where}.tool_choice", "invalid_value")
        with _placed(where):
            self.check(config, where)


def updated(config: SessionConfig, patch: Mapping[str, Any], offer: Offer, where: str = "session") -> SessionConfig:
    """Return the configuration with the fields of ``patch``: objects are merged, other values replaced.

    Raises:
        ApiError: 400; ``param`` is the path of the field.
    """
    for name in patch:
        if name in beta.FIELDS:
            raise invalid(
                f"{where}.{name}: is a name of the beta API; it is {where}.{beta.FIELDS[name]} now",
                f"{where}.{name}",
                "unknown_parameter",
            )
    check_names(patch, SessionConfig, where)
    given = {name: value for name, value in patch.items() if name not in READ_ONLY}
    as_shown = config.shown()
    for name in [each for each in given if each not in SessionConfig.model_fields and not offer.reads(each)]:
        if (value := given.pop(name)) != as_shown.get(name):  # clients send a session back as they got it
            ignore_parameter(name, value, SessionConfig.model_fields, where=where)
    before = config.model_dump()
    if isinstance(at(patch, "audio", "input", "turn_detection"), dict):  # it says the differences from the server's own
        before["audio"]["input"]["turn_detection"] = (
            before["audio"]["input"]["turn_detection"] or offer.vad.model_dump()
        )
    made = _validated(merged(before, given), where)
    if made.audio.input.transcription is None and made.transcribes_only:
        made = _transcribing(made, Transcription())
    elif made.audio.input.transcription is not None and not (offer.transcribes or made.transcribes_only):
        ignore(f"{where}.audio.input.transcription")
        made = _transcribing(made, None)
    made = _ending_turns(made, offer, at(given, "audio", "input", "turn_detection"), where)
    offer.verify(made, where)
    return made


def applied(
    config: SessionConfig, patch: Mapping[str, Any], offer: Offer, where: str = "session"
) -> tuple[SessionConfig, list[ApiError]]:
    """Return the configuration with the fields of ``patch`` that can be honoured, and an error for each of the others.

    Raises:
        ApiError: 400, of no field.
    """
    errors: list[ApiError] = []
    while True:
        try:
            return updated(config, patch, offer, where), errors
        except ApiError as error:
            path = (error.param or "").removeprefix(where).partition("[")[0].split(".")[1:]
            less = without(patch, path)
            if less == patch or len(errors) >= _MOST_ERRORS:
                raise
            errors.append(error)
            patch = less


_MOST_ERRORS = 16


def check_names(given: Mapping[str, Any], model: type[BaseModel], where: str) -> None:
    """Ignore the unknown fields in the models of a configuration; those of its own may be parameters of the pipeline.

    Raises:
        ApiError: 400, a field looks like a misspelt one.
    """
    for name, value in given.items():
        found = model.model_fields.get(name)
        if found is None:
            if issubclass(model, Fields) and value is not None:
                check_unknown(name, model.model_fields, where)
            continue
        for index, each in enumerate(value if isinstance(value, list) else [value]):
            inner = next(iter(_models(found.annotation)), None)
            if inner is not None and isinstance(each, dict):
                check_names(each, inner, f"{where}.{name}" + (f"[{index}]" if isinstance(value, list) else ""))


def _transcribing(config: SessionConfig, transcription: Transcription | None) -> SessionConfig:
    sound = config.audio.input.model_copy(update={"transcription": transcription})
    return config.model_copy(update={"audio": config.audio.model_copy(update={"input": sound})})


def _ending_turns(config: SessionConfig, offer: Offer, given: Any, where: str) -> SessionConfig:
    """Return the configuration with turns that end by voice activity where what is said is not written down meanwhile."""
    sound = config.audio.input
    vad, writes = sound.turn_detection, offer.listens and sound.transcription is not None
    if vad is None or (vad.eagerness is not None and writes):
        return config
    for name in ("type",) * (vad.eagerness is not None) + ("eagerness",) * (at(given, "eagerness") is not None):
        ignore(f"{where}.audio.input.turn_detection.{name}")
    vad = vad.model_copy(update={"type": "server_vad", "eagerness": None})
    sound = sound.model_copy(update={"turn_detection": vad})
    return config.model_copy(update={"audio": config.audio.model_copy(update={"input": sound})})


def _validated(fields: dict[str, Any], where: str) -> SessionConfig:
    try:
        return SessionConfig.model_validate(fields)
    except ValidationError as error:
        problem = api_error(error)
    # Not in the block above: pydantic's error hides its frames from the garbage collector, so as a context it would keep the session.
    problem.param = f"{where}.{problem.param}" if problem.param else where
    problem.message = f"{where}.{problem.message}"
    raise problem


def _models(annotation: Any) -> list[type[BaseModel]]:
    """Return the models in an annotation: of ``Model``, ``Model | None`` and ``list[Model]``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for each in getattr(annotation, "__args__", ()) for model in _models(each)]
