"""Keys and values of sequences whose next positions somebody else's loop decides, in one paged cache.

The engine plans the steps of its requests itself. A model that has a loop of its own, such as ``generate()`` of transformers, calls its
decoder when it likes: here the calls of several such loops are computed as one batch. A sequence that finds no room takes that of one that
waits, whose keys and values are put aside and come back with its next call.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from attrs import define

from omni_core.api import ARRequest, ConfigError, KVLayout, OmniRequest, SamplingParams
from omni_torch.engine.attention import choose
from omni_torch.engine.attention.base import StepAttention
from omni_torch.engine.kv_cache import KVCache
from omni_torch.engine.memory import available_bytes

Stored = tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]]
"""Keys and values of every layer, ``[positions, kv_heads, head_dim]`` each."""

_SHARE = 4
"""The cache takes at most the free memory divided by this, where nothing says how large it is."""


@define(eq=False)
class _Sequence:
    """A sequence: ``length`` positions are computed, those from ``first`` on are kept; ``stored``: they are not in the cache."""

    request: ARRequest
    length: int
    stored: Stored | None = None
    first: int = 0


class PagedSequences:
    """Sequences in a paged cache. One thread calls it.

    Args:
        layout: of the keys and values.
        device: of the cache.
        longest: positions of a sequence at most, its memory included.
        running: sequences that are there at one time.
        kv_cache_mb: the size of the cache in MiB. By default, what ``running`` sequences of ``longest`` positions take, but at most a
            quarter of the free memory.
        attention: as of :class:`~omni_torch.engine.scheduler.EngineScheduler`.

    Raises:
        ConfigError: the attention cannot work here, or the cache holds no block.
    """

    def __init__(
        self,
        layout: KVLayout,
        device: torch.device,
        longest: int,
        running: int,
        kv_cache_mb: int | None = None,
        attention: str = "auto",
        block_size: int = 16,
    ) -> None:
        backend = choose(attention, device, layout, block_size)
        block_bytes = KVCache.block_bytes(layout, block_size)
        room = available_bytes(device) // _SHARE if kv_cache_mb is None else kv_cache_mb * 2**20
        blocks = min(running * -(-longest // block_size), room // block_bytes)
        if blocks < 1:
            raise ConfigError(f"kv_cache_mb: a block of the KV cache has {block_bytes / 2**20:.1f} MiB; raise it")
        self.cache = KVCache(layout, blocks, block_size, device)
        self._attention = backend(self.cache)
        self._sequences: dict[str, _Sequence] = {}
        windows = [None if form is None else form.window for form in layout.forms] or [None]
        self._window = None if None in windows or layout.memory else max(filter(None, windows))
        self.stored = 0

    @property
    def capacity(self) -> int:
        """The positions that a sequence can have; of one whose layers all have windows, those that are kept."""
        return self.cache.capacity

    def begin(self, name: str, memory: Stored | None = None) -> None:
        """Add a sequence.

        Args:
            memory: the keys and values that its cross-attention sees, of every layer.
        """
        length = 0 if memory is None else len(memory[0][0])
        request = ARRequest(name, OmniRequest(), [], SamplingParams(), memory=length)
        self._sequences[name] = _Sequence(request, length, memory)

    def length(self, name: str) -> int:
        """Return the positions of a sequence, its memory included."""
        return self._sequences[name].length

    def end(self, name: str) -> None:
        """Drop a sequence, if it is there."""
        if self._sequences.pop(name, None) is not None:
            self.cache.release(name)

    def plan(self, wanted: Mapping[str, int]) -> list[str]:
        """Return the sequences whose next positions can be computed now, the oldest first; the others must wait for them.

        Args:
            wanted: how many positions of each; none may grow beyond :attr:`capacity`.
        """
        planned: list[str] = []
        for name in self._sequences:
            if name in wanted and self._has_room(name, wanted, planned):
                planned.append(name)
        return planned

    def attention(self, names: Sequence[str], lengths: Sequence[int]) -> StepAttention:
        """Return the attention of the next positions of planned sequences."""
        found = [self._sequences[name] for name in names]
        return self._attention.plan([each.request for each in found], [each.length for each in found], [*lengths])

    def computed(self, names: Iterable[str], lengths: Iterable[int]) -> None:
        """Note that positions of sequences are in the cache. Those that no layer's window reaches any more are dropped."""
        for name, length in zip(names, lengths, strict=True):
            sequence = self._sequences[name]
            sequence.length += length
            if self._window is not None:
                sequence.first = self.cache.drop(name, max(0, sequence.length - self._window + 1))

    def _has_room(self, name: str, wanted: Mapping[str, int], planned: list[str]) -> bool:
        sequence = self._sequences[name]
        while not self.cache.reserve(name, sequence.length + wanted[name], sequence.first):
            victim = self._victim(name, wanted, planned)
            if victim is None:
                return False
            self._store(victim)
        if sequence.stored is not None:
            slots = self.cache.slots(name, sequence.first, sequence.length)
            for kept, given in zip((self.cache.keys, self.cache.values), sequence.stored, strict=True):
                for layer, values in zip(kept, given, strict=True):
                    layer[slots] = values
            sequence.stored = None
        return True

    def _victim(self, name: str, wanted: Mapping[str, int], planned: list[str]) -> str | None:
        """Return the sequence that makes room: the newest that asks for nothing, else the newest behind ``name``."""
        names = [*self._sequences]
        held = [each for each in names if self._sequences[each].stored is None and each != name and each not in planned]
        held = [each for each in held if self.cache.holds(each)]
        idle = [each for each in held if each not in wanted]
        behind = [each for each in held if names.index(each) > names.index(name)]
        return next(iter(idle[::-1] or behind[::-1]), None)

    def _store(self, name: str) -> None:
        sequence = self._sequences[name]
        slots = self.cache.slots(name, sequence.first, sequence.length)
        sequence.stored = (
            [layer[slots].clone() for layer in self.cache.keys],
            [layer[slots].clone() for layer in self.cache.values],
        )
        self.cache.release(name)
        self.stored += 1
