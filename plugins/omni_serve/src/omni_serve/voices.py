"""``/v1/audio/voices`` and ``/v1/audio/voice_consents``: uploaded voices, as OpenAI's SDK has them, and a list of all voices."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from attrs import evolve
from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict
from starlette.datastructures import FormData, UploadFile
from starlette.requests import Request
from starlette.responses import Response

from omni_core.api import shown
from omni_serve.bodies import body_of, json_response, schema
from omni_serve.errors import ApiError, invalid
from omni_serve.forms import check_fields, form_schema, read_form
from omni_serve.ignored import check_extra
from omni_serve.media import check_sound, uploaded_sound
from omni_serve.server import Server, key_of, server_of
from omni_serve.settings import Limits
from omni_serve.voice_names import voice_names
from omni_serve.voice_store import NAME, Consent, Item, Voice, VoiceStore, owns

router = APIRouter(tags=["voices"])

ItemT = TypeVar("ItemT", bound=Item)

_LANGUAGE_LENGTH = 35

_VOICE_FIELDS = {"name": "string", "audio_sample": "binary", "consent": "string", "text": "string", "type": "string"}
_CONSENT_FIELDS = {"name": "string", "language": "string", "recording": "binary"}

_OF_PROMPTS = ("prompt", "model", "script_hint")
"""Fields of a voice that OpenAI makes from a description."""


@router.get("/v1/audio/voices")
async def list_voices(request: Request) -> Response:
    """List the pipeline's own voices and the uploaded ones; ``voices`` is the list that Open WebUI and others read."""
    server = server_of(request)
    own = [
        {"id": name, "object": "audio.voice", "created_at": server.created, "name": name, "type": "built_in"}
        for name in voice_names(server)
    ]
    kept = server.voices.voices_of(key_of(request)) if server.voices is not None else []
    uploaded = [each.as_openai() for each in kept]
    every = [*own, *uploaded]
    named = [{"id": each["id"], "name": each["name"]} for each in every]
    return json_response({"object": "list", "data": every, "voices": named, "has_more": False})


@router.post(
    "/v1/audio/voices",
    openapi_extra=form_schema(_VOICE_FIELDS, ["name", "audio_sample"]),
)
async def create_voice(request: Request) -> Response:
    """Upload a recording of a voice. ``text``, the words that are said in it, is our extension."""
    server = server_of(request)
    store = _store(server)
    form = await _voice_form(request)
    if "reference" not in server.interface.inputs:
        known = ", ".join(voice_names(server))
        raise invalid(
            "This pipeline cannot speak with an uploaded voice" + (f"; its voices are: {known}" if known else ""),
            code="unsupported_operation",
        )
    name = _name(form)
    key = key_of(request)
    store.check_room(store.voices, key.name)
    if store.find(name, key) is not None or name.casefold() in [each.casefold() for each in voice_names(server)]:
        raise _taken(name)
    consent = form.get("consent")
    if consent is not None and consent not in [each.id for each in store.consents_of(key)]:
        raise invalid(f"consent: no consent has the id {shown(consent)}", "consent", "consent_not_found")
    text = form.get("text")
    if server.interface.reference_text and not (isinstance(text, str) and text.strip()):
        raise invalid(
            "text: needed beside the recording: the words that are said in it", "text", "missing_required_parameter"
        )
    data = await _recording(server, form, "audio_sample")
    said, agreed = str(text) if text else None, str(consent) if consent else None
    async with store.changing:
        store.check_room(store.voices, key.name)
        if store.find(name, key) is not None:  # another request was faster
            raise _taken(name)
        voice = await asyncio.to_thread(store.add_voice, name, data, said, agreed, key.name)
    request.scope["omni.audit"] = {"created": voice.id}
    return json_response(voice.as_openai())


@router.get("/v1/audio/voices/{voice_id}")
async def retrieve_voice(request: Request, voice_id: str) -> Response:
    """Return one uploaded voice."""
    return json_response(_voice(request, voice_id).as_openai())


@router.delete("/v1/audio/voices/{voice_id}")
async def delete_voice(request: Request, voice_id: str) -> Response:
    """Delete an uploaded voice."""
    return await _delete(request, _voice, voice_id, "audio.voice.deleted")


@router.get("/v1/audio/voice_consents")
async def list_consents(request: Request, after: str | None = None, limit: int = 20) -> Response:
    """List consents, the newest first."""
    if not 1 <= limit <= 100:
        raise invalid("limit: must be 1 to 100", "limit", "invalid_value")
    server = server_of(request)
    consents = server.voices.consents_of(key_of(request))[::-1] if server.voices is not None else []
    ids = [each.id for each in consents]
    if after is not None and after not in ids:
        raise invalid(f"after: no consent has the id {shown(after)}", "after", "consent_not_found")
    begin = ids.index(after) + 1 if after is not None else 0
    page = consents[begin : begin + limit]
    return json_response(
        {
            "object": "list",
            "data": [each.as_openai() for each in page],
            "first_id": page[0].id if page else None,
            "last_id": page[-1].id if page else None,
            "has_more": begin + limit < len(consents),
        }
    )


