"""Parts that several streams compute together: convolutions that go on, and causal transformers over a paged cache."""

from __future__ import annotations

import omni_transformers.stand_ins.first  # noqa: F401

# isort: split

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from attrs import evolve
from torch import nn

from omni_core.api import AttentionForm, RequestTooLargeError
from omni_torch.api import PagedSequences
from omni_transformers.calls.packed import Packed

PIECE = 128
"""Positions of the longest piece, of which there is room beside a window."""


class Ends:
    """The last frames of the inputs of convolutions, of several streams as one batch.

    Args:
        kept: those of each stream, by the names of the convolutions; filled in here.
    """

    def __init__(self, kept: Sequence[dict[Hashable, torch.Tensor]]) -> None:
        self._kept = kept

    def joined(
        self, states: torch.Tensor, name: Hashable, count: int, first: int, repeats: bool = False
    ) -> torch.Tensor:
        """Return ``[batch, channels, time, ...]`` behind what came before, and keep the last ``count`` frames.

        Args:
            first: frames of silence before the beginning.
            repeats: they repeat the first frame instead.
        """
        if name in self._kept[0]:
            before = torch.cat([each[name] for each in self._kept])
        elif repeats:
            before = states[:, :, :1].expand(*states.shape[:2], first, *states.shape[3:])
        else:
            before = states.new_zeros(*states.shape[:2], first, *states.shape[3:])
        states = torch.cat([before, states], 2)
        for row, each in enumerate(self._kept):
            each[name] = states[row : row + 1, :, states.shape[2] - count :].clone()
        return states


class Embedded(nn.Module):
    """A causal transformer in the form of a decoder without ids.

    Args:
        module: it.
        call: computes its output ``[1, n, hidden]`` of embeddings and positions, without a cache.
    """

    def __init__(self, module: Any, call: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.module, self.config, self._call = module, module.config, call

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        past_key_values: Any = None,
    ) -> tuple[torch.Tensor]:
        """Return the output. ``input_ids`` and ``past_key_values`` are there for :class:`Packed`."""
        assert inputs_embeds is not None
        if position_ids is None:
            position_ids = torch.arange(inputs_embeds.shape[1], device=inputs_embeds.device).unsqueeze(0)
        return (self._call(inputs_embeds, position_ids),)


class Together:
    """A causal transformer whose next positions of several streams are computed together. Positions that its window has left are dropped.

    Args:
        module: with ``inputs_embeds`` or ``input_ids``.
        head: makes logits; ``None``: none.
        window: positions that a position attends to, its own included.
        running: streams at one time that the cache is made for.

    Raises:
        Unfit: it is none.
    """

    def __init__(self, module: Any, head: Any, window: int, running: int) -> None:
        self._packed = Packed(module, head)
        # Some have the window in their cache alone, where an examination does not see it.
        forms = self._packed.layout.forms or (None,) * self._packed.layout.layers
        forms = tuple(AttentionForm(window) if each is None else each for each in forms)
        self._packed.layout = evolve(self._packed.layout, forms=forms)
        self._sequences = PagedSequences(self._packed.layout, self._packed.device, window + PIECE, running)
        self._count = 0

    def begin(self) -> str:
        """Add a stream; return its name here."""
        self._count += 1
        self._sequences.begin(name := str(self._count))
        return name

    def end(self, name: str) -> None:
        """Drop a stream."""
        self._sequences.end(name)

    def run(
        self, names: Sequence[str], given: Sequence[dict[str, torch.Tensor]]
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Compute the next positions of streams.

        Args:
            given: the module's arguments of each, ``[1, n, ...]``.

        Returns:
            Outputs ``[n, hidden]``, and the logits ``[vocab]`` of the last positions, none without a head.
        """
        left = dict(zip(names, given, strict=True))
        outputs: dict[str, torch.Tensor] = {}
        logits: dict[str, torch.Tensor] = {}
        while left:
            counts = {name: next(iter(each.values())).shape[1] for name, each in left.items()}
            planned = self._sequences.plan(counts)
            if not planned:
                raise RequestTooLargeError(
                    f"a piece of {max(counts.values())} positions finds no room in a KV cache of {self._sequences.capacity}"
                )
            lengths = [counts[name] for name in planned]
            starts = [self._sequences.length(name) for name in planned]
            arguments = {key: torch.cat([left[name][key] for name in planned], 1) for key in next(iter(left.values()))}
            positions = torch.cat(
                [torch.arange(start, start + count) for start, count in zip(starts, lengths, strict=True)]
            )
            attention = self._sequences.attention(planned, lengths)
            hidden, scores = self._packed.run(arguments, positions.to(self._packed.device), attention, lengths)
            self._sequences.computed(planned, lengths)
            outputs |= zip(planned, hidden.split(lengths), strict=True)
            logits |= {} if scores is None else zip(planned, scores, strict=True)
            left = {name: each for name, each in left.items() if name not in planned}
        return [outputs[name] for name in names], [logits[name] for name in names if name in logits]
