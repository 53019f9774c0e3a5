"""Reads what a request asks for: the text, the voice, the language and the style, checked against the checkpoint."""

from __future__ import annotations

from typing import Any

from attrs import frozen

from omni_core.api import InvalidRequestError, OmniRequest, RequestTooLargeError, SamplingParams, checked
from omni_qwen3_tts.config import BASE, CUSTOM_VOICE, TTSConfig
from omni_qwen3_tts.interface import AUTO, OWN, RESIDUAL, defaults_of
from omni_torch.api import sampling_from

SUPPRESSED_TAIL = 1024
"""The number of markers at the end of the talker's vocabulary; of these only the end of speech may be chosen."""


@frozen
class Asked:
    """The parameters of a request's speech.

    Attributes:
        language: the code of the language; ``None``: heard from the text.
        speaker: the code of the speaker, of the checkpoint's own voices.
        style: the instruction; empty without.
        dual_track: as the request says; ``None``: it does not.
    """

    language: int | None = None
    speaker: int | None = None
    style: str = ""
    dual_track: bool | None = None


@frozen
class Residual:
    """The sampling of the codes of a frame behind the first. ``temperature == 0`` is greedy."""

    temperature: float
    top_k: int
    top_p: float


def sampling_of(request: OmniRequest, config: TTSConfig, generation: dict[str, Any]) -> tuple[SamplingParams, Residual]:
    """Return how a request's codes are chosen: the first of each frame, and the others.

    Args:
        generation: the checkpoint's ``generation_config.json``.

    Raises:
        InvalidRequestError: an unknown parameter or a value out of range.
    """
    first, rest = defaults_of(generation)
    given = {"seed": request.params.get("seed"), **request.params.get("talker", {})}
    mine = {name: value for name, value in given.items() if name not in _OWN}
    vocabulary = config.talker.vocab_size
    suppressed = frozenset(range(max(0, vocabulary - SUPPRESSED_TAIL), vocabulary)) - {config.codec_eos}
    sampling = sampling_from(
        {**first, **mine},
        "params.talker",
        stop_ids=[config.codec_eos],
        suppressed_ids=suppressed,
        penalize_prompt=False,
    )
    if sampling.temperature == 0:  # who asks for the likeliest codes means all of them
        rest["residual_temperature"] = 0.0
    asked = {**rest, **checked(RESIDUAL, {n: v for n, v in given.items() if n in _RESIDUAL}, "params.talker")}
    residual = Residual(asked["residual_temperature"], asked["residual_top_k"], asked["residual_top_p"])
    return sampling, residual


_RESIDUAL = {each.name for each in RESIDUAL}
_OWN = {each.name for each in OWN} | _RESIDUAL


def asked_of(request: OmniRequest, config: TTSConfig, *, recorded: bool) -> Asked:
    """Return what a request asks for.

    Args:
        recorded: it brings a recording.

    Raises:
        InvalidRequestError: a voice, a language or an instruction that this checkpoint does not have.
    """
    given = request.params.get("talker", {})
    mine = checked(OWN, {name: given[name] for name in given if name in _OWN - _RESIDUAL}, "params.talker")
    speaker = _speaker(request.metadata.get("speaker"), config, recorded)
    language = _language(mine.get("language") or AUTO, config, speaker)
    style = mine.get("instructions") or ""
    if style and not config.reads_style:
        raise InvalidRequestError("params.talker.instructions: this checkpoint follows no instructions")
    number = None if speaker is None else config.speakers[speaker]
    return Asked(language, number, style, mine.get("dual_track"))


def _speaker(name: Any, config: TTSConfig, recorded: bool) -> str | None:
    if config.kind == BASE:
        if not recorded:
            raise InvalidRequestError(
                "references: this checkpoint speaks with the voice of a recording: give one, and the words in it if they are known"
            )
        if name is not None:
            raise InvalidRequestError(
                "metadata.speaker: this checkpoint has no voices of its own; give references alone"
            )
        return None
    if recorded:
        raise InvalidRequestError(
            "references: this checkpoint speaks with no recorded voices; a Base checkpoint of Qwen3-TTS does"
        )
    if config.kind != CUSTOM_VOICE:
        if name is not None:
            raise InvalidRequestError(
                "metadata.speaker: this checkpoint has no voices of its own; describe one in params.talker.instructions"
            )
        return None
    if name is None:
        return next(iter(config.speakers), None)
    if not isinstance(name, str) or name.lower() not in config.speakers:
        raise InvalidRequestError(
            f"metadata.speaker: {name!r} is unknown; known speakers: {', '.join(sorted(config.speakers))}"
        )
    return name.lower()


def _language(name: str, config: TTSConfig, speaker: str | None) -> int | None:
    """Return the code of a language. A speaker of a dialect speaks it, unless another language than Chinese is asked for."""
    lower = name.lower()
    if lower != AUTO and lower not in config.spoken:
        known = ", ".join([AUTO, *config.spoken])
        raise InvalidRequestError(f"params.talker.language: {name!r} is unknown; known languages: {known}")
    if lower in (AUTO, "chinese") and speaker in config.dialects:
        return config.languages[config.dialects[speaker]]
    return None if lower == AUTO else config.languages[lower]


def text_in(inputs: Any) -> str | None:
    """Return the text of the last message; ``None``: there is none, and the text will come as a stream, of the client or of another
    pipeline.

    Earlier messages are a chat's history, which this model does not read.

    Raises:
        InvalidRequestError: the message is not a text of the user.
    """
    if inputs is None:
        return None
    messages = inputs.get("messages") if isinstance(inputs, dict) else None
    if not isinstance(messages, list):
        raise InvalidRequestError("inputs.messages: must be a list of {'role': 'user', 'content': ...}")
    if not messages:
        return None
    where, message = f"messages[{len(messages) - 1}]", messages[-1]
    if not isinstance(message, dict) or message.get("role") != "user":
        raise InvalidRequestError(f"{where}: must be {{'role': 'user', 'content': ...}}: the text to speak")
    if any(isinstance(each, dict) and each.get("role") == "system" for each in messages):
        raise InvalidRequestError("messages: this model takes no system message; a style goes into instructions")
    content = message.get("content")
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise InvalidRequestError(f"{where}.content: must be text or a non-empty list of parts")
    texts = []
    for index, part in enumerate(content):
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise InvalidRequestError(
                f"{where}.content[{index}]: this model speaks text: {{'type': 'text', 'text': ...}}; a voice goes into references"
            )
        texts.append(part["text"])
    return "\n".join(texts)


def recording_in(inputs: Any) -> dict[str, Any] | None:
    """Return the recording of a request's voice, ``{'path': ..., 'text': ...}`` with or without ``text``; ``None`` without.

    Raises:
        InvalidRequestError: there are several.
    """
    references = (inputs.get("references") if isinstance(inputs, dict) else None) or []
    if (
        not isinstance(references, list)
        or len(references) > 1
        or not all(isinstance(each, dict) for each in references)
    ):
        raise InvalidRequestError("inputs.references: must be a list of one {'path': ..., 'text': ...}")
    if not references:
        return None
    found: dict[str, Any] = references[0]
    text = found.get("text")
    if text is not None and not isinstance(text, str):
        raise InvalidRequestError("references[0].text: must be the words that are said in the recording, or absent")
    return found


def too_long(where: str, most: int) -> RequestTooLargeError:
    """Return the error of a text that is too long."""
    return RequestTooLargeError(
        f"{where}: over the limit of {most} characters (max_characters); speak it in several requests"
    )
