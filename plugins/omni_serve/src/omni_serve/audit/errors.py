"""Checks of errors: their status, their form, and that they name what is wrong."""

from __future__ import annotations

from typing import Any

import httpx2

from omni_serve.audit.subject import CHAT, IMAGES, SPEECH, Fault, NotOffered, Subject, message_of

NO_SUCH = "omni-audit-no-such-name"

_NEEDED = {CHAT: "messages", SPEECH: "input", IMAGES: "prompt"}
"""The key without which there is no request, by path."""


def in_form(answer: httpx2.Response, status: int, *, names: str | None = None, code: bool = False) -> dict[str, Any]:
    """Return the error of an answer.

    Raises:
        Fault: another status, or not ``{"error": {"message", "type", "param", "code"}}``; ``names`` is neither its param nor in its
            message; it has no ``code``.
    """
    if answer.status_code != status:
        raise Fault(f"answers {answer.status_code} instead of {status}: {message_of(answer)}")
    try:
        error = answer.json()["error"]
        missing = [each for each in ("message", "type", "param", "code") if each not in error]
        message = error["message"]
    except (ValueError, KeyError, TypeError):
        raise Fault(f"{status}, but the body is not {{'error': {{'message', ...}}}}: {answer.text[:100]!r}") from None
    if missing or not isinstance(message, str) or not message:
        raise Fault(f"{status}, but its error lacks {', '.join(missing) or 'a message'}")
    if names is not None and names not in str(error["param"]) and names not in message:
        raise Fault(f"{status}, but neither param nor message names {names!r}: {message[:100]}")
    if code and not error["code"]:
        raise Fault(f"{status}, but without a code: {message[:100]}")
    found: dict[str, Any] = error
    return found


async def unknown_model(subject: Subject) -> str:
    """Ask for a model that is not there."""
    path, body = subject.any_request()
    error = in_form(await subject.remote.http.post(path, json={**body, "model": NO_SUCH}), 404, code=True)
    return f"404 {error['code']}"


async def missing_key(subject: Subject) -> str:
    """Leave out what a request needs."""
    path, body = subject.any_request()
    name = _NEEDED[path]
    error = in_form(await subject.remote.http.post(path, json={"model": body["model"]}), 400, names=name)
    return f"400, param {error['param']!r}, code {error['code']!r}"


async def wrong_type(subject: Subject) -> str:
    """Send a text where a list or an object belongs."""
    path, body = subject.any_request()
    name = _NEEDED[path]
    value: Any = "not a list" if path == CHAT else {"not": "a text"}
    error = in_form(await subject.remote.http.post(path, json={**body, name: value}), 400, names=name)
    return f"400, param {error['param']!r}, code {error['code']!r}"


async def unknown_parameter(subject: Subject) -> str:
    """Send a parameter that nobody knows: it must not be ignored in silence."""
    path, body = subject.any_request()
    name = "omni_audit_no_such_parameter"
    answer = await subject.remote.http.post(path, json={**body, name: 1})
    if answer.status_code == 200:
        raise Fault("ignores it: a misspelt parameter would go unnoticed")
    in_form(answer, 400, names=name)
    return "400, and the error names it"


async def bad_json(subject: Subject) -> str:
    """Send half a document."""
    path, _ = subject.any_request()
    headers = {"content-type": "application/json"}
    in_form(await subject.remote.http.post(path, content=b'{"model": ', headers=headers), 400)
    return "400"


async def unknown_route(subject: Subject) -> str:
    """Ask for a path that is not there."""
    in_form(await subject.remote.http.get(f"/v1/{NO_SUCH}"), 404)
    return "404 in the same form"


async def broken_picture(subject: Subject) -> str:
    """Send a picture that is none."""
    subject.need_chat()
    url = {"url": "data:image/png;base64,bm90IGEgcGljdHVyZQ=="}
    content = [{"type": "image_url", "image_url": url}, {"type": "text", "text": subject.prompt}]
    body = subject.chat_body(messages=[{"role": "user", "content": content}])
    answer = await subject.remote.http.post(CHAT, json=body)
    if answer.status_code == 200:
        raise Fault("answers as if it had seen a picture")
    error = in_form(answer, 400)
    return f"400, param {error['param']!r}"


async def wrong_key(subject: Subject) -> str:
    """Send a key that is not valid."""
    async with subject.remote.without_key() as anybody:
        if (await anybody.get("/v1/models")).status_code == 200:
            raise NotOffered("the server asks for no key")
        path, body = subject.any_request()
        headers = {"authorization": f"Bearer {NO_SUCH}"}
        error = in_form(await anybody.post(path, json=body, headers=headers), 401)
        in_form(await anybody.post(path, json=body), 401)
    return f"401, code {error['code']!r}"
