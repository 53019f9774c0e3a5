"""``POST /v1/realtime/client_secrets``: short-lived keys, with which a web page opens a session without seeing the key of its owner."""

from __future__ import annotations

from typing import Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from omni_serve.bodies import body_of, dumps, json_response, schema
from omni_serve.errors import ApiError, invalid
from omni_serve.ignored import check_extra
from omni_serve.realtime.config import updated
from omni_serve.realtime.events import new_id
from omni_serve.realtime.pipeline import offer_of
from omni_serve.server import key_of, server_of

router = APIRouter(tags=["realtime"])

SESSION_BYTES = 64 * 1024
"""The largest configuration that is kept with a short-lived key."""


class ExpiresAfter(BaseModel):
    """The time in which the key opens sessions; a session that is open goes on."""

    model_config = ConfigDict(extra="allow")

    anchor: Literal["created_at"] = "created_at"
    seconds: int = Field(default=600, ge=10, le=7200)


class ClientSecretRequest(BaseModel):
    """A short-lived key, and the configuration of the sessions that are opened with it."""

    model_config = ConfigDict(extra="allow")

    expires_after: ExpiresAfter = ExpiresAfter()
    session: dict[str, Any] = Field(default={"type": "realtime"})


@router.post("/v1/realtime/client_secrets", openapi_extra=schema(ClientSecretRequest))
async def create_client_secret(request: Request) -> Response:
    """Make a short-lived key. Only keys that do not expire themselves may make some."""
    server, key = server_of(request), key_of(request)
    asked = await body_of(request, ClientSecretRequest)
    check_extra(asked)
    if key.expires is not None:
        raise ApiError(403, "A short-lived key cannot make others.", code="insufficient_scope")
    if "type" not in asked.session:
        raise invalid("session.type: field required", "session.type", "missing_required_parameter")
    offer = offer_of(server, key)
    config = updated(offer.first(), asked.session, offer)
    if len(dumps(asked.session)) > SESSION_BYTES:
        raise ApiError(
            413, f"session: is over the limit of {SESSION_BYTES // 1024} KiB", param="session", code="session_too_large"
        )
    secret, expires = server.keys.lend(key, asked.expires_after.seconds)
    server.realtime.keep(secret, expires, asked.session, key.name)
    kind = "realtime.transcription_session" if config.transcribes_only else "realtime.session"
    session = {"id": new_id("sess"), "object": kind, **config.shown(), "expires_at": 0}
    if not config.transcribes_only:
        session["model"] = config.model or server.model
    return json_response({"value": secret, "expires_at": int(expires), "session": session})
