"""Content keys for the blocks of a request's positions, so that equal prefixes are computed once."""

from __future__ import annotations

import hashlib
from array import array

from omni_core.api import ARRequest, ContentSpan
from omni_torch.loop.packing import ids, rotary


class BlockKeys:
    """The content keys of a request's full blocks. Two blocks with one key hold the same K and V, whichever requests
    own them.

    A key is a hash over everything that a block's K and V are a function of: the key of the block before it, and the
    block's token ids, rotary positions and the digests of the content at its positions.

    Args:
        identified: the leading prompt positions whose input is determined by ids and digests; by default as the request says.
    """

    def __init__(self, request: ARRequest, block_size: int, identified: int | None = None) -> None:
        self._request, self._size = request, block_size
        self._keys: list[bytes] = []
        self._prompt = _identified(request) if identified is None else identified
        self._content: dict[int, list[ContentSpan]] = {}
        for span in request.content or ():
            for block in range(span.start // block_size, -(-span.end // block_size)):
                self._content.setdefault(block, []).append(span)

    def first(self, positions: int) -> list[bytes]:
        """Return the keys of the full blocks among the first ``positions`` positions that can have a key."""
        known = len(self._keys) * self._size
        full = min(positions, self._named()) // self._size * self._size
        if full > known:
            self._extend(known, full)
        return self._keys[: full // self._size]

    def _named(self) -> int:
        """The number of leading positions whose input is determined by ids and digests alone."""
        request = self._request
        if self._prompt < len(request.prompt_ids) or request.output_embeds:
            return self._prompt
        return request.length

    def _extend(self, start: int, end: int) -> None:
        tokens = array("q", ids(self._request, start, end - start)).tobytes()
        places = (
            rotary(self._request, start, end - start).double().reshape(-1, end - start).T.contiguous().numpy().tobytes()
        )
        for begin in range(start, end, self._size):
            key = hashlib.blake2b(self._keys[-1] if self._keys else b"", digest_size=16)
            for whole in (tokens, places):
                width = len(whole) // (end - start)
                key.update(whole[(begin - start) * width : (begin - start + self._size) * width])
            for span in self._content.get(begin // self._size, ()):
                first, last = max(span.start, begin), min(span.end, begin + self._size)
                key.update(b"%d:%d:%d:" % (first - begin, last - begin, len(span.digest)) + span.digest)
            self._keys.append(key.digest())


def _identified(request: ARRequest) -> int:
    """Return the number of leading prompt positions whose input is determined by ids and digests; an embedding without
    a digest ends them.
    """
    if request.content is None and request.prompt_embeds is not None:
        return 0
    if min(request.prompt_ids, default=0) >= 0:
        return len(request.prompt_ids)
    covered = {position for span in request.content or () for position in range(span.start, span.end)}
    for position, token in enumerate(request.prompt_ids):
        if token < 0 and position not in covered:
            return position
    return len(request.prompt_ids)
