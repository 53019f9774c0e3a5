"""Between a session and the pipeline: what it offers, and the requests that a session's turns become."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

from attrs import frozen

from omni_core.api import OmniRequest
from omni_serve.auth import Key
from omni_serve.calls import Call
from omni_serve.errors import ApiError, invalid
from omni_serve.ignored import ignore
from omni_serve.live_input import LiveInput
from omni_serve.media import check_image, read_messages, share_of
from omni_serve.parameters import checked_value, ignore_parameter
from omni_serve.realtime.actions import Listen, Start, Transcribe
from omni_serve.realtime.audio import Wire
from omni_serve.realtime.config import NamedTool, Offer, ServerVad, SessionConfig
from omni_serve.realtime.frames import APPEND
from omni_serve.realtime.items import recording
from omni_serve.recognition import has_recogniser, listens, parameters_of, transcription_request, writes_down
from omni_serve.server import Server
from omni_serve.tools import ANY
from omni_serve.voice_names import apply_voice
from omni_serve.word_times import ask_for_words

FRAME_WAIT = 1.0
"""Seconds that a frame may wait for room in which it is decoded."""


def offer_of(server: Server, key: Key) -> Offer:
    """Return what the served pipeline can do in a session of a key."""
    interface, limits = server.interface, server.settings.realtime

    def check(config: SessionConfig, where: str) -> None:
        if config.model is not None:
            server.check_model(config.model)
        transcription = config.audio.input.transcription
        if transcription is not None and transcription.model not in (None, *server.models):
            ignore(f"{where}.audio.input.transcription.model")  # there is one recogniser
        if transcription is not None and has_recogniser(interface):  # otherwise each turn would fail
            given, declared = transcription.model_dump(include={"language", "prompt"}), parameters_of(interface)
            for name, value in given.items():
                path = f"{where}.audio.input.transcription"
                if value and name in declared:
                    checked_value(declared[name], value, f"{path}.{name}")
                elif value:
                    ignore_parameter(name, value, declared, where=path)
        server.parameters.read(_parameters(config))
        if config.speaks and config.audio.output.tells_words:
            ask_for_words(interface, {}, f"{where}.audio.output.timestamps")
        apply_voice(server, key, config.audio.output.voice, {}, {}, f"{where}.audio.output.voice")

    return Offer(
        inputs=tuple(interface.inputs),
        outputs=tuple(interface.outputs),
        tools=interface.tool_format,
        forces=interface.tool_choice,
        transcribes=writes_down(interface),
        listens=listens(interface),
        reads_transcripts=interface.reads_transcripts,
        paces=server.parameters.paces,
        reads=server.parameters.reads,
        sound_in_video=any(each.name == "use_audio_in_video" for each in interface.metadata),
        check=check,
        vad=ServerVad(
            type="server_vad",
            threshold=limits.threshold,
            prefix_padding_ms=limits.prefix_padding_ms,
            silence_duration_ms=limits.silence_duration_ms,
        ),
    )


def _parameters(config: SessionConfig) -> dict[str, Any]:
    longest = config.max_output_tokens
    return config.parameters if longest == "inf" else {**config.parameters, "max_output_tokens": longest}


@frozen
class Turns:
    """Makes the requests of one session. ``session``: its id, by which replicas that hold its caches are found."""

    server: Server
    key: Key
    session: str

    def reply(self, start: Start) -> Call:
        """Return the call that answers a turn."""
        server, config = self.server, start.config
        parameters = server.parameters.read(_parameters(config))
        inputs: dict[str, Any] = {"messages": start.messages}
        if config.tools and config.tool_choice != "none":
            inputs["tools"] = [tool.of_chat for tool in config.tools]
            if config.tool_choice != "auto":
                inputs["tool_choice"] = config.tool_choice.name if isinstance(config.tool_choice, NamedTool) else ANY
        if config.speaks:
            server.parameters.pace(parameters.params, config.audio.output.speed, "audio.output.speed")
            if config.audio.output.tells_words:
                ask_for_words(server.interface, parameters.params, "audio.output.timestamps")
            voice = config.audio.output.voice
            apply_voice(server, self.key, voice, inputs, parameters.metadata, "audio.output.voice")
        server.stay(self.session, parameters.metadata)
        outputs = server.interface.outputs
        wanted: list[str] = [
            each for each in ("text", "audio") if each in outputs and (config.speaks or each == "text")
        ]
        request = OmniRequest(inputs, parameters.params, wanted or None, parameters.metadata)
        return Call(server, self.key, request, speech=config.speaks)

    def transcription(self, asked: Transcribe | Listen, sound: LiveInput | None = None) -> Call:
        """Return the call that writes a recording down, or the ``sound`` that is still coming.

        Raises:
            ApiError: as :func:`transcription_request`.
        """
        recording = asked.recording if isinstance(asked, Transcribe) else None
        request = transcription_request(self.server, recording, {"language": asked.language, "prompt": asked.prompt})
        self.server.stay(self.session, request.metadata)
        return Call(self.server, self.key, request, speech=False, transcribes=True, guesses=True, input=sound)

    async def read_media(self, event: dict[str, Any], wire: Wire) -> None:
        """Put bytes in place of the images and recordings of an event's items: images are decoded once, recordings become files.

        What a pipeline would refuse must not get into a conversation: every later reply reads it too.

        Raises:
            ApiError: 400 or 413.
        """
        if event.get("type") == APPEND:
            event["image"] = await self._frame(event.get("image"))
            return
        most, left = int(self.server.settings.realtime.history_mib * 2**20), self.server.settings.limits.media_parts
        for part, where in _parts(event):
            left -= part.get("type") in ("input_image", "input_audio")
            if left < 0:
                limit = self.server.settings.limits.media_parts
                raise invalid(f"{where}: more recordings and images than the limit of {limit} (media_parts)", where)
            if part.get("type") == "input_image":
                part["image_url"] = await self._image(part.get("image_url"), where, f"{where}.image_url")
            elif part.get("type") == "input_audio" and isinstance(text := part.get("audio"), str):
                part["audio"] = data = await asyncio.to_thread(recording, text, wire, f"{where}.audio", most)
                try:
                    await self._check([{"role": "user", "content": [{"type": "audio", "data": data}]}])
                except ApiError as error:
                    raise _of_event(error, f"{where}.audio") from None

    async def _image(self, url: Any, where: str, where_url: str, wait: float | None = None) -> bytes:
        """Return the file of an image in a data: URL, checked. ``where``: the place of the image in the event."""
        image = {"type": "image_url", "image_url": {"url": url}}
        try:
            read = await read_messages([{"role": "user", "content": [image]}], self.server.settings)
            await self._check(read, wait)
        except ApiError as error:
            raise _of_event(error, where, where_url) from None
        data: bytes = read[0]["content"][0]["data"]
        return data

    async def _frame(self, text: Any) -> bytes:
        """Return the file of a frame, which a client has sent in base64 or as a data: URL, checked.

        Raises:
            ApiError: 400 or 413, as an image; 503, there is no room to decode it, and the sound behind it must not wait.
        """
        if not isinstance(text, str):
            raise invalid("image: must be a picture in base64, or a data: URL", "image", "invalid_type")
        url = text if text[:5].lower() == "data:" else f"data:image/jpeg;base64,{text}"
        try:
            return await self._image(url, "image", "image", FRAME_WAIT)
        except TimeoutError:
            raise ApiError(
                503, "image: others are decoded; the frame is dropped", param="image", code="overloaded"
            ) from None

    async def _check(self, messages: list[dict[str, Any]], wait: float | None = None) -> None:
        """Check the only part of messages as a reply will, and decode an image: its pixels count as those of requests.

        Args:
            wait: seconds for room to decode it; ``None``: as long as requests. Then it raises TimeoutError.
        """
        limits, part = self.server.settings.limits, messages[0]["content"][0]
        share = await share_of({"messages": messages}, limits)
        if part["type"] == "image":
            async with asyncio.timeout(wait):
                room = await self.server.media.take(self.key, share)
            try:
                await asyncio.to_thread(check_image, part["data"], "messages[0].content[0]", limits)
            finally:
                room.leave()


def _parts(event: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the content parts of the items in an event of a client, as far as there are any, and where they are."""
    items: list[tuple[Any, str]] = []
    if event.get("type") == "conversation.item.create":
        items = [(event.get("item"), "item")]
    elif event.get("type") == "response.create" and isinstance(response := event.get("response"), dict):
        given = response.get("input")
        items = [
            (each, f"response.input[{index}]") for index, each in enumerate(given if isinstance(given, list) else ())
        ]
    for item, where in items:
        content = item.get("content") if isinstance(item, dict) else None
        for index, part in enumerate(content if isinstance(content, list) else ()):
            if isinstance(part, dict):
                yield part, f"{where}.content[{index}]"


def _of_event(error: ApiError, where: str, where_url: str = "") -> ApiError:
    """Return an error about the only part of a message with the place that it has in the event."""
    path = error.param or ""
    for old, new in (("messages[0].content[0].image_url.url", where_url), ("messages[0].content[0]", where)):
        path = path.replace(old, new, 1)
    if error.param:
        error.message, error.param = error.message.replace(error.param, path, 1), path
    return error
