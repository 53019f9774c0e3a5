"""Functions of the recogniser's stage: the recordings of a request are heard one by one, and those of earlier turns only once.

What was heard is kept in the process of the stage. After its restart, it is heard again.
"""

from __future__ import annotations

from collections import OrderedDict
from hashlib import blake2b
from typing import Any

from attrs import evolve

from omni_core.api import OmniRequest, StagePayload

KEPT = 1000
"""Transcripts, and requests in progress, that are remembered."""

_heard: OrderedDict[str, str] = OrderedDict()
"""Texts by the key of a recording."""

_asked: OrderedDict[str, list[tuple[str, str | None]]] = OrderedDict()
"""By request, the key of each recording, with its text if that was known."""


def if_wanted(request: OmniRequest) -> list[str] | None:
    """Return the stages whose results the client gets: none, unless it has asked for the transcript."""
    return None if request.modalities else []


def each(payload: StagePayload) -> dict[str, StagePayload] | None:
    """Return the requests in which the recordings of one are heard; ``None``: it is heard as it is. Those that are known are left out."""
    found = (payload.request.inputs or {}).get("messages", [])
    keys = [_key(message, payload, number) for number, message in enumerate(found)]
    _keep(_asked, payload.request_id, [(key, _heard.get(key)) for key in keys])
    if len(found) < 2:
        return None
    new = {number for number, (_, text) in enumerate(_asked[payload.request_id]) if text is None} or {len(found) - 1}
    return {
        _role(number): evolve(payload, request=evolve(payload.request, inputs={"messages": [found[number]]}))
        for number in sorted(new)
    }


def texts(payload: StagePayload) -> dict[str, list[str]]:
    """Return the text of each recording of a request, by what the recogniser has written."""
    asked = _asked.pop(payload.request_id, [])
    if not isinstance(payload.data, dict):
        found = [payload.data.text.strip()]
    else:
        new = {role: transcript.text.strip() for role, transcript in payload.data.items()}
        found = [new.get(_role(number), text) or "" for number, (_, text) in enumerate(asked)]
    for (key, _), text in zip(asked, found, strict=False):
        _keep(_heard, key, text)
    return {"texts": found}


def _role(number: int) -> str:
    return f"recording {number + 1}"


def _key(message: dict[str, Any], payload: StagePayload, number: int) -> str:
    """Return what recordings that are heard alike have in common; of one that is no file's bytes, a name of its own."""
    data = message["content"][0].get("data")
    if not isinstance(data, bytes | bytearray | memoryview):
        return f"{payload.request_id} {number}"
    return blake2b(data).hexdigest() + repr(sorted(payload.request.params.items()))


def _keep(where: OrderedDict[str, Any], key: str, value: Any) -> None:
    where[key] = value
    where.move_to_end(key)
    if len(where) > KEPT:
        where.popitem(last=False)
