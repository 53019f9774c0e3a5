"""A recorder of graphs for tests without a GPU."""

from __future__ import annotations

from collections.abc import Callable

import torch

from omni_torch.runners.graphs import Named


class EagerRecorder:
    """Calls the function again, on any device, so that everything but the recording can be tested without a GPU."""

    def __init__(self, device: torch.device) -> None:
        pass

    def record(self, function: Callable[[], Named]) -> tuple[Named, Callable[[], None]]:
        outputs = function()

        def replay() -> None:
            for name, each in function().items():
                outputs[name].copy_(each)

        return outputs, replay
