"""Serves the pipeline ``tones``, or ``hear``, under any name of a model until its input ends; prints HOST:PORT."""

from __future__ import annotations

import asyncio
import sys

from client_voices import KEY
from live_input_stages import hearing_pipeline
from omni_serve_clients import running_server
from serve_stages import HELD, speaking_pipeline

from omni_core import open_async
from omni_serve import Settings, create_app


async def main() -> None:
    settings = Settings(keys={"me": KEY}, any_model=True)
    pipeline = hearing_pipeline() if sys.argv[1] == "hear" else speaking_pipeline(HELD)
    async with open_async(pipeline) as pipe, running_server(create_app(pipe, settings)) as address:
        print(address, flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
