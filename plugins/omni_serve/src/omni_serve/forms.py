"""Multipart bodies: bounded uploads, and their description in the OpenAPI document."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from typing import Any

from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException
from starlette.requests import Request

from omni_core.api import shown
from omni_serve.errors import ApiError, invalid
from omni_serve.parameters import ignore_parameter

FIELDS = 64
_FIELD_BYTES = 1 << 20
_TYPED_CHARACTERS = 10_000
"""The longest field of a form that is read as a number, a truth value, or a list of them."""


async def read_form(request: Request) -> FormData:
    """Return the form of a request. Raises ApiError 400 if it is none."""
    kind = request.headers.get("content-type", "")
    if not kind.startswith(("multipart/form-data", "application/x-www-form-urlencoded")):
        raise invalid(
            f"The body must be a form (content-type: multipart/form-data), is {shown(kind)}", code="invalid_form"
        )
    try:
        return await request.form(max_files=4, max_fields=FIELDS, max_part_size=_FIELD_BYTES)
    except (MultiPartException, HTTPException, ValueError, KeyError) as error:
        problem = getattr(error, "message", None) or getattr(error, "detail", None) or str(error)
        raise invalid(f"The form cannot be read: {problem}", code="invalid_form") from None


def check_fields(form: FormData, known: Iterable[str], file: str, several: Collection[str] = ()) -> None:
    """Raise ApiError 400 for a field that is there twice, or is a file though it is not the one called ``file``; ignore unknown ones.

    ``several``: the fields that may be there more than once.
    """
    names, known = [name for name, _ in form.multi_items()], list(known)
    for name, value in form.multi_items():
        if name not in known:
            several_of = name.removesuffix("[]")
            ignore_parameter(several_of, [value] if name != several_of else value, known)
            continue
        if name not in several and names.count(name) > 1:
            raise invalid(f"{name}: given twice", name, "invalid_value")
        if name != file and isinstance(form[name], UploadFile):
            raise invalid(f"{name}: must be text, is a file", name, "invalid_type")


async def upload(file: UploadFile, field: str, most_mib: float) -> bytes:
    """Return the content of an uploaded file. Raises ApiError: 413, it is larger; 400, it is empty."""
    data = await file.read(int(most_mib * 2**20) + 1)
    if len(data) > most_mib * 2**20:
        raise ApiError(413, f"{field}: over the limit of {most_mib:g} MiB", code="media_too_large", param=field)
    if not data:
        raise invalid(f"{field}: the file is empty", field, "invalid_value")
    return data


def typed(name: str, value: str, kind: str) -> Any:
    """Return a form's text as a value of a parameter's type: of numbers and truth values as JSON writes them. Raises ApiError 400."""
    if kind == "string":
        return value
    try:
        return json.loads(value if len(value) <= _TYPED_CHARACTERS else "")
    except (ValueError, RecursionError):
        raise invalid(f"{name}: must be of the type {kind}, is {shown(value)}", name, "invalid_type") from None


def form_schema(fields: dict[str, str], required: list[str]) -> dict[str, Any]:
    """Return what the OpenAPI document says about a form: its fields and their types, ``binary`` for a file."""
    properties = {
        name: {"type": "string", "format": "binary"} if kind == "binary" else {"type": kind}
        for name, kind in fields.items()
    }
    form = {"type": "object", "properties": properties, "required": required}
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": form}}}}
