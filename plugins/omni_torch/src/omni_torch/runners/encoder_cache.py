"""A cache of encoder outputs by content: media that are sent again are not encoded again.

Keys are digests of the content (an image, a clip, a reference voice), so equal content is shared whatever its source;
the size is bounded, the least recently used entries are evicted first, and so are those that were not used for long. One cache
serves all requests of an encoder's process.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import torch

from omni_core.api import ConfigError

KEPT_SECONDS = 3600.0
"""The time for which a piece is kept that nobody uses; it is looked at when the cache is."""

Encoded = TypeVar("Encoded", bound="tuple[torch.Tensor, ...]")


class EncoderCache(Generic[Encoded]):
    """Encoded pieces by digest, each a tuple of tensors.

    Args:
        max_bytes: the size of all tensors together; 0 keeps nothing. A larger piece is not kept.

    Raises:
        ConfigError: ``max_bytes`` is negative.
    """

    def __init__(self, max_bytes: int) -> None:
        if max_bytes < 0:
            raise ConfigError(f"an encoder cache cannot hold {max_bytes} bytes; 0 turns it off")
        self.max_bytes = max_bytes
        self._pieces: OrderedDict[bytes, tuple[float, Encoded]] = OrderedDict()
        self._bytes = self._hits = self._misses = self._evictions = 0
        self._lock = threading.Lock()

    def encode(self, digests: Sequence[bytes], missing: Callable[[list[int]], Sequence[Encoded]]) -> list[Encoded]:
        """Return the encoded pieces of a request, in order.

        Args:
            missing: encodes the pieces at these indices, in one call; a digest that occurs twice is encoded once. Not called when
                nothing is missing.
        """
        with self._lock:
            self._expire()
            known = {digest: self._pieces.pop(digest)[1] for digest in dict.fromkeys(digests) if digest in self._pieces}
            self._pieces.update({digest: (time.monotonic(), piece) for digest, piece in known.items()})
            wanted = [i for i, digest in enumerate(digests) if digest not in known and digest not in digests[:i]]
            self._hits += len(digests) - len(wanted)
            self._misses += len(wanted)
        if wanted:
            for index, piece in zip(wanted, missing(wanted), strict=True):
                known[digests[index]] = piece
                self._keep(digests[index], piece)
        return [known[digest] for digest in digests]

    def _keep(self, digest: bytes, piece: Encoded) -> None:
        size = _bytes(piece)
        if size > self.max_bytes:
            return
        with self._lock:
            if digest in self._pieces:
                return
            while self._bytes + size > self.max_bytes:
                self._evict()
            # Copies: a view would keep the whole tensor that it belongs to in memory.
            self._pieces[digest] = time.monotonic(), tuple(each.clone() for each in piece)  # type: ignore[assignment]
            self._bytes += size

    def _evict(self) -> None:
        _, (_, oldest) = self._pieces.popitem(last=False)
        self._bytes -= _bytes(oldest)
        self._evictions += 1

    def _expire(self) -> None:
        """Evict what was not used for :data:`KEPT_SECONDS`. Under the lock."""
        since = time.monotonic() - KEPT_SECONDS
        while self._pieces and next(iter(self._pieces.values()))[0] <= since:
            self._evict()

    def clear(self) -> None:
        """Forget all pieces. From any thread."""
        with self._lock:
            self._pieces.clear()
            self._bytes = 0

    def statistics(self) -> dict[str, float]:
        """Return counters since the start, and the size now."""
        with self._lock:
            self._expire()
            return {
                "encoder_cache.hits": float(self._hits),
                "encoder_cache.misses": float(self._misses),
                "encoder_cache.evictions": float(self._evictions),
                "encoder_cache.bytes": float(self._bytes),
                "encoder_cache.max_bytes": float(self.max_bytes),
            }


def _bytes(piece: tuple[torch.Tensor, ...]) -> int:
    return sum(each.numel() * each.element_size() for each in piece)
