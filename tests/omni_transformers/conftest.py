"""Fixtures for tests of whole pipelines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from types import SimpleNamespace

import pytest
import pytest_asyncio
from attrs import evolve

from omni_core.api import ProcessSpec
from omni_core.machines import local
from omni_torch.processes.forks.server import ForkServer

SHARED = ["omni_transformers.words.engine", "omni_transformers.words.transcripts", "omni_transformers.speak.stage"]


class _Shared(ForkServer):
    """One for several pipelines, whose processes share the import of transformers."""

    started = False

    def start(self, defaults: Mapping[str, str]) -> None:
        """Start once, whatever pytest writes into the environment."""
        if not self.started:
            super().start(defaults)
            self.started = True

    def fork(self, spec: ProcessSpec, descriptors: Sequence[int]) -> asyncio.Future[int]:
        return super().fork(evolve(spec, preload=SHARED), descriptors)

    def close(self) -> None:
        """Go on: it ends with the module."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def forks() -> AsyncIterator[None]:
    """Start the pipelines of a module in a tenth of a second each."""
    server = _Shared()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "FORK_SERVER", SimpleNamespace(load=lambda: lambda: server))
        yield
    ForkServer.close(server)
