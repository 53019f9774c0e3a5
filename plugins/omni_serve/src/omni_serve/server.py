"""Hold what all endpoints share: the pipeline, what it offers, the keys, the queue, the metrics, the voices."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from attrs import define, field
from starlette.requests import HTTPConnection

from omni_core.api import SPEECH, Interface, OmniError, OmniRequest, PipelineConfig, did_you_mean, shown
from omni_core.runtime_api import Change, StreamEvent, message_of
from omni_serve.auth import Key, KeyRing
from omni_serve.body_budget import BodyBudget
from omni_serve.encoders import PCM_RATE
from omni_serve.errors import ApiError
from omni_serve.kept_responses import KeptResponses
from omni_serve.limits import Admission
from omni_serve.live_input import OpenRequest
from omni_serve.media import check_fetching
from omni_serve.media_room import MediaRoom
from omni_serve.metrics import Metrics, Statistics
from omni_serve.parameters import ParameterNames
from omni_serve.realtime.open_sessions import OpenSessions
from omni_serve.realtime.vad import detector_class
from omni_serve.room import Room
from omni_serve.settings import Settings
from omni_serve.spoken import EarlierAnswers
from omni_serve.units import Units
from omni_serve.voice_store import VoiceStore

logger = logging.getLogger(__name__)

_STATISTICS_SECONDS = 5.0


class ServedPipe(Protocol):
    """The part of :class:`omni_core.AsyncPipe` that a server uses."""

    @property
    def config(self) -> PipelineConfig: ...

    def stream(self, request: OmniRequest, request_id: str | None = None) -> AsyncIterator[StreamEvent]: ...

    def open_request(
        self, request: OmniRequest, request_id: str | None = None, *, chunk_timeout: float | None = None
    ) -> OpenRequest: ...

    async def abort(self, request_id: str) -> None: ...

    def health(self) -> dict[str, dict[str, Any]]: ...

    async def statistics(self) -> Statistics: ...

    async def flush_caches(self) -> dict[str, list[str]]: ...

    async def start_profile(self, torch: Sequence[str] = ()) -> None: ...

    async def stop_profile(self, path: str | Path) -> Any: ...

    async def replace(self, stage: str, set: Mapping[str, Any] | None = None, *, wait: bool = True) -> Change: ...

    async def scale(
        self, stage: str, replicas: int, set: Mapping[str, Any] | None = None, *, wait: bool = True
    ) -> Change: ...


@define(eq=False)
class Server:
    """One served pipeline.

    Attributes:
        speech_parameters: of requests that a pipeline which also answers only speaks.
    """

    pipe: ServedPipe
    settings: Settings
    keys: KeyRing
    admission: Admission
    body_budget: BodyBudget
    media: MediaRoom
    metrics: Metrics
    units: Units
    spoken: EarlierAnswers
    items: EarlierAnswers
    responses: KeptResponses
    voices: VoiceStore | None
    interface: Interface
    parameters: ParameterNames
    speech_parameters: ParameterNames
    model: str
    created: int = field(factory=lambda: int(time.time()))
    warm: bool = False
    warm_up_failure: str = ""
    realtime: OpenSessions = field(factory=OpenSessions)

    @classmethod
    def make(cls, pipe: ServedPipe, settings: Settings) -> Server:
        """Make the shared state of an application.

        Raises:
            ConfigError: the keys, the folder of voices, the voice detector or the fetching of URLs cannot be used.
        """
        config = pipe.config
        detector_class(settings.realtime.detector)
        check_fetching(settings)
        return cls(
            pipe=pipe,
            settings=settings,
            keys=(keys := KeyRing.open(settings.keys_file, settings.keys)),
            admission=(admission := Admission(settings, keys)),
            body_budget=BodyBudget(admission, settings.limits),
            media=MediaRoom(settings),
            metrics=Metrics(config.resolved_name, admission),
            units=Units(config, pipe.health),
            spoken=EarlierAnswers(settings.audio_seconds_kept, settings.audio_answers_kept),
            items=EarlierAnswers(settings.audio_seconds_kept, settings.audio_answers_kept),
            responses=KeptResponses(
                settings.audio_seconds_kept, settings.audio_answers_kept, int(settings.responses_mib * 2**20)
            ),
            voices=VoiceStore(settings.voices_dir) if settings.voices_dir is not None else None,
            interface=config.interface or Interface(),
            parameters=ParameterNames(config),
            speech_parameters=ParameterNames(config, SPEECH),
            model=settings.model or config.name or Path(config.model_path).name,
            realtime=OpenSessions(Room(int(settings.realtime.memory_mib * 2**20))),
        )

    @property
    def models(self) -> list[str]:
        """The model names that clients may ask for."""
        return [self.model, *self.settings.aliases]

    @property
    def rate(self) -> int:
        """The sample rate of the pipeline's speech, where no sound has told it."""
        return self.interface.sample_rate or PCM_RATE

    async def statistics(self) -> Statistics:
        """Return the counters of the pipeline's processes; none where they do not come in time: the rest is still of use."""
        try:
            async with asyncio.timeout(_STATISTICS_SECONDS):
                return await self.pipe.statistics()
        except (TimeoutError, OmniError) as error:
            logger.warning("the stages' counters are left out: %s", message_of(error, with_type=True))
            return {}

    def apply_session(self, connection: HTTPConnection, metadata: dict[str, Any]) -> None:
        """Send all requests of a session (``x-omni-session``) to the replicas that hold its caches."""
        if session := connection.headers.get("x-omni-session"):
            self.stay(session, metadata)

    def stay(self, session: str, metadata: dict[str, Any]) -> None:
        """Send a request to the replicas that hold the caches of a session, if it says nothing else."""
        for stage in self.pipe.config.stages:
            if stage.affinity_key is not None:
                metadata.setdefault(stage.affinity_key, session)

    @contextmanager
    def enter_session(self, key: Key, endpoint: str) -> Iterator[None]:
        """Count a conversation while it lasts. Raises ApiError 429: there are too many."""
        with (
            self.realtime.enter(key.name, self.settings.realtime),
            self.metrics.sessions.labels(endpoint).track_inprogress(),
        ):
            yield

    def check_model(self, name: str) -> None:
        """Raise ApiError 404 if no model of this name is served."""
        if not self.settings.any_model and name not in self.models:
            raise ApiError(
                404,
                f"The model {shown(name)} does not exist{did_you_mean(name, self.models, listing='this server has')}",
                code="model_not_found",
                param="model",
            )


def server_of(connection: HTTPConnection) -> Server:
    """Return the server of a request or a WebSocket."""
    server: Server = connection.app.state.server
    return server


def key_of(connection: HTTPConnection) -> Key:
    """Return the key that the guard has found."""
    key: Key = connection.scope["omni.key"]
    return key
