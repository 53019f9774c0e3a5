"""Reads what a request holds the answer's text to: OpenAI's ``response_format``, vLLM's ``structured_outputs`` and ``guided_*``, and calls
that must be made, in the form that pipelines declare (:mod:`omni_core.structured`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter, ValidationError

from omni_core.api import STRUCTURED, Interface, shown
from omni_serve.errors import ApiError, invalid
from omni_serve.ignored import check_fields
from omni_serve.json_input import check_values
from omni_serve.tool_formats import Written

FORMAT, OUTPUTS = "response_format", "structured_outputs"

_KINDS = {
    "json": "json_schema",
    "regex": "regex",
    "choice": "choice",
    "grammar": "grammar",
    "json_object": "json_object",
}
"""Kinds by their names in ``structured_outputs``."""

_GUIDED = {f"guided_{name}": name for name in _KINDS}

_ANY_OBJECT = {"type": "object"}

_SCHEMA = TypeAdapter(dict[str, Any])

_WHITE = "[ \\t\\r\\n]{1,32}"


def take_structured(interface: Interface, given: dict[str, Any]) -> tuple[dict[str, Any] | None, str]:
    """Take the fields that say what a text must be out of a request's further keys.

    Returns:
        The parameter ``structured`` of the pipeline, ``None`` if the text is free, and the client's field for it.

    Raises:
        ApiError: 400, a field is malformed, there are two, or the pipeline does not honour it.
    """
    found: list[tuple[str, str, Any]] = []
    form = given.get(FORMAT)
    if form is not None and form != {"type": "text"}:
        found.append((FORMAT, *_of_format(form)))
    outputs = given.get(OUTPUTS)
    if outputs is not None:
        if not isinstance(outputs, Mapping):
            raise invalid(f"{OUTPUTS}: must be a mapping", OUTPUTS, "invalid_type")
        check_fields(outputs, _KINDS, OUTPUTS)
        found += [(OUTPUTS, _KINDS[name], outputs[name]) for name in _KINDS if outputs.get(name) not in (None, False)]
    found += [(field, _KINDS[_GUIDED[field]], given[field]) for field in _GUIDED if given.get(field) is not None]
    if not found:
        for name in (FORMAT, OUTPUTS):
            given.pop(name, None)
        return None, FORMAT
    field, kind, value = found[0]
    if len(found) > 1:
        other = found[1][0]
        raise invalid(f"{other}: the text is held to {field} already; give one", other, "invalid_value")
    if given.get(STRUCTURED) is not None:
        raise invalid(f"{field}: given twice, here and as {STRUCTURED}", field, "invalid_value")
    if not _reads(interface):
        names = {"type": "text"} if field == FORMAT else "nothing"
        problem = f"only {names} is supported here: this pipeline holds its text to no structure, is {shown(value)}"
        raise invalid(f"{field}: {problem}", field, "unsupported_value")
    if interface.structured and kind not in interface.structured:
        kinds = ", ".join(interface.structured)
        raise invalid(f"{field}: this pipeline holds its text to {kinds} only", field, "unsupported_value")
    for name in (FORMAT, OUTPUTS, *_GUIDED):
        given.pop(name, None)
    return {kind: _value(kind, value, field)}, field


def fields_of(interface: Interface, structured: Mapping[str, Any] | None, field: str) -> dict[str, str]:
    """Return the client's field by the paths of the parameter in the errors of a pipeline; see :func:`omni_serve.errors.placed`."""
    group = interface.plain_group
    if structured is None or group is None:
        return {}
    path = f"stage_sampling.{group.name}.{STRUCTURED}"
    return {f"{path}.{next(iter(structured))}": field, path: field}


def _reads(interface: Interface) -> bool:
    """Return if the pipeline has the parameter, of whatever kind: its stage says what it lacks."""
    group = interface.plain_group
    return group is not None and any(each.name == STRUCTURED for each in group.parameters)


def _of_format(form: Any) -> tuple[str, Any]:
    kind = form.get("type") if isinstance(form, Mapping) else None
    if kind == "json_object":
        return "json_object", {}
    if kind != "json_schema":
        known = "must be {'type': 'text'}, {'type': 'json_object'} or {'type': 'json_schema', 'json_schema': {...}}"
        raise invalid(f"{FORMAT}: {known}, is {shown(form)}", FORMAT, "invalid_value")
    schema = form.get("json_schema")
    if not isinstance(schema, Mapping) or not isinstance(schema.get("schema"), Mapping):
        where = f"{FORMAT}.json_schema"
        raise invalid(f"{where}: must be {{'name': ..., 'schema': {{...}}}}", where, "invalid_type")
    return "json_schema", {"schema": schema["schema"], "strict": schema.get("strict") is True}


def _value(kind: str, value: Any, field: str) -> Any:
    if kind == "json_object":
        return {}
    if kind != "json_schema" or field == FORMAT:
        return value
    if isinstance(value, str):
        try:
            check_values(value.encode(), math.inf, math.inf)
            value = _SCHEMA.validate_json(value)
        except (ApiError, ValidationError):
            raise invalid(f"{field}: is no JSON schema", field, "invalid_value") from None
    return {"schema": value}


def calls_grammar(
    written: Written, tools: Sequence[Mapping[str, Any]], strict: Sequence[str], *, parallel: bool, answer: Any = None
) -> str:
    """Return the grammar of a reply that is calls of tools.

    Args:
        written: how the model writes them.
        tools: that may be called, in OpenAI's form.
        strict: the names of those whose arguments match their schema in every keyword.
        parallel: there may be several calls.
        answer: a value of ``json_schema`` or ``json_object``, which the reply may be instead.
    """
    lines, names = [], []
    for number, tool in enumerate(tools):
        function = tool["function"]
        name = function["name"]
        schema = {"type": "object", **(function.get("parameters") or {"properties": {}, "additionalProperties": False})}
        names.append(f"call_{number}")
        head = written.before + name + written.middle
        lines.append(f"call_{number}: {_literal(head)} arguments_{number} {_literal(written.after)}")
        lines.append(f"arguments_{number}: {_json(schema, strict=name in strict)}")
    begin, end, between = (_literal(each) if each else "" for each in (written.begin, written.end, written.between))
    calls = f"{begin} call {f'({between} call)* ' if parallel else ''}{end}".strip()
    lines.append(f"call: {' | '.join(names)}")
    if answer is not None:
        lines.append(f"answer: {_json(answer.get('schema', _ANY_OBJECT), strict=answer.get('strict') is True)}")
    start = f"start: calls{' | answer' if answer is not None else ''}\ncalls: {calls}"
    return "\n".join([start, *lines]) + "\n"


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _json(schema: Mapping[str, Any], *, strict: bool) -> str:
    options = {"whitespace_pattern": _WHITE, "lenient": not strict}
    return f"%json {json.dumps({**schema, 'x-guidance': options})}"
