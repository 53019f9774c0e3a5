"""The origin of a problem: finds where the values that a message names were written, so that the message can begin with it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any


def located(line: str, origins: Mapping[str, tuple[Any, ...]]) -> tuple[str, str]:
    """Put before a problem where its values were written, as far as that is known; return it with the path in ``origins``.

    Its values are that of the path with which it begins, those that it names as ``stages[NAME].FIELD``, and the processes in which
    the stages of ``process 'NAME'`` were put.
    """
    match = re.match(r"(?:(stages|relays)\[([^\]]*)\])?\.?([\w.]*)", line)
    assert match is not None  # it may be empty
    kind, name, rest = match.groups()
    path = ".".join(each for each in (kind if kind == "relays" else None, name, rest) if each)
    text = re.sub(r"^(?:stages\[([^\]]*)\]|(relays)\[([^\]]*)\])", r"\1\2.\3" if kind == "relays" else r"\1", line)
    longest_first = sorted(origins, key=len, reverse=True)
    # Keys may hold any character, so known paths are looked for in the line, not the line's path among them.
    around = (each for each in longest_first if each and re.match(re.escape(each) + r"(?:[.:\[ ]|$)", text))
    below = (each for each in longest_first if path and rest and each.startswith(f"{path}."))
    known = next((each for found in (around, below) for each in found), None)
    group = re.match(r"process '(.*?)':", line)
    mentioned = [f"{stage}.{name}." for stage, name in re.findall(r"(?<!^)stages\[([^\]]*)\]\.([\w.]*\w)", line)]
    named = [each for one in mentioned for each in origins if f"{each}.".startswith(one)]
    named += [each for each in origins if group and each.endswith(".process") and origins[each][-1] == group[1]]
    found = [origins[each][0] for each in (known, *named) if each is not None]
    if not found or line.startswith(found[0]):
        return line, known or path
    return f"{', '.join(dict.fromkeys(found))}: {line}", known or path
