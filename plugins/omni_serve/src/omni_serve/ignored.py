"""Fields of clients that have no effect here: each is named in the header ``x-omni-ignored`` of the answer, and once in the log.

OpenAI's schema has more fields than a pipeline reads, its clients send more than that, and both get new ones every month. So an unknown
field is ignored. It is an error only where it looks like a misspelt field that is read, or where an answer that does without it
would be wrong: the places that read fields know those.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from difflib import get_close_matches

from pydantic import BaseModel

from omni_serve.errors import PARAM_CHARACTERS, invalid

logger = logging.getLogger(__name__)

HEADER = b"x-omni-ignored"

MOST = 32
"""Names in one answer. Comparing one with those that are read takes a while: further ones are not looked at."""

_CHARACTERS = 80
_LOGGED = 1000
_NEAR = 0.88
"""The similarity from which a name is taken for a misspelt one: ``temprature``, but not ``top_a``."""

_names: ContextVar[dict[str, None] | None] = ContextVar("omni_serve.ignored", default=None)
_logged: set[str] = set()


def collect() -> dict[str, None]:
    """Begin to collect the names of one request or event; they are added to what is returned."""
    names: dict[str, None] = {}
    _names.set(names)
    return names


def ignore(path: str) -> None:
    """Note that the field at ``path`` has no effect."""
    name = _plain(path)
    names = _names.get()
    if names is not None and len(names) < MOST:
        names[name] = None
    if name not in _logged and len(_logged) < _LOGGED:
        _logged.add(name)
        logger.warning("clients send %s, which has no effect here: it is ignored", name)


def check_unknown(name: str, known: Iterable[str], where: str = "") -> None:
    """Ignore a field that is not read.

    Args:
        known: the fields that are.
        where: the path of its object.

    Raises:
        ApiError: 400, it looks like one of ``known``.
    """
    path = f"{where}.{name}" if where else name
    names = _names.get() or {}
    if len(names) >= MOST or _plain(path) in names:
        return
    near = _nearest(name, known) if len(name) <= _CHARACTERS else None
    if near not in (None, name):
        raise invalid(f"{path}: there is no such field; did you mean {near!r}?", path, "unknown_parameter")
    ignore(path)


def check_fields(given: Mapping[str, object], known: Iterable[str], where: str = "") -> None:
    """Ignore the fields of an object that are not read; raises as :func:`check_unknown`. ``None`` means: not given."""
    for name, value in given.items():
        if value is not None and name not in known:
            check_unknown(name, known, where)


def check_extra(model: BaseModel, where: str = "") -> None:
    """Ignore the further fields of a model that allows them; raises as :func:`check_unknown`."""
    check_fields(model.model_extra or {}, type(model).model_fields, where)


def check_inside(model: BaseModel, where: str = "") -> None:
    """Do so for the models that are fields of this one, and for those in them."""
    for name in model.model_fields_set:
        value = getattr(model, name, None)
        path = f"{where}.{name}" if where else name
        for index, each in enumerate(value if isinstance(value, list) else [value]):
            if isinstance(each, BaseModel):
                inner = f"{path}[{index}]" if isinstance(value, list) else path
                check_extra(each, inner)
                check_inside(each, inner)


def _nearest(name: str, known: Iterable[str]) -> str | None:
    """Return which of ``known`` a name is, misspelt or written another way, such as ``maxTokens``, ``top-p`` or ``modle``."""
    by_letters = {_letters(each): each for each in known}
    letters = _letters(name)
    swaps = (letters[:at] + letters[at : at + 2][::-1] + letters[at + 2 :] for at in range(len(letters)))
    same = [by_letters[each] for each in (letters, *swaps) if each in by_letters]
    near = same or get_close_matches(name, by_letters.values(), 1, _NEAR)
    near = near or [by_letters[each] for each in get_close_matches(letters, by_letters, 1, _NEAR)]
    return near[0] if near else None


def _letters(name: str) -> str:
    return re.sub(r"[\s_-]", "", name).lower()


def _plain(path: str) -> str:
    """Return a path that may stand in a header and in the log, the same for all items of a list."""
    return (
        re.sub(r"[^\w.\[\]-]", "?", re.sub(r"\[\d+\]", "[]", path[:PARAM_CHARACTERS])[:_CHARACTERS], flags=re.ASCII)
        or "?"
    )
