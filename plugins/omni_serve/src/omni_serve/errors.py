"""Errors in OpenAI's form: ``{"error": {"message", "type", "param", "code"}}``, with the status and headers that its clients act on.

``x-should-retry: false`` stops a client from repeating what cannot succeed; ``retry-after`` says when it may.
"""

from __future__ import annotations

import json
import logging
import math
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pydantic import ValidationError
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from omni_core.api import (
    InvalidRequestError,
    OmniError,
    OverloadedError,
    RequestAbortedError,
    RequestFailedError,
    RequestTimeoutError,
    RequestTooLargeError,
)
from omni_core.runtime_api import StageFailedError, message_of

logger = logging.getLogger(__name__)

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "invalid_request_error",
    405: "invalid_request_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "invalid_request_error",
    414: "invalid_request_error",
    421: "invalid_request_error",
    429: "rate_limit_error",
    431: "invalid_request_error",
    499: "request_cancelled",
}
"""OpenAI's ``type`` by status; the others are ``server_error``."""

MESSAGE_CHARACTERS, PARAM_CHARACTERS = 2000, 200
"""The longest message and path of an error: what a client has sent is not sent back whole."""

_RETRIES_HELP = (408, 429, 503)

_DEATHS = ("ProcessDied", "PeerDiedError")
"""Types of errors of requests that a dead process held."""


class ApiError(Exception):
    """An answer that is an error.

    Args:
        status: of HTTP.
        message: what is wrong and what to do.
        code: for programs.
        param: the path in the request.
        retry_after: seconds until the client should try again.
        details: further keys of the error, such as the lacking ``scope``.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after: float | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        message = _cut(message, MESSAGE_CHARACTERS)
        super().__init__(message)
        self.status, self.message, self.code = status, message, code
        self.param = None if param is None else _cut(param, PARAM_CHARACTERS)
        self.retry_after = retry_after
        self.details = dict(details or {})

    @property
    def body(self) -> dict[str, Any]:
        """The whole body, as data."""
        error = {
            "message": self.message,
            "type": TYPES.get(self.status, "server_error"),
            "param": self.param,
            "code": self.code,
        }
        return {"error": {**error, **self.details}}

    @property
    def headers(self) -> dict[str, str]:
        """Headers about trying again."""
        headers = {"x-should-retry": "true" if self.status in _RETRIES_HELP else "false"}
        if self.retry_after is not None:
            headers["retry-after"] = str(max(1, math.ceil(self.retry_after)))
            headers["retry-after-ms"] = str(max(1, math.ceil(self.retry_after * 1000)))
        if self.status == 401:
            headers["www-authenticate"] = "Bearer"
        return headers

    def response(self) -> Response:
        """Return the answer."""
        return Response(json.dumps(self.body), self.status, self.headers, media_type="application/json")


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most // 2]} ... {text[-(most // 2) :]}"


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """Return the error of a request that is itself at fault."""
    return ApiError(400, message, param=param, code=code or ("invalid_value" if param else None))


_PATH = re.compile(
    r"^(?:inputs\.)?((?:messages|references|params|metadata|modalities|tools|tool_choice)[\w.\[\]]*)(?: \(.*?\))?: "
)


def _of_client(path: str) -> str:
    """Return the path in the body of a request, for one in the pipeline's."""
    top, _, rest = path.partition(".")
    if top == "metadata":
        return rest or path
    if top == "params":
        return f"stage_sampling.{rest}" if "." in rest else rest or path
    return path


@contextmanager
def placed(names: Mapping[str, str]) -> Iterator[None]:
    """Name the client's field in an error about the messages that were made of its request.

    Args:
        names: the fields by the beginnings of paths; the first that fits is taken.
    """
    try:
        yield
    except ApiError as error:
        path = error.param or ""
        name = next((name for begin, name in names.items() if path.startswith(begin)), path)
        if name != path:
            error.param, error.message = name, error.message.replace(path, name, 1)
        raise


