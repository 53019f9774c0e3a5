"""The other process of the relay tests: reads commands as JSON lines, holds views, answers."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys

from omni_core.errors import RelayError
from omni_core.relay.base import RelayOptions
from omni_relay_shm.relay import ShmRelay


async def main() -> None:
    relay = ShmRelay(RelayOptions(slot_size_mb=1, credits=2, owner="peer"))
    held = {}
    while line := await asyncio.to_thread(sys.stdin.readline):
        command = json.loads(line)
        answer: object = "ok"
        try:
            if command["do"] == "view":
                metadata = [*command["metadata"][:4], bytes.fromhex(command["metadata"][4]), *command["metadata"][5:]]
                view = relay.get_view(metadata)
                answer = hashlib.sha256(view).hexdigest()
                if command.get("hold"):
                    held[command["hold"]] = view
                del view
            elif command["do"] == "release":
                del held[command["hold"]]
            elif command["do"] == "put":
                operation = await relay.put_async(bytes(command["size"]), "r")
                place = operation.metadata
                answer = [*place[:4], place[4].hex(), *place[5:]]
        except RelayError as error:
            answer = f"RelayError: {error}"
        print(json.dumps(answer), flush=True)


asyncio.run(main())
