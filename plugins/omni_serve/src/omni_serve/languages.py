"""Languages that clients name: codes of ISO 639-1, and those of BCP 47 that begin with one (``zh-TW``)."""

from __future__ import annotations

from omni_core.api import Parameter, shown
from omni_serve.errors import ApiError, invalid

_CODES = (
    "aa ab ae af ak am an ar as av ay az ba be bg bh bi bm bn bo br bs ca ce ch co cr cs cu cv cy da de dv dz ee el en eo es et eu fa "
    "ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz ia id ie ig ii ik io is it iu iw ja jv jw ka kg ki kj kk kl km kn "
    "ko kr ks ku kv kw ky la lb lg li ln lo lt lu lv mg mh mi mk ml mn mr ms mt my na nb nd ne ng nl nn no nr nv ny oc oj om or os pa "
    "pi pl ps pt qu rm rn ro ru rw sa sc sd se sg sh si sk sl sm sn so sq sr ss st su sv sw ta te tg th ti tk tl tn to tr ts tt tw ty "
    "ug uk ur uz ve vi vo wa wo xh yi yo za zh zu yue haw cmn fil ast ceb"
)

CODES = frozenset(_CODES.split())
"""The codes of ISO 639-1, and longer ones that recognisers are known to take."""


def spoken(value: str, declared: Parameter | None, where: str = "language") -> str:
    """Return the language of a recording, as its recogniser knows it: of ``en-US`` it may know ``en``.

    Args:
        declared: the recogniser's parameter; ``None``: it has none, and is told by words.

    Raises:
        ApiError: 400, no such language is known.
    """
    base = value.replace("_", "-").partition("-")[0].casefold()
    if declared is None or not declared.choices:
        if base not in CODES:
            message = f"{where}: no language has the code {shown(value)}; give one of ISO 639-1, such as 'en'"
            raise _unknown(message, where)
        return value
    known = {each.casefold(): each for each in declared.choices}
    found = known.get(value.casefold()) or known.get(base)
    if found is None:
        raise _unknown(f"{where}: must be {declared.expected}, is {shown(value)}", where)
    return found


def _unknown(message: str, where: str) -> ApiError:
    return invalid(message, where, "invalid_value")
