"""Checkpoints behind the server, asked by OpenAI's client."""

from __future__ import annotations

import base64
import io
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import soundfile
from PIL import Image

from omni_core import open_async
from omni_transformers.pipeline import transformers
from tiny_transformers import checkpoint


@asynccontextmanager
async def served(folder: Path, **options: Any) -> AsyncIterator[openai.AsyncOpenAI]:
    """A client of a server of a checkpoint, whose model is called ``tiny``."""
    serve = pytest.importorskip("omni_serve")  # not there where this distribution is tested alone
    from omni_serve_clients import http_client

    async with open_async(transformers(str(folder), **options)) as pipe:
        app = serve.create_app(pipe, serve.Settings(model="tiny"))
        yield openai.AsyncOpenAI(
            api_key="none", base_url="http://test/v1", http_client=http_client(app), max_retries=0, timeout=120
        )


def ending(name: str, folder: Path, *tokens: int) -> Path:
    """Return an architecture's checkpoint whose texts end with some tokens. Random weights end none; what is cut is no transcript."""
    shutil.copytree(checkpoint(name), folder, dirs_exist_ok=True)
    file = folder / "generation_config.json"
    told = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps({"pad_token_id": 256, **told, "eos_token_id": tokens}))
    return folder


def wav(samples: Any, rate: int = 16_000) -> bytes:
    """Return a sound as a file that loses nothing."""
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format="WAV", subtype="FLOAT")
    return file.getvalue()


def input_audio(samples: Any, rate: int = 16_000) -> dict[str, Any]:
    """Return a sound as a part of a message."""
    data = base64.b64encode(wav(samples, rate)).decode()
    return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}


def image_url(pixels: Any) -> dict[str, Any]:
    """Return a picture as a part of a message."""
    file = io.BytesIO()
    Image.fromarray(np.asarray(pixels)).save(file, "PNG")
    return {
        "type": "image_url",
        "image_url": {"url": "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()},
    }
