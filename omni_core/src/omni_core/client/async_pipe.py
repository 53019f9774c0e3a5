"""A running pipeline in an event loop: chat and speech with typed replies, and plain requests for any pipeline."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, Self, TypedDict, Unpack

from attrs import evolve

from omni_core.client.calls import Calls
from omni_core.client.chat_request import MediaPolicy, chat_request
from omni_core.client.replies import Collector, Piece, Reply, import_numpy_soon
from omni_core.client.source import source_class
from omni_core.config.completion import completed
from omni_core.config.schema import PipelineConfig
from omni_core.coordinator import AsyncOpenRequest, StreamEvent
from omni_core.errors import ConfigError, InvalidRequestError, OmniError, did_you_mean
from omni_core.launch.runner import MultiProcessPipelineRunner
from omni_core.launch.units import Progress
from omni_core.observe.recording import ProfileSummary
from omni_core.plugins import PluginRegistry
from omni_core.protocol.messages import OmniRequest
from omni_core.protocol.operation_messages import Change


class AsyncReplyStream(AsyncIterator[Piece]):
    """The pieces of a reply as they are made. Leaving the iteration aborts the request; ``reply`` is the whole, at the end."""

    def __init__(self, pieces: AsyncGenerator[Piece], collector: Collector) -> None:
        self._pieces, self._collector = pieces, collector
        self._reply: Reply | None = None

    async def __anext__(self) -> Piece:
        try:
            return await anext(self._pieces)
        except StopAsyncIteration:
            self._reply = self._collector.reply()
            raise

    async def aclose(self) -> None:
        """Abort the request, unless it is finished."""
        await self._pieces.aclose()

    @property
    def request_id(self) -> str:
        return self._collector.request_id

    @property
    def reply(self) -> Reply:
        """The whole reply. Raises OmniError before the last piece was read."""
        if self._reply is None:
            raise OmniError("the reply is not complete: read all pieces of the stream first")
        return self._reply


class AsyncPipe(Calls[Coroutine[Any, Any, Reply], AsyncReplyStream]):
    """A running pipeline. Made by :func:`open_async`; ``async with`` starts its processes, and ends them.

    Requests raise, by class: InvalidRequestError (the request itself is at fault; found in a stage, its ``stage`` names it),
    OverloadedError (the pipeline is full; ``retry_after`` is a hint in seconds), RequestTimeoutError (not finished in time; the message
    names the stages that had it), RequestAbortedError, and RequestFailedError (it failed in ``stage`` with ``error_type``).

    Attributes:
        media: which media the messages of :meth:`chat` may name.
    """

    def __init__(
        self,
        config: PipelineConfig,
        notices: Sequence[str] = (),
        media: MediaPolicy | None = None,
        registry: PluginRegistry | None = None,
        on_progress: Progress | None = None,
        startup_timeout: float = 600.0,
    ) -> None:
        self.notices = list(notices)
        self.media = media or MediaPolicy()
        self._runner = MultiProcessPipelineRunner(config, registry, on_progress, startup_timeout=startup_timeout)

    async def __aenter__(self) -> Self:
        if self.interface is not None and "audio" in self.interface.outputs:
            import_numpy_soon()
        await self._runner.start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._runner.stop()

    @property
    def config(self) -> PipelineConfig:
        return self._runner.config

    def _ask(self, request_id: str | None, asked: dict[str, Any], *, stream: bool) -> Any:
        collector = Collector(request_id or os.urandom(16).hex(), self.interface)
        return AsyncReplyStream(self._pieces(asked, collector), collector) if stream else self._whole(asked, collector)

    async def _whole(self, asked: dict[str, Any], collector: Collector) -> Reply:
        request = await chat_request(self.interface, self.media, **asked)
        for stage, data in (await self.submit(request, collector.request_id)).items():
            collector.add(StreamEvent(stage, data, final=True))
        return collector.reply()

    async def _pieces(self, asked: dict[str, Any], collector: Collector) -> AsyncGenerator[Piece]:
        request = await chat_request(self.interface, self.media, **asked)
        async with aclosing(
            self._runner.coordinator.stream(evolve(request, stream=True), collector.request_id)
        ) as events:
            async for event in events:
                for piece in collector.add(event):
                    yield piece

    async def submit(self, request: OmniRequest, request_id: str | None = None) -> dict[str, Any]:
        """Return the results of a request's terminal stages by stage name. Cancelling the call aborts the request."""
        return await self._runner.coordinator.submit(_checked(request), request_id)

    def stream(self, request: OmniRequest, request_id: str | None = None) -> AsyncGenerator[StreamEvent]:
        """Yield partial results and final ones as they come. Leaving the iteration aborts the request."""
        request = _checked(request)
        return self._runner.coordinator.stream(request if request.stream else evolve(request, stream=True), request_id)

    def open_request(
        self,
        request: OmniRequest | None = None,
        request_id: str | None = None,
        *,
        chunk_timeout: float | None = None,
    ) -> AsyncOpenRequest:
        """Begin a request whose input is sent while its outputs are read. It begins at once, in a running event loop.

        Args:
            request: what is known before the first chunk: parameters, metadata, modalities, and inputs that do not stream.
            request_id: its name in logs and for ``abort``. By default a new one.
            chunk_timeout: seconds in which the entry stage must take each chunk; a later one fails the request with RequestTimeoutError.

        Raises:
            InvalidRequestError: the pipeline takes no input as a stream, or the request is at fault. OverloadedError: it is full.
        """
        return self._runner.coordinator.open(_checked(request or OmniRequest()), request_id, chunk_timeout)

    async def abort(self, request_id: str) -> None:
        """Drop the request in every stage. Idempotent."""
        self._runner.coordinator.abort(request_id)

    def health(self) -> dict[str, dict[str, Any]]:
        """Return, by unit (a process, or the ranks of a stage): stages, state, restarts, reason of the last death, pids."""
        return self._runner.observation.health()

    async def statistics(self) -> dict[str, dict[str, dict[str, float]]]:
        """Return counters by process, then by stage (or ``relay``)."""
        return await self._runner.observation.statistics()

    async def flush_caches(self) -> dict[str, list[str]]:
        """Forget what stages keep for later requests (cached prefixes, encoded media); return those stages by process."""
        return await self._runner.observation.flush_caches()

    async def replace(
        self,
        stage: str,
        set: Mapping[str, Any] | None = None,
        on_step: Callable[[str], None] | None = None,
        *,
        wait: bool = True,
    ) -> Change:
        """Replace the units of a stage, one after another, while requests run: new requests go to the new unit, and the old one ends when
        its requests have.

        Cancelling the call before a new unit serves leaves the old one as it was; afterwards the old one still ends.

        Args:
            stage: its name, or that of a process with several stages.
            set: values for its fields by path: ``{"factory_args.max_running": 8}``.
            on_step: called with a line for each step.
            wait: for the end of each old unit, before the next one is replaced; ``False``: they end by themselves.

        Raises:
            ConfigError: a value is wrong, or cannot be changed now. StartupError: a new unit does not start; the old one serves.
            OmniError: another operation runs.
        """
        return await self._runner.operations.replace(stage, set, on_step, wait=wait)

    async def scale(
        self,
        stage: str,
        replicas: int,
        set: Mapping[str, Any] | None = None,
        on_step: Callable[[str], None] | None = None,
        *,
        wait: bool = True,
    ) -> Change:
        """Change the number of replicas of a stage while requests run; those that are taken away finish what they have.

        Args:
            stage: its name, or that of a process with several stages.
            replicas: at least 1.
            set: ``gpu`` and ``host``, with a value for each replica.
            on_step: called with a line for each step.
            wait: for the end of replicas that are taken away.

        Raises:
            ConfigError: the number or a value is wrong. StartupError: a new unit does not start; those before it serve.
            OmniError: another operation runs.
        """
        return await self._runner.operations.scale(stage, replicas, set, on_step, wait=wait)

    async def start_profile(self, torch: Sequence[str] = ()) -> None:
        """Record, in every process, what happens to requests. ``torch``: stages whose torch operations are recorded too."""
        await self._runner.observation.profiling.start(torch)

    async def stop_profile(self, path: str | Path) -> ProfileSummary:
        """Stop recording; write one Chrome trace of all processes to ``path``, which Perfetto opens."""
        return await self._runner.observation.profiling.stop(path)

    @property
    def process_ids(self) -> dict[str, int]:
        """The pid of every process of the pipeline by process name."""
        return self._runner.process_ids


