"""A pipeline that writes and speaks, started once, and clients of a server over it without a socket."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import openai
import pytest
import pytest_asyncio
from omni_serve_clients import http_client
from serve_stages import speaking_pipeline

from omni_core import AsyncPipe, open_async
from omni_serve import Settings, create_app
from omni_serve.app import Application

STAGES = str(Path(__file__).parent / "stages")


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def pipe() -> AsyncIterator[AsyncPipe]:
    """The pipeline, for all tests of this folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([STAGES, os.environ.get("PYTHONPATH", "")]))
        async with open_async(speaking_pipeline()) as pipe:
            yield pipe


@pytest.fixture(scope="session")
def app(pipe: AsyncPipe, tmp_path_factory: pytest.TempPathFactory) -> Application:
    """A server without keys that keeps voices."""
    return create_app(pipe, Settings(voices_dir=tmp_path_factory.mktemp("voices"), aliases=("tts-1",)))


@pytest.fixture(scope="session")
def http(app: Application) -> httpx2.AsyncClient:
    """A plain client."""
    return http_client(app)


@pytest.fixture(scope="session")
def client(app: Application) -> openai.AsyncOpenAI:
    """OpenAI's client."""
    return openai.AsyncOpenAI(
        api_key="none", base_url="http://test/v1", http_client=http_client(app), max_retries=0, timeout=20
    )
