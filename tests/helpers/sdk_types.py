"""Compares data with a type of OpenAI's SDK, which reads everything and complains of nothing: names what is missing, wrong or further."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from openai import BaseModel
from pydantic import TypeAdapter, ValidationError


def differences(text: str | bytes, kind: Any) -> set[str]:
    """Return where JSON is not of a type: ``Type.field`` for a further field, a path and what is wrong with it for others."""
    try:
        value = _adapter(kind).validate_json(text, strict=True)
    except ValidationError as error:
        # Of a union every member complains: those of another `type` are left out.
        found = {f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()}
        return {each for each in found if ".type: Input should be" not in each} or found
    return set(_further(value))


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _further(value: Any) -> Iterator[str]:
    if isinstance(value, BaseModel):
        for name in value.model_extra or {}:
            yield f"{type(value).__name__}.{name}"
        for name in value.model_fields_set & type(value).model_fields.keys():
            yield from _further(getattr(value, name))
    elif isinstance(value, list):
        for each in value:
            yield from _further(each)