@router.post(
    "/v1/audio/voice_consents",
    openapi_extra=form_schema(_CONSENT_FIELDS, list(_CONSENT_FIELDS)),
)
async def create_consent(request: Request) -> Response:
    """Upload the recording of a consent."""
    server = server_of(request)
    store = _store(server)
    form = await read_form(request)
    check_fields(form, _CONSENT_FIELDS, "recording")
    language = form.get("language")
    if (
        not isinstance(language, str)
        or not 2 <= len(language) <= _LANGUAGE_LENGTH
        or not language.replace("-", "").isalnum()
    ):
        raise invalid("language: must be a language tag such as en-US", "language", "invalid_value")
    data = await _recording(server, form, "recording")
    name, owner = _name(form), key_of(request).name
    async with store.changing:
        store.check_room(store.consents, owner)
        consent = await asyncio.to_thread(store.add_consent, name, language, data, owner)
    request.scope["omni.audit"] = {"created": consent.id}
    return json_response(consent.as_openai())


@router.get("/v1/audio/voice_consents/{consent_id}")
async def retrieve_consent(request: Request, consent_id: str) -> Response:
    """Return one consent."""
    return json_response(_consent(request, consent_id).as_openai())


class VoiceDescription(BaseModel):
    """A voice in words, which OpenAI makes and this server does not."""

    model_config = ConfigDict(extra="allow")

    type: str | None = None


class ConsentUpdate(BaseModel):
    """The new name of a consent."""

    model_config = ConfigDict(extra="allow")

    name: str


@router.post("/v1/audio/voice_consents/{consent_id}", openapi_extra=schema(ConsentUpdate))
async def update_consent(request: Request, consent_id: str) -> Response:
    """Rename a consent."""
    server = server_of(request)
    asked = await body_of(request, ConsentUpdate)
    check_extra(asked)
    store, name = _store(server), _checked_name(asked.name)
    async with store.changing:
        consent = evolve(_consent(request, consent_id), name=name)
        await asyncio.to_thread(store.rename, consent)
    return json_response(consent.as_openai())


@router.delete("/v1/audio/voice_consents/{consent_id}")
async def delete_consent(request: Request, consent_id: str) -> Response:
    """Delete a consent; voices that were made with it stay."""
    return await _delete(request, _consent, consent_id, Consent.object)


async def _delete(request: Request, find: Callable[[Request, str], Item], identity: str, title: str) -> Response:
    store = _store(server_of(request))
    async with store.changing:
        item = find(request, identity)  # another request may have been faster
        await asyncio.to_thread(store.remove, item)
    return json_response({"id": item.id, "object": title, "deleted": True})


async def _voice_form(request: Request) -> FormData:
    """Return the form of a new voice. A body of JSON, or a form, that describes a voice in words is refused by its field.

    Raises:
        ApiError: 400.
    """
    if request.headers.get("content-type", "").startswith("application/json"):
        form, given = None, (await body_of(request, VoiceDescription)).model_dump()
    else:
        form = await read_form(request)
        given = dict(form)
    kind = given.get("type") or "audio_sample"
    if kind == "prompt":
        raise invalid("type: voices are made from recordings here, not from prompts", "type", "unsupported_value")
    if kind != "audio_sample":
        raise invalid(f"type: must be audio_sample, is {shown(kind)}", "type", "invalid_value")
    for name in _OF_PROMPTS:
        if given.get(name) is not None:
            message = f"{name}: belongs to voices that are made from prompts; here they are made from recordings"
            raise invalid(message, name, "unsupported_parameter")
    if form is None:
        raise invalid("audio_sample: send a recording, in a form", "audio_sample", "missing_required_parameter")
    check_fields(form, _VOICE_FIELDS, "audio_sample")
    return form


def _store(server: Server) -> VoiceStore:
    if server.voices is None:
        raise ApiError(
            403,
            "This server keeps no uploaded voices; its operator allows them with --voices FOLDER.",
            code="uploads_off",
        )
    return server.voices


def _taken(name: str) -> ApiError:
    return ApiError(409, f"name: there is a voice called {name!r} already", code="voice_exists", param="name")


def _voice(request: Request, identity: str) -> Voice:
    store = server_of(request).voices
    return _owned(request, store.voices if store is not None else {}, identity, "uploaded voice", "voice")


def _consent(request: Request, identity: str) -> Consent:
    store = server_of(request).voices
    return _owned(request, store.consents if store is not None else {}, identity, "consent", "consent")


def _owned(request: Request, items: Mapping[str, ItemT], identity: str, title: str, word: str) -> ItemT:
    item = items.get(identity)
    if item is None or not owns(key_of(request), item):
        message = f"No {title} has the id {shown(identity)}."
        raise ApiError(404, message, code=f"{word}_not_found", param=f"{word}_id")
    return item


def _name(form: FormData) -> str:
    return _checked_name(form.get("name"))


def _checked_name(name: Any) -> str:
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise invalid(
            "name: must begin with a letter or digit and have at most 64 letters, digits, blanks and .,'()-_",
            "name",
            "invalid_value",
        )
    return name


async def _recording(server: Server, form: FormData, field: str) -> bytes:
    file = form.get(field)
    if not isinstance(file, UploadFile):
        raise invalid(f"{field}: a file is needed", field, "missing_required_parameter")
    limits = server.settings.limits
    data = await uploaded_sound(file, field, limits.upload_mib)
    longest = float(server.interface.limits.get("max_reference_seconds", limits.audio_seconds))
    bounds = Limits(media_mib=limits.upload_mib, audio_seconds=longest)
    least = float(server.interface.limits.get("min_reference_seconds", 0.0)) if field == "audio_sample" else 0.0
    await asyncio.to_thread(check_sound, data, field, bounds, least)
    return data
