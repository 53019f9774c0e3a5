"""The attention of a step whose layers a model may compute by one kernel, which reads the cache itself."""

from __future__ import annotations

import numpy as np

from omni_core.api import DecodeCache
from omni_torch.engine.attention.static import DeferredAttention
from omni_torch.loop.packing import indices


class WholeStepAttention(DeferredAttention):
    """A step of decodes or of prompts. The backend plans only if a layer attends, so a kernel saves that too.

    Attributes:
        taken: True once the cache was asked for.
    """

    taken = False

    def decode_cache(self) -> DecodeCache:
        requests, starts, lengths = self._step
        cache, size = self.cache, self.cache.block_size
        tables = [
            cache.blocks(request.request_id)[: (start + length - 1) // size + 1]
            for request, start, length in zip(requests, starts, lengths, strict=True)
        ]
        widest = max(map(len, tables))
        pages = indices([table + [0] * (widest - len(table)) for table in tables], np.int32)
        seen = [
            end for start, length in zip(starts, lengths, strict=True) for end in range(start + 1, start + length + 1)
        ]
        if len(seen) > len(requests):
            pages = pages.repeat_interleave(indices(lengths), 0)
        self.taken = True
        return DecodeCache(pages, indices(seen, np.int32), size, cache.keys, cache.values)
