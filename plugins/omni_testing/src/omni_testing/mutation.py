"""A debug mode that detects changes of an object after it was handed to another stage of the same process.

Such objects are passed by reference and are read-only by contract. With ``OMNI_CHECK_MUTATION=1``, each is digested when it is
handed over and again when its receiver is done, which costs two passes over its bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

from attrs import frozen

from omni_core.api import OmniError
from omni_core.runtime_api import encode


class MutationError(OmniError):
    """A payload or a chunk was changed after it was handed on."""


@frozen
class Seal:
    """The digests of ``value`` as it was handed over by the stage ``source``, by path."""

    value: Any
    source: str
    marks: dict[str, bytes]

    def check(self, target: str) -> None:
        """Compare the value with what it was when it was handed to the stage ``target``.

        Raises:
            MutationError: it has changed; the message names the first path that has.
        """
        now = dict(_marks(self.value, ""))
        if now == self.marks:
            return
        places = [path for path in {**self.marks, **now} if self.marks.get(path) != now.get(path)]
        raise MutationError(
            f"the object that stage {self.source!r} handed to stage {target!r} was changed afterwards at "
            f"data{min(places, key=len)}; objects passed within a process are read-only, copy before changing"
        )


def seal(value: Any, source: str) -> Seal:
    """Digest ``value`` as it is now."""
    return Seal(value, source, dict(_marks(value, "")))


def _marks(value: Any, path: str) -> Iterator[tuple[str, bytes]]:
    """Yield every leaf's path and digest; a container's own mark is its keys or its length."""
    if isinstance(value, dict):
        yield path, repr(list(value)).encode()
        for key, child in value.items():
            yield from _marks(child, f"{path}[{key!r}]")
    elif isinstance(value, list | tuple):
        yield path, str(len(value)).encode()
        for index, child in enumerate(value):
            yield from _marks(child, f"{path}[{index}]")
    else:
        yield path, _digest(value)


def _digest(value: Any) -> bytes:
    try:
        return hashlib.blake2b(encode(value), digest_size=16).digest()
    except OmniError:
        return str(id(value)).encode()  # what cannot be encoded can only be compared by identity
