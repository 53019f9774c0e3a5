"""CUDA graphs: one step's GPU work recorded and replayed without Python, which otherwise launches hundreds of small kernels.

:class:`Graphs` records functions of tensors that have a row for each request, once for each of a few numbers of rows. Engines
record decode steps, feedback strategies record frames. Only the recorders depend on a GPU.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable
from typing import Any, Protocol

import torch
from attrs import define

from omni_core.api import ConfigError
from omni_torch.runners.transfers import copy_into

logger = logging.getLogger(__name__)

WARM_UPS = 2
"""Calls before a function is recorded: kernels are compiled and chosen, libraries take their workspaces."""

Named = dict[Any, torch.Tensor]
"""Tensors of a recorded graph by name."""

_recording = threading.Lock()
"""A process can record one graph at a time."""


class Recorder(Protocol):
    """Records a function that reads the tensors it holds and returns new ones."""

    def __init__(self, device: torch.device) -> None: ...

    def record(self, function: Callable[[], Named]) -> tuple[Named, Callable[[], None]]:
        """Return the function's outputs, and a callable that computes them again into the same memory.

        Raises what the function raises, or the error that prevents its recording.
        """
        ...


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
                # The outer context makes sure that a failed recording leaves its stream.
                with torch.cuda.stream(stream):
                    for _ in range(WARM_UPS):
                        function()
                    # Other stages' threads may use the GPU meanwhile.
                    with torch.cuda.graph(graph, self._memory, stream, capture_error_mode="thread_local"):
                        outputs = function()
            finally:  # a call that failed may still be writing memory that the normal path is about to write
                before.wait_stream(stream)
        return outputs, graph.replay


def padded(rows: int) -> int:
    """Return the number of rows of the graph that computes ``rows``: 1, 2, 4, or a multiple of 8."""
    return next((each for each in (1, 2, 4) if rows <= each), -(-rows // 8) * 8)


@define(eq=False)
class _Recording:
    """The memory that a recorded function reads and writes. The function is kept because of the memory that it holds."""

    function: Callable[[], Named]
    inputs: list[torch.Tensor]
    outputs: Named
    replay: Callable[[], None]


class Graphs:
    """Functions of tensors ``[n, ...]``, recorded once for each number of rows. One thread calls it.

    Attributes:
        failed: true after a recording failed; none is tried again.
    """

    def __init__(self, device: torch.device, recorder: type[Recorder]) -> None:
        self._device, self._recorder = device, recorder(device)
        self._recordings: dict[Hashable, _Recording] = {}
        self.failed = False

    @classmethod
    def choose(cls, device: torch.device, wanted: bool | type[Recorder], option: str = "cuda_graphs") -> Graphs | None:
        """Return graphs if the device has them and they are ``wanted``. A recorder is used as it is, on every device.

        Raises:
            ConfigError: ``wanted``, the value of ``option``, is of another type.
        """
        if isinstance(wanted, bool):
            return cls(device, CudaRecorder) if wanted and device.type == "cuda" else None
        if not isinstance(wanted, type):
            raise ConfigError(f"{option}: must be true or false, is {wanted!r}")
        return cls(device, wanted)

    def run(
        self, key: Hashable, build: Callable[..., Callable[[], Named]], inputs: list[torch.Tensor], padding_row: int = 0
    ) -> Named | None:
        """Replay the function ``key`` on ``inputs``; ``None``: it could not be recorded, so the caller must compute it without.

        Args:
            build: makes the function, from the tensors that it reads at every call, and its other memory. The function copies
                nothing to the host, and a row of its outputs depends on that row of the inputs only.
            inputs: ``[n, ...]`` each, on any device.
            padding_row: the row that padding repeats, so that padding reads no weights of experts that no request reads.

        Returns:
            Copies of its outputs, ``[n, ...]`` each.
        """
        count = len(inputs[0])
        rows = padded(count)
        recording = self._recordings.get((key, rows)) or self._record(key, build, inputs, rows)
        if recording is None:
            return None
        for static, given in zip(recording.inputs, inputs, strict=True):
            copy_into(static[:count], given)
            if count < rows:
                static[count:] = static[padding_row]
        recording.replay()
        return {name: each[:count].clone() for name, each in recording.outputs.items()}

    def _record(
        self, key: Hashable, build: Callable[..., Callable[[], Named]], inputs: list[torch.Tensor], rows: int
    ) -> _Recording | None:
        """Record a function on zeros, so that success does not depend on the values of requests."""
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