_CODES = {
    "missing": "missing_required_parameter",
    "extra_forbidden": "unsupported_parameter",
    "literal_error": "unsupported_value",
    "too_short": "invalid_value",
    "string_too_short": "invalid_value",
    "less_than_equal": "invalid_value",
    "greater_than_equal": "invalid_value",
}
"""Our code by pydantic's type of a problem; the others are ``invalid_type``."""


def api_error(error: BaseException) -> ApiError:
    """Return the answer for an exception of the pipeline, or of our own code (which is logged)."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, ValidationError):
        return _of_validation(error)
    if isinstance(error, InvalidRequestError):
        text = str(error.message) if isinstance(error, RequestFailedError) else str(error)
        status, code = (413, "too_large") if isinstance(error, RequestTooLargeError) else (400, "invalid_value")
        found = _PATH.match(text)
        if found is None:
            return ApiError(status, text, code=code)
        path = _of_client(found.group(1))
        return ApiError(status, path + text[found.end(1) :], param=path, code=code)
    if isinstance(error, OverloadedError):
        return ApiError(429, str(error), code="overloaded", retry_after=error.retry_after)
    if isinstance(error, RequestTimeoutError):
        # A second attempt would take as long.
        return opaque(504, "The request was not finished in the time that it has", _explained(error), code="timeout")
    if isinstance(error, StageFailedError):
        return opaque(503, NOT_RUNNING, _explained(error), code="unit_failed", retry_after=30)
    if isinstance(error, RequestFailedError):
        if error.error_type == "StageFailedError":
            return opaque(503, NOT_RUNNING, _explained(error), code="unit_failed", retry_after=30)
        if error.error_type in _DEATHS:  # no fault of the request, and the unit comes back
            return opaque(503, RESTARTING, _explained(error), code="unit_restarting", retry_after=2)
        return opaque(500, FAILED, _explained(error), code="stage_failed")
    if isinstance(error, RequestAbortedError):
        return ApiError(499, str(error), code="request_cancelled")
    if isinstance(error, ClientDisconnect):
        return ApiError(499, "The client has closed the connection.", code="request_cancelled")
    return opaque(500, FAILED, message_of(error, with_type=True), code="internal_error", cause=error)


FAILED = "The server failed"
RESTARTING = "A part of the server that the request needs is starting again; try again in a moment"
NOT_RUNNING = "A part of the server that the request needs does not run"
"""Texts of failures that are not the client's."""


def opaque(
    status: int,
    text: str,
    why: str,
    *,
    code: str,
    retry_after: float | None = None,
    cause: BaseException | None = None,
) -> ApiError:
    """Return an answer that says nothing of the inside of the server but an id, by which the log says all of it.

    Args:
        why: for the log.
        cause: its traceback is logged too.
    """
    identity = secrets.token_hex(8)
    logger.log(logging.ERROR if status == 500 else logging.WARNING, "id %s: %s", identity, why, exc_info=cause)
    return ApiError(status, f"{text}; id {identity}", code=code, retry_after=retry_after)


def _explained(error: OmniError) -> str:
    """Return what is known of a failure in the pipeline: the message, and the traceback of the stage."""
    return "\n".join([str(error), *getattr(error, "__notes__", ())])


def _of_validation(error: ValidationError) -> ApiError:
    """Return the first problem of a request's body, with its path."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    path = ""
    for each in first["loc"]:
        if isinstance(each, int):
            path += f"[{each}]"
        elif re.fullmatch(r"[a-z_]\w*", each := each[:PARAM_CHARACTERS]) and (
            not path or each not in ("str", "list", "dict")
        ):  # no branch of a union
            path += f".{each}" if path else each
    if first["type"] == "json_invalid":
        return invalid(
            f"The body is not valid JSON: {first['msg'].removeprefix('Invalid JSON: ')}", code="invalid_json"
        )
    code = _CODES.get(first["type"], "invalid_type")
    return invalid(f"{path or 'body'}: {first['msg'][:1].lower()}{first['msg'][1:]}", path or None, code)
