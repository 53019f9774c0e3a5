"""``GET /v1/models``: the served model, its aliases, and what it can do, as the pipeline declares it."""

from __future__ import annotations

from typing import Any

from attrs import asdict
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from omni_serve.bodies import json_response
from omni_serve.encoders import FORMATS
from omni_serve.pictures import FORMATS as FORMATS_WITH_LOSS
from omni_serve.recognition import has_recogniser, parameters_of
from omni_serve.server import Server, server_of
from omni_serve.voice_names import voice_names

router = APIRouter(tags=["models"])


@router.get("/v1/models")
async def list_models(request: Request) -> Response:
    """List the models, with their capabilities."""
    server = server_of(request)
    return json_response({"object": "list", "data": [model_object(server, name) for name in server.models]})


@router.get("/v1/audio/models")
async def list_speech_models(request: Request) -> Response:
    """List the models that speak, in the form that Open WebUI reads."""
    server = server_of(request)
    return json_response(
        {"models": [{"id": name, "name": name} for name in server.models if capabilities(server)["speech"]]}
    )


@router.get("/v1/models/{model}")
async def retrieve_model(request: Request, model: str) -> Response:
    """Return one model."""
    server = server_of(request)
    server.check_model(model)
    return json_response(model_object(server, model))


def model_object(server: Server, name: str) -> dict[str, Any]:
    """Return OpenAI's ``model`` object with capabilities."""
    made: dict[str, Any] = {"id": name, "object": "model", "created": server.created, "owned_by": "omni"}
    if name != server.model:
        made["root"] = server.model
    return {**made, "capabilities": capabilities(server)}


def capabilities(server: Server) -> dict[str, Any]:
    """Return what the pipeline offers."""
    interface = server.interface
    speech = _by("speech", "direct" if interface.speaks_texts else None, server)
    found: dict[str, Any] = {
        "inputs": [each for each in interface.inputs if each != "reference"],
        "input_streams": interface.input_streams,
        "outputs": interface.outputs,
        "speech": speech,
        "transcription": _by("transcription", "direct" if has_recogniser(interface) else None, server),
        "translation": _by("translation", "direct" if "task" in parameters_of(interface) else None, server),
        "tools": interface.tool_format is not None,
        "limits": interface.limits,
        "plain_parameters": interface.plain_group.name if interface.plain_group is not None else None,
        "parameters": {group.name: [_parameter(each) for each in group.parameters] for group in interface.groups},
    }
    if "audio" in interface.outputs:
        found |= {
            "sample_rate": interface.sample_rate,
            "audio_formats": [each for each in FORMATS if each != "pcm16"],
            "voices": voice_names(server),
            "reference_voices": "reference" in interface.inputs,
        }
    if "image" in interface.outputs:
        found |= {
            "image_formats": ["png", *FORMATS_WITH_LOSS],
            "image_edits": "image" in interface.inputs,
            "image_parameters": [_parameter(each) for each in interface.params],
        }
    return found


def _by(task: str, direct: str | None, server: Server) -> str | None:
    return direct or ("by instruction" if task in server.interface.prompts else None)


def _parameter(parameter: Any) -> dict[str, Any]:
    """Return what is said of a parameter. Every integer is a multiple of 1."""
    said = {name: value for name, value in asdict(parameter).items() if value not in (None, [])}
    if said["multiple_of"] == 1:
        del said["multiple_of"]
    return said
