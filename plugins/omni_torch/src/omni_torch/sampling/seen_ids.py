"""The distinct ids that a request's repetition penalty applies to, as a tensor that grows with its output."""

from __future__ import annotations

from collections.abc import Iterable

import torch


class SeenIds:
    """The distinct ids of a prompt and its output, in a buffer that doubles as it fills.

    Args:
        prompt_ids: ids outside the vocabulary are ignored, such as the -1 of a position that has only an embedding.
    """

    def __init__(self, prompt_ids: Iterable[int], vocab_size: int) -> None:
        ids = sorted({token for token in prompt_ids if 0 <= token < vocab_size})
        self._known = set(ids)
        self._buffer = torch.zeros(max(64, 2 * len(ids)), dtype=torch.int64)
        self._buffer[: len(ids)] = torch.tensor(ids, dtype=torch.int64)
        self._read = 0

    def including(self, output_ids: list[int]) -> torch.Tensor:
        """Return the ids, including those that ``output_ids`` gained since the last call: int64, a view of the buffer."""
        for token in output_ids[self._read :]:
            if token in self._known:
                continue
            count = len(self._known)
            if count == len(self._buffer):
                self._buffer = torch.cat([self._buffer, torch.zeros_like(self._buffer)])
            self._buffer[count] = token
            self._known.add(token)
        self._read = len(output_ids)
        return self._buffer[: len(self._known)]

    def restart(self) -> None:
        """Read the output from its beginning at the next call, because it was replaced; the ids seen so far stay."""
        self._read = 0
