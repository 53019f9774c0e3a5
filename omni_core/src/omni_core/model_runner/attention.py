"""The attention that a scheduler gives to a model's layers: paged, causal, over each request's own cached tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from attrs import frozen

Tensor = Any
"""A tensor of the library that the model is written in."""


@frozen(eq=False)
class AttentionForm:
    """The attention of a layer that is not plainly causal. A scheduler's attention has each of these, or refuses the model by its name.

    Attributes:
        window: the newest positions that a token attends to, its own included; ``None``: all.
        soft_cap: a scaled product ``s`` becomes ``soft_cap * tanh(s / soft_cap)``; ``None``: it stays.
        sinks: ``[heads]``, a logit of each query head that takes its part of the softmax and has no value; ``None``: none.
        blocks: positions of a prompt that :attr:`ARRequest.prompt_blocks` puts together attend to each other, too.
    """

    window: int | None = None
    soft_cap: float | None = None
    sinks: Tensor | None = None
    blocks: bool = False

    @property
    def names(self) -> list[str]:
        """The differences from plain attention, in words for messages."""
        named = {"a sliding window": self.window, "a soft cap": self.soft_cap, "sinks": self.sinks}
        blocks = ["blocks that see each other"] if self.blocks else []
        return [name for name, value in named.items() if value is not None] + blocks


class DecodeCache(NamedTuple):
    """The cache of a step, for each of its tokens; adjacent tokens of one request have equal ``pages``.

    Attributes:
        pages: ``[n, width]`` int32, the blocks of its request.
        lengths: ``[n]`` int32, the positions up to its own, which is included.
        block_size: positions of a block.
        keys, values: of every layer, ``[slots, kv_heads, head_dim]``.
    """

    pages: Tensor
    lengths: Tensor
    block_size: int
    keys: Sequence[Tensor]
    values: Sequence[Tensor]


class PagedAttention(Protocol):
    """Causal attention of a batch's packed tokens over each request's own cached tokens."""

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float | None = None) -> Tensor:
        """Store ``key`` and ``value`` (``[n, kv_heads, head_dim]``) and return ``[n, heads, head_dim]`` for ``query``.

        ``scale`` defaults to ``head_dim ** -0.5``. The layer attends in the form that the model's ``kv_layout`` names for it.

        Raises:
            ValueError: a tensor has another shape than the batch and its cache.
        """
        ...


class CacheAttention(ABC):
    """A :class:`PagedAttention` whose cache can be written by the layers, so that one kernel can compute and store K and V.

    A layer calls it as any other, or writes to :meth:`place` and calls :meth:`attend`. A scheduler that does not expose its cache
    implements :class:`PagedAttention` only.
    """

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float | None = None) -> Tensor:
        """See :class:`PagedAttention`."""
        slots, keys, values = self.place(layer)
        count, (kv_heads, width) = len(slots), keys.shape[1:]
        for name, given in (("key", key), ("value", value)):
            if tuple(given.shape) != (count, kv_heads, width):
                raise _unlike_batch(layer, name, given, f"[{count}, {kv_heads}, {width}]")
        if len(query.shape) != 3 or query.shape[0] != count or query.shape[1] % kv_heads or query.shape[2] != width:
            raise _unlike_batch(layer, "query", query, f"[{count}, a multiple of {kv_heads}, {width}]")
        keys.index_copy_(0, slots, key)
        values.index_copy_(0, slots, value)
        return self.attend(layer, query, scale)

    @abstractmethod
    def place(self, layer: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the cache slots of this step's keys and values of a layer.

        Returns:
            ``[n]`` int64, one distinct slot for each of the step's tokens; and the layer's keys and values,
            ``[slots, kv_heads, head_dim]`` each, to be written at these slots and nowhere else.
        """

    @abstractmethod
    def attend(self, layer: int, query: Tensor, scale: float | None = None) -> Tensor:
        """Return ``[n, heads, head_dim]`` for ``query``, after this step's keys and values were written."""

    def recall(self, layer: int, query: Tensor, scale: float | None = None) -> Tensor:
        """Return ``[n, heads, head_dim]`` for ``query`` over the keys and values of each request's :attr:`ARRequest.memory`.

        Raises:
            ValueError: this attention has no cross-attention.
        """
        raise ValueError(f"layer {layer}: {type(self).__name__} has no cross-attention")

    def decode_cache(self) -> DecodeCache | None:
        """Return what computes all layers of this step without :meth:`place` and :meth:`attend`; ``None``: the step is of another
        kind. The caller writes every layer's keys and values of the step's tokens.
        """
        return None


def _unlike_batch(layer: int, name: str, given: Tensor, wanted: str) -> ValueError:
    return ValueError(
        f"layer {layer}: {name} is {list(given.shape)}, and must be {wanted}: the positions of the batch, heads, and head_dim as in "
        "the model's kv_layout"
    )
