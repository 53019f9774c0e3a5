"""Make messages, media, a voice and parameters into a request. A service reads the media."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from attrs import frozen

from omni_core.errors import InvalidRequestError
from omni_core.interface import VOICE, Interface
from omni_core.protocol.messages import OmniRequest
from omni_core.services import MEDIA

KINDS = ("image", "audio", "video")
"""The kinds of media in a message."""

_ARGUMENTS = (*KINDS, "system", "modalities", "voice", "stream", "timeout", "request_id", "params", "metadata")


@frozen
class MediaPolicy:
    """The media that messages may name.

    Attributes:
        allow_paths: files of this machine. A server must not let its clients name them.
        allow_urls: http and https, fetched here; the reader may need an extra for it.
        allow_internal_urls: those of loopback and private networks too.
        url_hosts: the hosts of URLs, redirects included, as names or ``*.NAME``; empty: any.
        max_bytes: of all media of one request that are sent as bytes or fetched.
        fetch_seconds: until a URL must have answered.
    """

    allow_paths: bool = True
    allow_urls: bool = False
    allow_internal_urls: bool = False
    url_hosts: tuple[str, ...] = ()
    max_bytes: int = 512 * 2**20
    fetch_seconds: float = 30.0


@frozen
class Recording:
    """A voice to speak like: a recording (a path, bytes, ``(samples, rate)``), and the words that are said in it."""

    audio: Any
    text: str | None = None


Message = str | Sequence[Mapping[str, Any]]
Voice = str | int | Recording | Sequence[Recording] | None


async def chat_request(
    interface: Interface | None,
    policy: MediaPolicy,
    messages: Message,
    *,
    system: str | None = None,
    modalities: Sequence[str] | None = None,
    voice: Voice = None,
    timeout: float | None = None,
    params: Mapping[str, Any] | None = None,
    metadata: Mapping[str, Any] | None = None,
    **more: Any,
) -> OmniRequest:
    """Return the request of :meth:`omni_core.AsyncPipe.chat`, whose arguments these are.

    Raises:
        InvalidRequestError: the message names the part: ``messages[1].content[0].image_url.url``. PluginError: no plugin reads media.
    """
    said: Any = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
    if not isinstance(said, Sequence) or not said or not all(isinstance(each, Mapping) for each in said):
        raise InvalidRequestError("messages: must be a text, or a non-empty list of {'role': ..., 'content': ...}")
    for name, values in (("params", params), ("metadata", metadata)):
        if values is not None and not isinstance(values, Mapping):
            raise InvalidRequestError(f"{name}: must be a mapping of names to values, is {values!r:.100}")
    media = {kind: more.pop(kind, None) for kind in KINDS}
    voices: Any = [] if voice is None or isinstance(voice, str | int) else voice
    voices = [voices] if isinstance(voices, Recording) else voices
    if not isinstance(voices, list | tuple) or not all(isinstance(each, Recording) for each in voices):
        raise InvalidRequestError(f"voice: must be a name, or one or several Recording(...), is {voice!r:.100}")
    inputs: dict[str, Any] = {}
    if voices or any(each is not None for each in media.values()) or any(map(_has_parts, said)):
        reader = MEDIA.need("messages with media and content parts need")(policy)
        parts = [part for kind, values in media.items() for part in await reader.values(kind, values)]
        said = _beside(parts, await reader.messages(said))
        inputs = {"references": await reader.references(voices)} if voices else {}
    if system is not None:
        if said[0].get("role") == "system":
            raise InvalidRequestError("system: given twice, here and as messages[0]; give it once")
        said = [{"role": "system", "content": system}, *said]
    if isinstance(voice, str | int):
        if interface is not None and not any(VOICE in each.names for each in interface.metadata):
            raise InvalidRequestError("voice: this pipeline has no voices to choose from")
        more[VOICE] = voice
    keys = {VOICE, *(name for each in (interface.metadata if interface else ()) for name in each.names)}
    given: dict[str, Any] = {"params": dict(params or {}), "metadata": dict(metadata or {})}
    for name, value in more.items():
        near = get_close_matches(name, [*_ARGUMENTS, *keys], 1, 0.75)
        if near and name not in keys and interface is not None and name not in interface.parameter_names:
            raise InvalidRequestError(f"{name}: no such argument or parameter; did you mean {near[0]!r}?")
        target = "metadata" if name in keys else "params"
        if name in given[target]:
            raise InvalidRequestError(f"{name}: given twice, here and in {target}; give it once")
        given[target][name] = value
    wanted: Any = modalities if modalities is None or isinstance(modalities, str) else list(modalities)
    return OmniRequest({"messages": list(said), **inputs}, modalities=wanted, timeout=timeout, **given)


def _has_parts(message: Mapping[str, Any]) -> bool:
    return isinstance(message.get("content"), list | tuple)


def _beside(media: list[dict[str, Any]], messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Put media before the text of the last message; an empty text is left out."""
    *before, last = messages
    content = last.get("content")
    parts = (
        [{"type": "text", "text": content}] if isinstance(content, str) and (content or not media) else content or []
    )
    return [*before, {**last, "content": [*media, *parts]} if media else last]
