"""API keys: made at random, kept as hashes, compared in constant time, each with scopes and limits of its own.

Keys are random strings of 256 bits, so one round of SHA-256 is as good as a slow hash: there is nothing to guess.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import cattrs
from attrs import asdict, define, evolve, field, frozen

from omni_core.api import ConfigError, did_you_mean

SCOPES = ("inference", "voices", "metrics", "admin")
"""``inference``: every endpoint that answers. ``voices``: upload and delete voices. ``metrics``: ``/metrics``. ``admin``: all of the
operator's endpoints."""

PREFIX = "sk-omni-"

_IN_SUBPROTOCOL = "openai-insecure-api-key."

LENT = 100
"""Short-lived keys that one owner may have at once."""


@frozen(kw_only=True)
class KeyLimits:
    """Limits of one key; ``None``: none.

    Attributes:
        requests_per_minute: and how many at once after a pause.
        tokens_per_minute: of its prompts and answers, as the pipeline counts them.
        audio_seconds_per_minute: of speech that is made for it, and of recordings that are written down.
        concurrent: requests that run or wait at once.
        share: its part of the pipeline's capacity relative to other keys when requests wait.
    """

    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    audio_seconds_per_minute: float | None = None
    concurrent: int | None = None
    share: float = 1.0


@frozen(kw_only=True)
class Key:
    """A key as it is kept: everything but the key."""

    name: str
    digest: str = field(repr=False)
    scopes: tuple[str, ...] = ("inference", "voices")
    limits: KeyLimits = field(factory=KeyLimits)
    created: int = 0
    expires: float | None = None

    def may(self, scope: str) -> bool:
        """Return whether the key opens what needs ``scope``."""
        return scope in self.scopes or "admin" in self.scopes


ANYONE = Key(name="anyone", digest="", scopes=("inference", "voices", "metrics"))
"""Stands for every client of a server without keys."""


