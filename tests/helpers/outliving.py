"""A relay whose bytes outlive their sender: one file per put. It has no back-pressure, so only some tests of the suite
apply to it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from omni_core.errors import RelayError
from omni_core.relay.base import Relay, RelayOperation, RelayOptions


class _Operation(RelayOperation):
    def __init__(self, metadata: Any) -> None:
        self.metadata = metadata

    async def wait_for_completion(self, timeout: float | None = None) -> None:
        return


class FileRelay(Relay):
    bytes_outlive_sender = True

    def __init__(self, options: RelayOptions) -> None:
        self._folder = Path(options.directory)

    async def put_async(self, tensor: Any, request_id: str | None = None, dst_rank: int | None = None) -> _Operation:
        path = self._folder / os.urandom(8).hex()
        path.write_bytes(tensor)
        return _Operation(str(path))

    async def get_async(self, metadata: Any, dest_tensor: Any, request_id: str | None = None) -> _Operation:
        try:
            data = Path(metadata).read_bytes()
        except (OSError, TypeError) as error:
            raise RelayError(f"there are no such bytes: {error}") from error
        memoryview(dest_tensor)[:] = data
        return _Operation(metadata)

    def cleanup(self, request_id: str) -> None:
        return

    def close(self) -> None:
        return
