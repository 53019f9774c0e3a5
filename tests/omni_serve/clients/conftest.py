"""LiveKit and Pipecat as they are, against a server in this process; only in the nox session ``clients``, which installs them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from importlib.util import find_spec

import pytest_asyncio
from omni_serve_clients import running_server

from omni_core import AsyncPipe
from omni_serve import Settings, create_app

if find_spec("livekit") is None or find_spec("pipecat") is None:
    collect_ignore_glob = ["test_*.py"]


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def address(pipe: AsyncPipe) -> AsyncIterator[str]:
    """HOST:PORT of a server over the pipeline ``tones``; voices of OpenAI's have other names for its own."""
    settings = Settings(keys={"me": "a key of clients"}, aliases=("tts-1",), voice_aliases={"*": "default"})
    async with running_server(create_app(pipe, settings)) as address:
        yield address
