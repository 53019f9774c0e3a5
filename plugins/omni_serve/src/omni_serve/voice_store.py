"""Uploaded voices and consents: a folder for each, named by an id that we make, written as a whole or not at all.

What clients call a voice is data inside; it never becomes a part of a path.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import cattrs
from attrs import asdict, define, field, frozen

from omni_core.api import ConfigError
from omni_serve.auth import Key, write_atomically
from omni_serve.errors import ApiError

_ID = re.compile(r"(?:voice|cons)_[0-9a-f]{24}")

NAME = re.compile(r"\w[\w .,'()-]{0,63}")
"""A name that clients may give."""

MOST = 200
"""Voices, and consents, that one owner may have."""


@frozen(kw_only=True)
class Item:
    """An upload: what OpenAI calls it in ``object``, an id, the name that its owner has given, and its folder."""

    object: ClassVar[str]

    id: str
    name: str
    created_at: int
    owner: str = ""
    folder: Path = field(default=Path(), repr=False)

    def as_openai(self) -> dict[str, Any]:
        """Return OpenAI's object."""
        return {"id": self.id, "object": self.object, "created_at": self.created_at, "name": self.name}


@frozen(kw_only=True)
class Voice(Item):
    """An uploaded voice: a recording, and the words that are said in it."""

    object = "audio.voice"

    text: str | None = None
    consent: str | None = None

    def reference(self) -> dict[str, Any]:
        """Return it as a reference of a request. Pipelines cache voices by their content."""
        made: dict[str, Any] = {"data": (self.folder / "recording").read_bytes()}
        return made if self.text is None else {**made, "text": self.text}

    def as_openai(self) -> dict[str, Any]:
        """Return OpenAI's ``audio.voice`` object."""
        return {**super().as_openai(), "type": "audio_sample"}


@frozen(kw_only=True)
class Consent(Item):
    """The recording in which a speaker agrees to the use of the voice."""

    object = "audio.voice_consent"

    language: str

    def as_openai(self) -> dict[str, Any]:
        """Return OpenAI's ``audio.voice_consent`` object."""
        return {**super().as_openai(), "language": self.language}


def owns(key: Key, item: Item) -> bool:
    """Return whether a key may use and change an item: it is its own, or the key is an operator's.

    A server without keys has one owner. What was uploaded then belongs to operators once there are keys.
    """
    return item.owner == key.name or key.may("admin")


@define
class VoiceStore:
    """The folder of a server's voices and consents. Several servers must not share it."""

    path: Path
    voices: dict[str, Voice] = field(factory=dict, init=False)
    consents: dict[str, Consent] = field(factory=dict, init=False)
    changing: asyncio.Lock = field(factory=asyncio.Lock, init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        """Read what is there; leave out folders of writes that were interrupted."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = sorted(self.path.iterdir())
        except OSError as error:
            raise ConfigError(f"voices_dir: {self.path} cannot be used: {error.strerror}") from error
        for folder in found:
            if folder.name.startswith(".new-"):
                shutil.rmtree(folder, ignore_errors=True)
            elif _ID.fullmatch(folder.name) and (folder / "voice.json").is_file():
                self._read(folder)

    def _read(self, folder: Path) -> None:
        try:
            data = json.loads((folder / "voice.json").read_bytes())
            data["folder"] = folder
            if folder.name.startswith("voice_"):
                self.voices[folder.name] = cattrs.structure(data, Voice)
            else:
                self.consents[folder.name] = cattrs.structure(data, Consent)
        except Exception as error:
            raise ConfigError(f"voices_dir: {folder}/voice.json cannot be read: {error}; remove the folder") from error

    def find(self, name: str, key: Key | None = None) -> Voice | None:
        """Return a voice by its id or its name, of those that ``key`` may use."""
        mine = self.voices_of(key)
        return next(
            (each for each in mine if each.id == name), next((each for each in mine if each.name == name), None)
        )

    def voices_of(self, key: Key | None) -> list[Voice]:
        """Return the voices that a key may use; ``None``: all."""
        return [each for each in self.voices.values() if key is None or owns(key, each)]

    def consents_of(self, key: Key) -> list[Consent]:
        """Return the consents that a key may use."""
        return [each for each in self.consents.values() if owns(key, each)]

    def check_room(self, items: Mapping[str, Item], owner: str) -> None:
        """Raise ApiError 403 if an owner has as many of these items as one may have."""
        if sum(each.owner == owner for each in items.values()) >= MOST:
            raise ApiError(
                403, f"The key {owner!r} has {MOST} of these, its limit; delete some.", code="too_many_voices"
            )

    def add_voice(self, name: str, recording: bytes, text: str | None, consent: str | None, owner: str) -> Voice:
        """Keep a voice."""
        voice = Voice(**self._new("voice", name, owner), text=text, consent=consent)
        self._write(voice, recording)
        self.voices[voice.id] = voice
        return voice

    def add_consent(self, name: str, language: str, recording: bytes, owner: str) -> Consent:
        """Keep a consent."""
        consent = Consent(**self._new("cons", name, owner), language=language)
        self._write(consent, recording)
        self.consents[consent.id] = consent
        return consent

    def _new(self, kind: str, name: str, owner: str) -> dict[str, Any]:
        identity = f"{kind}_{secrets.token_hex(12)}"
        made = {"id": identity, "name": name, "created_at": int(time.time())}
        return {**made, "owner": owner, "folder": self.path / identity}

    def rename(self, consent: Consent) -> None:
        """Write a consent again, under another name."""
        write_atomically(consent.folder / "voice.json", _described(consent))
        self.consents[consent.id] = consent

    def remove(self, item: Item) -> None:
        """Delete a voice or a consent; first out of sight as a whole, then its files."""
        hidden = self.path / f".new-{item.id}"
        os.replace(item.folder, hidden)
        self.voices.pop(item.id, None)
        self.consents.pop(item.id, None)
        shutil.rmtree(hidden, ignore_errors=True)

    def _write(self, item: Item, recording: bytes) -> None:
        temporary = Path(tempfile.mkdtemp(dir=self.path, prefix=".new-"))
        try:
            (temporary / "recording").write_bytes(recording)
            (temporary / "voice.json").write_bytes(_described(item))
            os.replace(temporary, item.folder)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise


def _described(item: Item) -> bytes:
    return json.dumps({key: value for key, value in asdict(item).items() if key != "folder"}).encode()
