"""CUDA graphs: what a GPU did in one step, done again without Python, which has hundreds of small kernels to start otherwise.

:class:`Graphs` records functions of tensors that have a row for each request, once for each of a few numbers of rows;
:class:`DecodeGraphs` is the engine's use of it. Only the recorders know whether there is a GPU.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, Protocol

import torch
from attrs import define

from omni_core.errors import ConfigError
from omni_core.model_runner.types import ARModel, ARRequest, ForwardBatch, ForwardOutput
from omni_engine.attention.base import AttentionBackend, StepAttention
from omni_engine.attention.static import DecodeTables, DeferredAttention, StaticAttention

logger = logging.getLogger(__name__)

WARM_UPS = 2
"""Calls before a function is recorded: kernels are compiled and chosen, libraries take their workspaces."""

FIRST_WIDTH = 256
"""Positions that the narrowest graph can read of a request. The next ones are twice as wide each."""

Named = dict[Any, torch.Tensor]

_recording = threading.Lock()
"""A process can record one graph at a time."""


class Recorder(Protocol):
    """Records what a function makes of tensors that it holds."""

    def __init__(self, device: torch.device) -> None: ...

    def record(self, function: Callable[[], Named]) -> tuple[Named, Callable[[], None]]:
        """Returns the function's outputs, and what makes them anew, in the same memory. Raises what the function raises, or what
        keeps it from being recorded.
        """
        ...


class EagerRecorder:
    """Calls the function again. On any device, so that all but the recording can be tested without a GPU."""

    def __init__(self, device: torch.device) -> None:
        pass

    def record(self, function: Callable[[], Named]) -> tuple[Named, Callable[[], None]]:
        outputs = function()

        def replay() -> None:
            for name, each in function().items():
                outputs[name].copy_(each)

        return outputs, replay


class CudaRecorder:
    """CUDA graphs that share their memory, because one thread replays them, one after the other."""

    def __init__(self, device: torch.device) -> None:
        self._stream, self._memory = torch.cuda.Stream(device), torch.cuda.graph_pool_handle()

    def record(self, function: Callable[[], Named]) -> tuple[Named, Callable[[], None]]:
        graph, stream = torch.cuda.CUDAGraph(), self._stream
        before = torch.cuda.current_stream(stream.device)
        with _recording:
            stream.wait_stream(before)
            try:
                # The outer one makes sure that a recording that fails leaves its stream.
                with torch.cuda.stream(stream):
                    for _ in range(WARM_UPS):
                        function()
                    # Other stages' threads may use the GPU meanwhile.
                    with torch.cuda.graph(graph, self._memory, stream, capture_error_mode="thread_local"):
                        outputs = function()
            finally:  # a call that failed may still be writing where the ordinary way is about to write
                before.wait_stream(stream)
        return outputs, graph.replay


def padded(rows: int) -> int:
    """The number of rows of the graph that computes ``rows``: 1, 2, 4, or a multiple of 8."""
    return next((each for each in (1, 2, 4) if rows <= each), -(-rows // 8) * 8)


@define(eq=False)
class _Recording:
    """What a recorded function reads and writes. The function itself is kept because of the memory that it holds."""

    function: Callable[[], Named]
    inputs: list[torch.Tensor]
    outputs: Named
    replay: Callable[[], None]


class Graphs:
    """Functions of tensors ``[n, ...]``, recorded once for each number of rows. One thread calls it.

    Attributes:
        failed: whether recording failed, which is not tried again.
    """

    def __init__(self, device: torch.device, recorder: type[Recorder]) -> None:
        self._device, self._recorder = device, recorder(device)
        self._recordings: dict[Hashable, _Recording] = {}
        self.failed = False

    @classmethod
    def choose(cls, device: torch.device, wanted: bool | type[Recorder]) -> Graphs | None:
        """Graphs where the device has them and they are ``wanted``. A recorder is taken as it is, on every device.

        Raises:
            ConfigError: ``wanted`` is something else.
        """
        if isinstance(wanted, bool):
            return cls(device, CudaRecorder) if wanted and device.type == "cuda" else None
        if not isinstance(wanted, type):
            raise ConfigError(f"cuda_graphs: must be true or false, is {wanted!r}")
        return cls(device, wanted)

    def run(
        self, key: Hashable, build: Callable[..., Callable[[], Named]], inputs: list[torch.Tensor], twin: int = 0
    ) -> Named | None:
        """What the function ``key`` makes of ``inputs``; ``None``: it could not be recorded, so compute it the ordinary way.

        Args:
            build: makes the function, from the tensors that it reads at every call, and its other memory. It asks the host nothing,
                and a row of its outputs depends on that row of the inputs only.
            inputs: ``[n, ...]`` each, on any device.
            twin: the row that rows of padding repeat, so that they read no expert's weights that no request reads.

        Returns:
            Copies of its outputs, ``[n, ...]`` each.
        """
        count = len(inputs[0])
        rows = padded(count)
        recording = self._recordings.get((key, rows)) or self._record(key, build, inputs, rows)
        if recording is None:
            return None
        for static, given in zip(recording.inputs, inputs, strict=True):
            static[:count] = given
            if count < rows:
                static[count:] = static[twin]
        recording.replay()
        return {name: each[:count].clone() for name, each in recording.outputs.items()}

    def _record(
        self, key: Hashable, build: Callable[..., Callable[[], Named]], inputs: list[torch.Tensor], rows: int
    ) -> _Recording | None:
        """Record a function on zeros: what requests hold must not decide whether that works."""
        if self.failed:
            return None
        try:
            static = [each.new_zeros((rows, *each.shape[1:]), device=self._device) for each in inputs]
            function = build(*static)
            outputs, replay = self._recorder.record(function)
        except Exception as error:
            self.failed = True
            self._recordings.clear()
            logger.warning(
                "a step of %d rows could not be recorded as a graph (%s: %s); this stage computes without graphs from now on",
                rows,
                type(error).__name__,
                error,
            )
            return None
        recording = self._recordings[key, rows] = _Recording(function, static, outputs, replay)
        return recording


class DecodeGraphs:
    """A model's forward, replayed where every request computes the position of a generated token, and called elsewhere.

    Attributes:
        steps: how many were replayed.
    """

    def __init__(
        self, model: ARModel, backend: AttentionBackend, graphs: Graphs, max_running: int, max_context: int
    ) -> None:
        self._model, self._backend, self._graphs = model, backend, graphs
        self._tables = DecodeTables(backend.cache, padded(max_running), max_context)
        self._attentions: dict[tuple[int, int], StaticAttention] = {}
        self.steps = 0

    def plan(self, requests: list[ARRequest], starts: list[int], lengths: list[int]) -> StepAttention:
        """The attention of a step: the backend's, made only when it is needed if the step may be replayed."""
        decodes = all(
            length == 1 and start >= len(request.prompt_ids)
            for request, start, length in zip(requests, starts, lengths, strict=True)
        )
        if decodes and not self._graphs.failed and max(starts) < self._tables.width * self._backend.cache.block_size:
            return DeferredAttention(self._backend, requests, starts, lengths)
        return self._backend.plan(requests, starts, lengths)

    def forward(self, batch: ForwardBatch) -> ForwardOutput:
        extra = tuple(sorted(batch.extra.items()))
        constant = all(isinstance(value, (bool, int, float, str)) for _, value in extra)
        if not isinstance(batch.attention, DeferredAttention) or not constant:
            return self._model.forward(batch)
        assert batch.input_embeds is not None
        # The one that costs attention the least.
        twin = min(range(len(batch.starts)), key=batch.starts.__getitem__)
        attention = self._attention(len(batch.requests), max(batch.starts) + 1)
        self._tables.fill(batch.requests, batch.starts, attention.rows, twin)
        attention.refill()
        inputs = [batch.input_ids, batch.positions.movedim(-1, 0), batch.input_embeds]
        key = (attention, batch.positions.dim(), batch.positions.dtype, extra)
        outputs = self._graphs.run(key, partial(self._build, attention, extra), inputs, twin)
        if outputs is None:
            self._attentions.clear()
            return self._model.forward(batch)
        self.steps += 1
        return ForwardOutput(outputs.pop("hidden"), outputs)

    def _attention(self, requests: int, longest: int) -> StaticAttention:
        """The narrowest that serves a step, for its number of rows."""
        cache, tables, static = self._backend.cache, self._tables, self._backend.static_decode
        assert static is not None
        positions = FIRST_WIDTH
        while positions < longest:
            positions *= 2
        width = tables.width if static.any_width else min(cache.blocks_for(positions), tables.width)
        size = padded(requests), width
        if size not in self._attentions:
            self._attentions[size] = static(self._backend, tables, *size)
        return self._attentions[size]

    def _build(
        self,
        attention: StaticAttention,
        extra: tuple[tuple[str, Any], ...],
        ids: torch.Tensor,
        positions: torch.Tensor,
        embeds: torch.Tensor,
    ) -> Callable[[], Named]:
        def step() -> Named:
            attention.begin()
            batch = ForwardBatch([], [], [], ids, embeds, positions.movedim(0, -1), attention, ids, [], dict(extra))
            # A graph is the same for all requests: a model whose forward asks for them cannot be recorded, and fails here.
            del batch.requests, batch.starts, batch.lengths, batch.sample_rows, batch.sampled
            output = self._model.forward(batch)
            return {"hidden": output.hidden, **output.captured}

        return step
