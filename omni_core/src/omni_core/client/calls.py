"""The signatures of ``chat`` and ``speak``, the same for the blocking and the asynchronous face."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Generic, Literal, TypeVar, overload

from omni_core.client.chat_request import Message, Voice
from omni_core.config.schema import PipelineConfig
from omni_core.errors import InvalidRequestError
from omni_core.interface import SPEECH, TEXT, Interface

Whole = TypeVar("Whole")
Streamed = TypeVar("Streamed")


class Calls(ABC, Generic[Whole, Streamed]):
    """A pipeline that can be asked. ``Whole`` is how a reply is returned, ``Streamed`` an iterator over its pieces.

    Attributes:
        notices: remarks about the pipeline for its user, such as which model was chosen.
    """

    notices: list[str]

    @property
    @abstractmethod
    def config(self) -> PipelineConfig:
        """The resolved config, as it is now: ``replace`` and ``scale`` change it."""

    @property
    def interface(self) -> Interface | None:
        """The interface that the pipeline declares: parameters, modalities, voices, limits. ``None`` if it declares nothing."""
        return self.config.interface

    # fmt: off
    @overload
    def chat(
        self, message: Message, *, system: str | None = None, image: Any = None, audio: Any = None, video: Any = None,
        modalities: Sequence[str] | None = None, voice: Voice = None, stream: Literal[False] = False, timeout: float | None = None,
        request_id: str | None = None, params: Mapping[str, Any] | None = None, metadata: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> Whole: ...
    @overload
    def chat(
        self, message: Message, *, stream: Literal[True], system: str | None = None, image: Any = None, audio: Any = None,
        video: Any = None, modalities: Sequence[str] | None = None, voice: Voice = None, timeout: float | None = None,
        request_id: str | None = None, params: Mapping[str, Any] | None = None, metadata: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> Streamed: ...
    # fmt: on
    def chat(self, message: Message, *, stream: bool = False, request_id: str | None = None, **asked: Any) -> Any:
        """Answer a message, or a conversation.

        Args:
            message: a text, or messages ``{"role": ..., "content": text or parts}`` with content parts of OpenAI's form or ours.
            system: a text that comes before it all.
            image, audio, video: media beside the last message, each one or a list: a path, a URL, the bytes of a file, a PIL image,
                an array (image ``[H, W, 3]``, video ``[T, H, W, 3]``), ``(samples, sample_rate)``, or for a video a mapping of
                ``frames`` and their ``times``.
            modalities: what the reply has, such as ``["text"]``; by default all that the pipeline answers in.
            voice: the name of a voice, or recordings to speak like.
            stream: return an iterator over the pieces of the reply instead of the reply.
            timeout: seconds until it must be finished, queues included.
            request_id: its name in logs and for ``abort``. By default a new one.
            params, metadata: parameters of the pipeline, which may be given as keywords too: ``temperature=0.7``. ``omni pipelines
                NAME`` lists them.
        """
        return self._ask(request_id, {"messages": message, **asked}, stream=stream)

    # fmt: off
    @overload
    def speak(
        self, text: str, *, voice: Voice = None, stream: Literal[False] = False, timeout: float | None = None,
        request_id: str | None = None, params: Mapping[str, Any] | None = None, metadata: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> Whole: ...
    @overload
    def speak(
        self, text: str, *, stream: Literal[True], voice: Voice = None, timeout: float | None = None, request_id: str | None = None,
        params: Mapping[str, Any] | None = None, metadata: Mapping[str, Any] | None = None, **more: Any,
    ) -> Streamed: ...
    # fmt: on
    def speak(self, text: str, *, stream: bool = False, request_id: str | None = None, **asked: Any) -> Any:
        """Say a text, word for word. A pipeline that can only answer is asked to read it aloud.

        Arguments and reply are those of :meth:`chat`.
        """
        if self.interface is not None and SPEECH in self.interface.outputs:
            if asked.setdefault("modalities", [SPEECH]) not in (None, [SPEECH]):
                raise InvalidRequestError("speak: a spoken text has no other modalities; leave them out")
            asked["modalities"] = [SPEECH]
        elif self.interface is not None and TEXT in self.interface.roles:
            if "speech" not in self.interface.prompts:
                raise InvalidRequestError("speak: this pipeline answers in its own words; use chat(...).audio")
            text = self.interface.prompts["speech"].replace("{text}", text)
        return self._ask(request_id, {"messages": text, **asked}, stream=stream)

    @abstractmethod
    def _ask(self, request_id: str | None, asked: dict[str, Any], *, stream: bool) -> Any:
        """Ask what :func:`~omni_core.client.chat_request.chat_request` makes of ``asked``."""