def digest(key: str) -> str:
    """Return the hash under which a key is kept."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


@define
class KeyRing:
    """The keys of a running server, and those that it has made for browsers. Empty and without a file: no key is asked for."""

    keys: dict[str, Key] = field(factory=dict)
    path: Path | None = None
    _given: dict[str, Key] = field(factory=dict, init=False, repr=False)
    _short_lived: dict[str, Key] = field(factory=dict, init=False, repr=False)

    @classmethod
    def open(cls, path: Path | None = None, given: Mapping[str, str] | None = None) -> KeyRing:
        """Read a file of keys and add those given in clear.

        Raises:
            ConfigError: the file is missing or malformed, or a key is short.
        """
        ring = cls(dict(_read(path)) if path is not None else {}, path)
        for name, key in (given or {}).items():
            if len(key) < 8:
                raise ConfigError(f"the API key {name!r} has {len(key)} characters; at least 8 are needed")
            scopes = ("inference", "voices", "metrics")
            ring._given[name] = Key(name=name, digest=digest(key), scopes=scopes, created=int(time.time()))
        ring.keys |= ring._given
        return ring

    def reload(self) -> None:
        """Read the file again: keys that are no longer in it open nothing, nor do short-lived ones that they have lent.

        Raises:
            ConfigError: there is no file, or it is malformed; the keys are as before.
        """
        if self.path is None:
            raise ConfigError("there is no file of keys; the server was started without --keys")
        self.keys = {**dict(_read(self.path)), **self._given}
        lent = {name: key for name, key in self._short_lived.items() if key.name in self.keys}
        self._short_lived = {name: evolve(key, limits=self.keys[key.name].limits) for name, key in lent.items()}

    @property
    def is_open(self) -> bool:
        """Return whether requests need no key."""
        return not self.keys and self.path is None

    def find(self, given: str) -> Key | None:
        """Return the key that ``given`` is. Every kept key is compared, so that the time tells nothing."""
        mine, found = digest(given), None
        for key in (*self.keys.values(), *self._short_lived.values()):
            if hmac.compare_digest(key.digest, mine):
                found = key
        if found is not None and found.expires is not None and found.expires <= time.time():
            self._short_lived.pop(found.digest, None)
            return None
        return found

    def add(self, name: str, scopes: Iterable[str] = ("inference", "voices"), limits: KeyLimits | None = None) -> str:
        """Make a key, keep its hash, and return the key; nobody can read it again.

        Raises:
            ConfigError: the name is taken, or a scope is unknown.
        """
        if name in self.keys:
            raise ConfigError(f"there is a key called {name!r} already; remove it first, or choose another name")
        for scope in scopes:
            if scope not in SCOPES:
                raise ConfigError(f"no scope is called {scope!r}{did_you_mean(scope, SCOPES)}")
        secret = PREFIX + secrets.token_urlsafe(32)
        self.keys[name] = Key(
            name=name,
            digest=digest(secret),
            scopes=tuple(scopes),
            limits=limits or KeyLimits(),
            created=int(time.time()),
        )
        return secret

    def lend(self, owner: Key, seconds: float, most: int = LENT) -> tuple[str, float]:
        """Make a short-lived key for inference with its owner's name and limits; return it and the time when it expires.

        Of more than ``most`` of the same owner, the oldest ends.
        """
        now = time.time()
        for ended in [each for each in self._short_lived.values() if (each.expires or 0) <= now]:
            del self._short_lived[ended.digest]
        mine = [each.digest for each in self._short_lived.values() if each.name == owner.name]
        for each in mine[: max(0, len(mine) + 1 - most)]:
            del self._short_lived[each]
        secret = "ek_" + secrets.token_urlsafe(32)
        key = evolve(owner, digest=digest(secret), scopes=("inference",), expires=now + seconds)
        self._short_lived[key.digest] = key
        return secret, now + seconds

    def save(self) -> None:
        """Write the file as a whole, readable by its owner only."""
        assert self.path is not None
        kept = [asdict(key) for key in self.keys.values()]
        write_atomically(self.path, json.dumps({"keys": kept}, indent=1).encode())


@frozen
class _File:
    """The content of a file of keys."""

    keys: list[Key]


def _read(path: Path) -> Iterable[tuple[str, Key]]:
    try:
        keys = cattrs.structure(json.loads(path.read_bytes()), _File).keys
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; `omni keys add NAME --file {path}` makes it") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except cattrs.BaseValidationError as error:
        problems = "; ".join(cattrs.transform_error(error, path="file"))
        raise ConfigError(
            f"{path}: not a file of keys: {problems}; `omni keys add NAME --file ...` writes one"
        ) from error
    except (ValueError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{path}: not a file of keys, which is JSON: {error}; `omni keys add NAME --file ...` writes one"
        ) from error
    return [(key.name, key) for key in keys]


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that readers see the old or the new content, never a part; mode 0600."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def presented(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """Return the key of a request: ``Authorization: Bearer``, or a browser's WebSocket subprotocol."""
    for name, value in headers:
        if name == b"authorization" and value[:7].lower() == b"bearer ":
            return value[7:].strip().decode("latin-1")
        if name == b"sec-websocket-protocol":
            for each in value.decode("latin-1").split(","):
                if each.strip().startswith(_IN_SUBPROTOCOL):
                    return each.strip().removeprefix(_IN_SUBPROTOCOL)
    return None


def subprotocol(offered: Sequence[str]) -> str | None:
    """Return the subprotocol that a WebSocket is accepted with: never one that may hold a key, which proxies would log.

    Browsers end a connection that is answered with none of theirs, so they offer another one beside the key: ``realtime``.
    """
    named = [each for each in offered if not each.casefold().startswith((_IN_SUBPROTOCOL, "sk-", "ek_"))]
    return "realtime" if "realtime" in named else next(iter(named), None)


def describe(key: Key) -> dict[str, Any]:
    """Return what may be shown of a key."""
    return {"name": key.name, "scopes": list(key.scopes), "created": key.created, "limits": asdict(key.limits)}
