"""The server under audit: what it offers, and requests that end in an answer, in a fault, or in "not offered"."""

from __future__ import annotations

import base64
import binascii
import time
from collections.abc import Mapping
from typing import Any

import httpx2
import numpy as np
import numpy.typing as npt
from attrs import define, field, frozen

from omni_serve.remote import DONE, Remote, UnreachableError, events

Samples = npt.NDArray[np.float32]

CHAT, SPEECH = "/v1/chat/completions", "/v1/audio/speech"
IMAGES, EDITS = "/v1/images/generations", "/v1/images/edits"

_FIXED: dict[str, Any] = {"seed": 7, "temperature": 0}
_TOLERANCE = 0.005


class Fault(Exception):
    """The server does something wrong."""


class NotOffered(Exception):
    """The server does not have what a check is about."""


@frozen
class Refusal:
    """An answer that is not 200. ``status`` 0: there was no need to ask."""

    status: int
    message: str

    def __str__(self) -> str:
        return f"{self.status}: {self.message}" if self.status else self.message


@define
class Subject:
    """A server and what was learned about it at the beginning.

    Attributes:
        remote, model, voice, prompt: what is asked, and whom.
        grace: seconds that a probe may take beyond its usual time after clients went away.
        chat, chat_audio, speech, images: ``None`` if it is offered, else the answer that refused it. Images, which take long or cost
            money, are asked for only where the server lists them, or offers nothing else.
        chat_fixed, speech_fixed: the sampling parameters that it accepts of a seed and temperature 0.
    """

    remote: Remote
    model: str
    voice: str
    prompt: str
    grace: float = 2.0
    chat: Refusal | None = None
    chat_audio: Refusal | None = None
    speech: Refusal | None = None
    images: Refusal | None = Refusal(0, "the model lists none among its outputs")
    chat_fixed: dict[str, Any] = field(factory=dict)
    speech_fixed: dict[str, Any] = field(factory=dict)

    @classmethod
    async def meet(cls, remote: Remote, model: str | None, voice: str | None, prompt: str, grace: float) -> Subject:
        """Find out what a server offers.

        Raises:
            UnreachableError: nobody is there, the key is refused, or nothing is offered.
        """
        found = await remote.model(model)
        capabilities = found.get("capabilities") or {}
        voices = capabilities.get("voices") or ["alloy"]
        subject = cls(remote, found["id"], voice or str(voices[0]), prompt, grace)
        subject.chat = await subject._try(CHAT, subject.chat_body())
        subject.chat_audio = await subject._try(CHAT, subject.chat_body(sound=True))
        subject.speech = await subject._try(SPEECH, subject.speech_body())
        nothing_else = None not in (subject.chat, subject.chat_audio, subject.speech)
        if nothing_else or "image" in capabilities.get("outputs", ()):
            subject.images = await subject._try(IMAGES, subject.image_body())
        if nothing_else and subject.images is not None:
            raise UnreachableError(
                f"{remote.url}: serves neither chats nor speech nor images: {CHAT} answers {subject.chat}, {IMAGES} {subject.images}"
            )
        for path, fixed in ((CHAT, subject.chat_fixed), (SPEECH, subject.speech_fixed)):
            body = subject.chat_body() if path == CHAT else subject.speech_body()
            if (subject.chat if path == CHAT else subject.speech) is None:
                for name, value in _FIXED.items():
                    if await subject._try(path, {**body, name: value}) is None:
                        fixed[name] = value
        return subject

    # --- bodies --------------------------------------------------------------------------------------------------------
    def chat_body(self, *, sound: bool = False, **more: Any) -> dict[str, Any]:
        """Return the body of a chat."""
        body: dict[str, Any] = {"model": self.model, "messages": [{"role": "user", "content": self.prompt}]}
        if sound:
            body |= {"modalities": ["text", "audio"], "audio": {"voice": self.voice, "format": "pcm16"}}
        return {**body, **more}

    def speech_body(self, **more: Any) -> dict[str, Any]:
        """Return the body of a text to speak."""
        body = {"model": self.model, "input": self.prompt, "voice": self.voice, "response_format": "pcm"}
        return {**body, **more}

    def image_body(self, **more: Any) -> dict[str, Any]:
        """Return the body of a prompt for an image."""
        return {"model": self.model, "prompt": self.prompt, **more}

    # --- what is offered -----------------------------------------------------------------------------------------------
    def need_chat(self, *, sound: bool = False) -> None:
        """Raise :class:`NotOffered` if there are no chats, or none with speech."""
        refusal = self.chat_audio if sound else self.chat
        if refusal is not None:
            raise NotOffered(f"{'chat with audio' if sound else 'chat'} is refused with {refusal}")

    def need_speech(self) -> None:
        """Raise :class:`NotOffered` if no texts are spoken."""
        if self.speech is not None:
            raise NotOffered(f"{SPEECH} is refused with {self.speech}")

    def need_images(self) -> None:
        """Raise :class:`NotOffered` if no images are made."""
        if self.images is not None:
            raise NotOffered(f"images: {self.images}")

    def any_request(self) -> tuple[str, dict[str, Any]]:
        """Return the path and the body of a request that succeeds: a chat, one with speech, a text to speak, or a prompt for an image."""
        if self.chat is None:
            return CHAT, self.chat_body()
        if self.chat_audio is None:
            return CHAT, self.chat_body(sound=True)
        return (SPEECH, self.speech_body()) if self.speech is None else (IMAGES, self.image_body())

    # --- asking --------------------------------------------------------------------------------------------------------
    async def _try(self, path: str, body: Mapping[str, Any]) -> Refusal | None:
        try:
            answer = await self.remote.http.post(path, json=body)
        except httpx2.TransportError as error:
            what = str(error) or type(error).__name__
            raise UnreachableError(f"{self.remote.url}{path}: no answer to a plain request: {what}") from None
        return None if answer.status_code == 200 else Refusal(answer.status_code, message_of(answer))

    async def post(self, path: str, body: Mapping[str, Any]) -> httpx2.Response:
        """Send a request that must succeed.

        Raises:
            Fault: it does not.
        """
        answer = await self.remote.http.post(path, json=body)
        if answer.status_code != 200:
            raise Fault(f"{path} answers {answer.status_code}: {message_of(answer)}")
        return answer

    async def stream(self, path: str, body: Mapping[str, Any], *, optional: bool = False) -> list[tuple[str, Any]]:
        """Send a request whose answer is a stream of events, and return them.

        Raises:
            Fault: the answer is no stream. NotOffered: an ``optional`` one is refused.
        """
        async with self.remote.post(path, body) as answer:
            if answer.status_code != 200:
                await answer.aread()
                kind = NotOffered if optional and answer.status_code in (400, 404, 422) else Fault
                raise kind(f"{path} answers {answer.status_code}: {message_of(answer)}")
            kind_of_body = answer.headers.get("content-type", "")
            if not kind_of_body.startswith("text/event-stream"):
                raise Fault(f"{path} streams as {kind_of_body or 'nothing'}, not as text/event-stream")
            return [each async for each in events(answer)]

    async def chunks(self, body: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the chunks of a streamed chat, without ``[DONE]``."""
        found = await self.stream(CHAT, {**body, "stream": True})
        return [data for _, data in found if data != DONE and isinstance(data, dict)]

    async def spoken_pieces(self) -> tuple[list[bytes], str]:
        """Return the pieces of a streamed speech, of events or else of the transfer, and which of them they are."""
        body = self.speech_body(**self.speech_fixed)
        try:
            found = await self.stream(SPEECH, {**body, "stream_format": "sse"}, optional=True)
            return [decoded(data["audio"]) for _, data in found if "audio" in data], "events"
        except NotOffered:
            async with self.remote.post(SPEECH, body) as answer:
                return [each async for each in answer.aiter_raw()], "transfer chunks"

    async def timed_probe(self, timeout: float | None = None) -> float:
        """Return the seconds that a short request takes."""
        path, body = self.any_request()
        begun = time.perf_counter()
        answer = await self.remote.http.post(path, json=body, timeout=timeout or self.remote.http.timeout)
        if answer.status_code != 200:
            raise Fault(f"a probe is answered with {answer.status_code}: {message_of(answer)}")
        return time.perf_counter() - begun


def message_of(answer: httpx2.Response) -> str:
    """Return the message of an error in any form, in one line."""
    try:
        body = answer.json()
        error = body.get("error", body)
        text = error.get("message") if isinstance(error, dict) and "message" in error else str(error)
    except (ValueError, AttributeError):
        text = answer.text
    return " ".join(str(text).split())[:160] or "(no body)"


def decoded(text: Any) -> bytes:
    """Return the bytes of base64.

    Raises:
        Fault: it is not base64.
    """
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, TypeError, ValueError):
        raise Fault(f"what should be base64 is not: {str(text)[:40]!r}") from None


def samples(data: bytes) -> Samples:
    """Return 16-bit PCM as numbers of -1 to 1.

    Raises:
        Fault: it has half a sample.
    """
    if len(data) % 2:
        raise Fault(f"16-bit sound has {len(data)} bytes, an odd number")
    return np.frombuffer(data, "<i2").astype(np.float32) / np.float32(32768)


def compare(whole: bytes, streamed: bytes) -> str:
    """Return a line on two equal sounds.

    Raises:
        Fault: they differ in length, or by more than 0.005 of full scale.
    """
    if len(whole) != len(streamed):
        raise Fault(f"{len(streamed) // 2:,} samples streamed, {len(whole) // 2:,} in the whole answer")
    if not whole:
        raise Fault("both are empty")
    difference = np.abs(samples(whole) - samples(streamed))
    if (most := float(difference.max())) > _TOLERANCE:
        raise Fault(f"sample {int(difference.argmax()):,} differs by {most:.3f} of full scale")
    return f"{len(whole) // 2:,} samples, largest difference {most:.2g}"
