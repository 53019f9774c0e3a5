"""The demo's pipeline, once for all tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from omni_core.client import AsyncPipe, open_async
from omni_demo.speech.pipeline import CHECKPOINT, demo


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def client() -> AsyncIterator[AsyncPipe]:
    """Everything in one process, which starts in a few seconds and gives the same answers."""
    async with open_async(demo(str(CHECKPOINT), processes="one")) as client:
        yield client