class OpenOptions(TypedDict, total=False):
    """The keyword arguments of :func:`omni_core.open` and :func:`omni_core.open_async`.

    Attributes:
        options: those of the pipeline; ``omni pipelines`` lists them, and ``--option`` sets them on the command line.
        set: values for fields, by dotted path: ``{"decoder.gpu": 0}``; ``--set`` on the command line.
        config: a deploy file or preset, or what a file would hold, laid over the pipeline; ``--config`` on the command line.
        max_in_flight, retries, request_timeout: fields of the config (see :class:`omni_core.config.schema.PipelineConfig`).
        media: which media messages may name. By default local files and no URLs.
        startup_timeout: seconds until every stage must be ready.
        on_progress: called with a stage's name and its state, as that changes.
        registry: the plugins to use instead of the installed ones.
    """

    options: Mapping[str, Any]
    set: Mapping[str, Any]
    config: str | Path | Mapping[str, Any]
    max_in_flight: int
    retries: int
    request_timeout: float
    media: MediaPolicy
    startup_timeout: float
    on_progress: Progress
    registry: PluginRegistry


def open_async(
    pipeline: str | Path | PipelineConfig, model: str | Path | None = None, **options: Unpack[OpenOptions]
) -> AsyncPipe:
    """Return a pipeline to be started by ``async with``.

    Its config is resolved here: this may download a checkpoint.

    Args:
        pipeline: a registered name, a deploy file or preset, a checkpoint folder, a hub id, or a config.
        model: the checkpoint of a registered pipeline: a folder or a hub id.
        options: see :class:`OpenOptions`.

    Raises:
        ConfigError, PluginError: no such pipeline, or an invalid option. StartupError: from ``async with``; a stage did not become ready.
    """
    given: dict[str, Any] = {**options}
    for name in given:
        if name not in OpenOptions.__annotations__:
            raise TypeError(f"no argument is called {name!r}{did_you_mean(name, OpenOptions.__annotations__)}")
    fields: dict[str, Any] = {
        name: given.pop(name) for name in ("max_in_flight", "retries", "request_timeout") if name in given
    }
    settings = given.pop("set", {})
    for name in fields.keys() & settings.keys():
        raise ConfigError(f"{name}: given twice, here and in set; give it once")
    source = source_class()(
        pipeline if isinstance(pipeline, PipelineConfig) else str(pipeline),
        None if model is None else str(model),
        given.pop("options", {}),
        {**settings, **fields},
        given.pop("config", None),
        dashes="",
    )
    resolved = source.resolve(options.get("registry"))
    return AsyncPipe(completed(resolved.config, resolved.located), source.notices, **given)


def _checked(request: OmniRequest) -> OmniRequest:
    if not isinstance(request, OmniRequest):
        raise InvalidRequestError(
            f"a request must be an OmniRequest, is a {type(request).__name__}; chat() takes texts and messages"
        )
    return request
