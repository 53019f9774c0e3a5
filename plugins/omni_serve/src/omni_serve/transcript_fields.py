"""The fields of a form that asks for a transcript or a translation, beside the recording."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from attrs import evolve, frozen
from starlette.datastructures import FormData

from omni_core.api import Interface, shown
from omni_serve.errors import invalid
from omni_serve.forms import check_fields, typed
from omni_serve.ignored import check_unknown, ignore
from omni_serve.languages import spoken
from omni_serve.recognition import parameters_of, translates, writes_down
from omni_serve.server import Server
from omni_serve.settings import RealtimeLimits

_GIVEN = ("language", "prompt", "temperature")
TIMES, INCLUDE, LANGUAGES = "timestamp_granularities[]", "include[]", "languages[]"
_LISTS = (TIMES, INCLUDE, LANGUAGES)
_CHUNKING = "chunking_strategy"
FIELDS = ("file", "model", *_GIVEN, "response_format", "stream", _CHUNKING)
FORMATS = ("json", "text", "verbose_json", "srt", "vtt")
SUBTITLES = ("srt", "vtt")
SPEAKERS = "diarized_json"
_STREAMED = ("json", SPEAKERS)
_OWN = ("timestamps", "logprobs")
"""Parameters of a recogniser that clients ask for by other fields."""

SCHEMA = {name: "binary" if name == "file" else "string" for name in (*FIELDS, *_LISTS)}


@frozen
class Chunking:
    """Cutting a recording into parts: how it is asked for.

    Attributes:
        by_turn: each turn of speech is a part.
        threshold, silence_ms, padding_ms: of the voice detection.
    """

    by_turn: bool
    threshold: float
    silence_ms: int
    padding_ms: int

    @classmethod
    def auto(cls, limits: RealtimeLimits) -> Chunking:
        """Return what holds where a client says nothing."""
        return cls(False, limits.threshold, limits.silence_duration_ms, limits.prefix_padding_ms)


@frozen
class Asked:
    """The wishes of a form.

    Attributes:
        given: parameters of the recogniser.
        format: of the answer.
        times: of segments and words, those that are wanted.
        logprobs: are wanted.
        chunking: ``None``: the pipeline hears the recording as a whole, if it can.
    """

    task: str
    given: dict[str, Any]
    format: str
    times: list[str]
    stream: bool
    logprobs: bool
    chunking: Chunking | None

    @property
    def speakers(self) -> bool:
        """The speakers are told apart."""
        return bool(self.given.get("diarize"))


def names(interface: Interface) -> set[str]:
    """Return the names of the fields that are read."""
    lists = (*_LISTS, *(each.removesuffix("[]") for each in _LISTS))
    return {*FIELDS, *lists, *(each for each in parameters_of(interface) if each not in _OWN)}


def read(server: Server, form: FormData, task: str) -> Asked:
    """Read a form. ``task``: ``transcribe`` or ``translate``.

    Raises:
        ApiError: 400, a field is wrong, or the pipeline cannot do what it asks for.
    """
    declared = parameters_of(server.interface)
    chunking, form = _chunking(server, form)
    _check(server, form, task)
    answer = _one_of("response_format", str(form.get("response_format") or "json"), _formats(task))
    streamed = str(form.get("stream") or "false").lower()
    if streamed not in ("true", "false"):
        raise invalid(f"stream: must be true or false, is {shown(streamed)}", "stream", "invalid_type")
    if streamed == "true" and answer not in _STREAMED:
        raise invalid(f"stream: events are JSON; remove response_format={answer}", "stream", "unsupported_value")
    given: dict[str, Any] = {name: form.get(name) for name in _GIVEN}
    given["temperature"] = _temperature(form.get("temperature"))
    _language(given, _list(form, LANGUAGES), server.interface)
    for name in declared.keys() & form.keys() - {*_GIVEN, *_OWN}:
        given[name] = typed(name, str(form[name]), declared[name].type)
    if task == "translate" and "task" in declared:
        given["task"] = task
    if answer == SPEAKERS:
        if "diarize" not in declared:
            raise _unsupported("response_format", f"{answer} needs speakers, and this pipeline tells none")
        given["diarize"] = True
    times = _times(given, form, answer, set(declared), chunking)
    has_logprobs = _includes_logprobs(_list(form, INCLUDE), answer, set(declared))
    if has_logprobs:
        given["logprobs"] = True
    if chunking is not None and given.get("diarize"):  # the speakers of one part are not those of the next
        ignore(_CHUNKING)
        chunking = None
    return Asked(str(given.get("task") or task), given, answer, times, streamed == "true", has_logprobs, chunking)


def _formats(task: str) -> tuple[str, ...]:
    return FORMATS if task == "translate" else (*FORMATS, SPEAKERS)


def _check(server: Server, form: FormData, task: str) -> None:
    """Check the names of fields, the model, and that the pipeline does such a thing."""
    known = names(server.interface)
    check_fields(form, known, "file", several={each for each in known if each.removesuffix("[]") + "[]" in _LISTS})
    model = form.get("model")
    if not isinstance(model, str):
        raise invalid("model: field required", "model", "missing_required_parameter")
    server.check_model(model)
    if task == "translate" and not translates(server.interface):
        raise invalid("This pipeline declares no way to translate recordings.", code="unsupported_operation")
    if not writes_down(server.interface) and not translates(server.interface):
        raise invalid("This pipeline declares no way to write down recordings.", code="unsupported_operation")


def _list(form: FormData, name: str) -> list[str]:
    """Return the texts of a field that may be there several times, with and without its brackets."""
    return [str(each) for each in (*form.getlist(name), *form.getlist(name.removesuffix("[]"))) if each != ""]


def _language(given: dict[str, Any], languages: list[str], interface: Interface) -> None:
    """Check the languages; one that may be spoken is that of the recording."""
    declared = parameters_of(interface).get("language")
    found = [spoken(each, declared, LANGUAGES) for each in languages]
    if given["language"]:
        given["language"] = spoken(str(given["language"]), declared)
    elif len(found) == 1:
        given["language"] = found.pop()
    if found:
        ignore(LANGUAGES)


def _times(
    given: dict[str, Any], form: FormData, answer: str, declared: set[str], chunking: Chunking | None
) -> list[str]:
    """Return the times that are wanted, and ask the recogniser for them."""
    asked = [_one_of(TIMES, each, ("segment", "word")) for each in _list(form, TIMES)]
    if asked and answer != "verbose_json":
        raise invalid(f"{TIMES}: only verbose_json has them; set response_format", TIMES, "unsupported_value")
    if answer in SUBTITLES and "timestamps" not in declared and chunking is None:
        what = f"{answer} needs times, and this pipeline tells none; {_CHUNKING}=auto gives those of the parts"
        raise _unsupported("response_format", what)
    timed = answer in ("verbose_json", SPEAKERS, *SUBTITLES)
    if "timestamps" in declared and timed:
        given["timestamps"] = "word" if "word" in asked else "segment"
    elif "word" in asked:
        raise invalid(f"{TIMES}: this pipeline tells no times", TIMES, "unsupported_parameter")
    elif asked and chunking is None:
        ignore(TIMES)
    return (asked or ["segment"]) if timed else []


def _includes_logprobs(asked: list[str], answer: str, declared: set[str]) -> bool:
    for each in asked:
        if each != "logprobs":
            ignore(f"{INCLUDE}.{each}")
    if "logprobs" not in asked:
        return False
    if "logprobs" not in declared:
        raise invalid(f"{INCLUDE}: this pipeline tells no log probabilities", INCLUDE, "unsupported_parameter")
    if answer not in ("json", "verbose_json"):
        raise invalid(f"{INCLUDE}: {answer} has no logprobs; set response_format=json", INCLUDE, "unsupported_value")
    return True


def _chunking(server: Server, form: FormData) -> tuple[Chunking | None, FormData]:
    """Return the chunking that is asked for, and the form without its fields: ``auto``, an object as JSON, or a field for each key."""
    inner = {name: value for name, value in form.multi_items() if name.startswith(f"{_CHUNKING}[")}
    given: dict[str, Any] = {name[len(_CHUNKING) + 1 :].rstrip("]"): _number(value) for name, value in inner.items()}
    text = form.get(_CHUNKING)
    if isinstance(text, str) and text.lstrip().startswith("{"):
        given |= typed(_CHUNKING, text, "mapping")
    rest = FormData([each for each in form.multi_items() if each[0] not in inner])
    auto = Chunking.auto(server.settings.realtime)
    if not given:
        if text in (None, "", "null"):
            return None, rest
        _one_of(_CHUNKING, str(text), ("auto", "an object with the type server_vad"))
        return auto, rest
    if given.pop("type", None) != "server_vad":
        raise invalid(f"{_CHUNKING}.type: must be 'server_vad'", _CHUNKING, "unsupported_value")
    bounds = {
        "threshold": ("threshold", 0.0, 1.0),
        "silence_duration_ms": ("silence_ms", 20, 10_000),
        "prefix_padding_ms": ("padding_ms", 0, 5_000),
    }
    made = evolve(auto, by_turn=True)
    for name, value in given.items():
        if name not in bounds:
            check_unknown(name, bounds, _CHUNKING)
            continue
        ours, least, most = bounds[name]
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            message = f"{_CHUNKING}.{name}: must be a number, {least:g} to {most:g}, is {shown(value)}"
            raise invalid(message, f"{_CHUNKING}.{name}", "invalid_value")
        told: dict[str, Any] = {ours: value if name == "threshold" else round(value)}
        made = evolve(made, **told)
    return made, rest


def _number(value: Any) -> Any:
    """Return a field's number; other texts stay."""
    try:
        return float(json.loads(str(value)[:40]))
    except (ValueError, TypeError):
        return value


def _one_of(name: str, value: str, choices: Iterable[str]) -> str:
    if value not in choices:
        raise invalid(f"{name}: must be {', '.join(choices)}, is {shown(value)}", name, "unsupported_value")
    return value


def _unsupported(name: str, problem: str) -> Exception:
    return invalid(f"{name}: {problem}", name, "unsupported_value")


def _temperature(value: Any) -> float | None:
    if value is None or value == "":
        return None
    try:
        return float(value)
    except ValueError:
        raise invalid(f"temperature: must be a number, is {shown(value)}", "temperature", "invalid_type") from None
