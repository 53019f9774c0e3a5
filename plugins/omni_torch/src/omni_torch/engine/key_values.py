"""Keys and values that one stage hands to another: what a scheduler exports of a request, and what a consumer reads as ``past_key_values``.

They travel as payload data, by any relay, and hold all heads, however many ranks either stage has (decision 0019).
"""

from __future__ import annotations

from typing import Any

import torch
from attrs import evolve, frozen

from omni_core.api import ConfigError, KVLayout
from omni_core.runtime_api import register
from omni_torch.processes.tensor_parallel import TensorParallel


@register
@frozen(eq=False)
class KeyValues:
    """Keys and values of a request's first positions, of every layer. Nothing in it is changed in place.

    The last token that a stage chose is in none of it: its position has not been computed.

    Attributes:
        keys, values: ``[layers, positions, kv_heads, head_dim]``, as the model stored them (after rotary embedding, if it rotates).
        ids: the token id of each position; -1 where there was only an embedding.
        next_position: the rotary position of the token that follows.
        hidden: ``[positions, hidden]``, after the last norm; ``None``: not exported.
    """

    keys: torch.Tensor
    values: torch.Tensor
    ids: list[int]
    next_position: float
    hidden: torch.Tensor | None = None

    @property
    def positions(self) -> int:
        """The number of positions."""
        return self.keys.shape[1]

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        return self.keys.nbytes + self.values.nbytes + (0 if self.hidden is None else self.hidden.nbytes)

    def past_key_values(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return keys and values of each layer, ``[1, kv_heads, positions, head_dim]`` each, as transformers' caches have them. Views."""
        return [
            (key.transpose(0, 1).unsqueeze(0), value.transpose(0, 1).unsqueeze(0))
            for key, value in zip(self.keys, self.values, strict=True)
        ]

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> KeyValues:
        """Return them on a device, in a dtype. Not a copy where nothing changes: then they hold the memory of the relay."""
        keys, values = self.keys.to(device, dtype), self.values.to(device, dtype)
        return evolve(
            self, keys=keys, values=values, hidden=None if self.hidden is None else self.hidden.to(device, dtype)
        )

    def share(self, parallel: TensorParallel, layout: KVLayout) -> KeyValues:
        """Return the heads of one rank, whose cache has ``layout``; ranks repeat heads where there are fewer than ranks.

        Raises:
            ConfigError: the cache has other layers, heads, widths or another dtype; the message says which.
        """
        layers, _, heads, width = self.keys.shape
        held = layout.kv_heads * parallel.size
        given = f"{layers} layers of {heads} heads of {width} {_name(self.keys.dtype)}"
        if (layers, width, self.keys.dtype) != (layout.layers, layout.head_dim, layout.dtype) or held % heads:
            raise ConfigError(
                f"key_values: {given} were handed over; this stage's model has {layout.layers} layers of "
                f"{held} heads of {layout.head_dim} {_name(layout.dtype)}"
            )
        if parallel.size == 1 and heads == layout.kv_heads:
            return self
        first, repeats = parallel.rank * layout.kv_heads, held // heads
        if held != heads and layout.kv_heads > 1:
            raise ConfigError(
                f"key_values: {given} were handed over; the {parallel.size} ranks of this stage hold {held}"
            )
        chosen = slice(first // repeats, (first + layout.kv_heads - 1) // repeats + 1)
        return evolve(self, keys=self.keys[:, :, chosen], values=self.values[:, :, chosen])


def gathered(part: torch.Tensor, parallel: TensorParallel, kv_heads: int | None) -> torch.Tensor:
    """Return the heads of all ranks on rank 0, each once, and ``part`` on the others; all ranks must call it.

    Args:
        part: this rank's heads, ``[layers, positions, heads, head_dim]``.
        kv_heads: the model's heads over all ranks; ``None``: no two ranks hold the same one.
    """
    parts = parallel.gather(part)
    if parts is None or len(parts) == 1:
        return part
    heads = torch.cat(parts, 2)
    return heads if kv_heads is None else heads[:, :, :: heads.shape[2] // kv_heads].contiguous()


def _name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")
