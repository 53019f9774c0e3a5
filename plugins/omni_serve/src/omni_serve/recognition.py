"""Requests that write a recording down: to the stage whose role that is, else by a prompt that the pipeline declares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omni_core.api import TEXT, TRANSCRIPTION, Interface, OmniRequest, Parameter
from omni_serve.errors import invalid
from omni_serve.languages import spoken
from omni_serve.parameters import checked_value, ignore_parameter
from omni_serve.server import Server

TRANSCRIPT = "transcript"
"""The modality of a transcript alone, from a pipeline that also answers. One that does nothing else may call it text."""


def has_recogniser(interface: Interface) -> bool:
    """Return whether a request can be written down by a stage of its own."""
    return TRANSCRIPTION in interface.roles and (TRANSCRIPT in interface.outputs or TEXT not in interface.roles)


def listens(interface: Interface) -> bool:
    """Return whether the pipeline writes down sound that is still coming."""
    return has_recogniser(interface) and "audio" in interface.input_streams


def writes_down(interface: Interface) -> bool:
    """Return whether the pipeline can write recordings down."""
    return has_recogniser(interface) or "transcription" in interface.prompts


def translates(interface: Interface) -> bool:
    """Return whether the pipeline can write down in English what is said in another language."""
    return _translates_itself(interface) or "translation" in interface.prompts


def _translates_itself(interface: Interface) -> bool:
    task = parameters_of(interface).get("task")
    return task is not None and "translate" in task.choices


def parameters_of(interface: Interface) -> dict[str, Parameter]:
    """Return the parameters of the stage that writes recordings down, by their names."""
    groups = [each for each in interface.groups if each.role == TRANSCRIPTION] if has_recogniser(interface) else []
    return {name: parameter for group in groups for parameter in group.parameters for name in parameter.names}


def transcription_request(
    server: Server, recording: bytes | None, given: Mapping[str, Any], task: str = "transcribe"
) -> OmniRequest:
    """Return the request that writes a recording down.

    Args:
        recording: ``None``: it is still coming; the pipeline :func:`listens`.
        given: parameters by OpenAI's names; ``None`` and empty texts are not given.
        task: ``transcribe``, or ``translate`` if the pipeline :func:`translates`.

    Raises:
        ApiError: 400, the pipeline cannot do that, or does not honour one that the transcript needs.
    """
    interface = server.interface
    declared = parameters_of(interface)
    given = {name: value for name, value in given.items() if value not in (None, "")}
    if "language" in given:
        given["language"] = spoken(str(given["language"]), declared.get("language"))
    content: list[dict[str, Any]] = [{"type": "audio", "data": recording}]
    if _translates_itself(interface) if task == "translate" else has_recogniser(interface):
        asked = {}
        for name, value in given.items():
            if name in declared:
                asked[name] = checked_value(declared[name], value, name)
            else:
                ignore_parameter(name, value, declared)
        parameters = server.parameters.read({"stage_sampling": {TRANSCRIPTION: asked}} if asked else {})
    else:
        text = interface.prompts.get("translation" if task == "translate" else "transcription")
        if text is None:
            raise invalid("This pipeline declares no way to write down recordings.", code="unsupported_operation")
        if language := given.pop("language", None):
            text += f" The language is: {language}."
        if hint := given.pop("prompt", None):
            text += f" Follow the spelling and the style of this text: {hint}"
        content.append({"type": "text", "text": text})
        parameters = server.parameters.read(given)
    modalities = next(([each] for each in (TRANSCRIPT, "text") if each in interface.outputs), None)
    messages = [{"role": "user", "content": content}] if recording is not None else []
    return OmniRequest({"messages": messages}, parameters.params, modalities, parameters.metadata)
