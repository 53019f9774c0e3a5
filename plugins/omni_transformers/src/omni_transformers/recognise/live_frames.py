"""Networks that write a token for each frame of sound."""

from __future__ import annotations

import omni_transformers.stand_ins.first  # noqa: F401

# isort: split

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import Any

import torch
from attrs import define, field

from omni_core.api import ARRequest, OmniRequest, RandomStream
from omni_torch.api import sample, sampling_from
from omni_transformers.checkpoints import Source
from omni_transformers.loading import load_model
from omni_transformers.recognise.declaration import group
from omni_transformers.recognise.live import Network, Sound, Stream
from omni_transformers.recognise.live_parts import Together
from omni_transformers.recognise.live_text import Token

AT_ONCE = 16
"""Pieces of a recording that are heard in one call."""


@define(eq=False)
class Framed(Stream):
    """A stream.

    Attributes:
        choice: chooses its tokens, and has them.
        sequences: its names in the network's transformers.
        pieces: that are computed.
        ends: what convolutions see again.
        ahead: what is heard at the next pieces.
    """

    choice: ARRequest
    sequences: list[str]
    pieces: int = 0
    ends: dict[Hashable, torch.Tensor] = field(factory=dict)
    ahead: list[torch.Tensor] = field(factory=list)


class FrameByFrame(Network[Framed]):
    """A network that writes a token after each frame of sound, of what it has heard and written before.

    A stream holds the keys and values within the windows of two transformers, the ends of convolutions, less than a frame of sound, and the
    ids of its tokens. Positions are relative within a window: it goes on for ever.

    Raises:
        ConfigError: the checkpoint cannot be loaded.
    """

    _transformers: list[Together]

    def __init__(self, source: Source, device: str, dtype: str) -> None:
        self.model = load_model(str(source.folder), dtype, device)
        load_model.cache_clear()  # its layers are packed: it is nobody else's
        self.group, self.device = group(source), self.model.device
        ends = self.model.generation_config.eos_token_id
        self._ends = [] if ends is None else [ends] if isinstance(ends, int) else list(ends)

    @abstractmethod
    def count(self, samples: int) -> int:
        """Return the pieces of a sound of so many samples."""

    @abstractmethod
    def needed(self, piece: int) -> int:
        """Return the samples that must have come before a piece is computed, where more follow."""

    @abstractmethod
    def heard(self, streams: Sequence[Framed], count: int) -> torch.Tensor:
        """Return what streams hear at their next pieces, ``[batch, count, n, ...]``, with ``n`` positions of the decoder in each."""

    @abstractmethod
    def written(self, streams: Sequence[Framed], heard: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the logits ``[vocab]`` of the next token of streams. ``heard``: at its piece, ``[n, ...]``."""

    def begin(self, asked: dict[str, Any]) -> Framed:
        given = {name: value for name, value in asked.items() if value is not None}
        params = sampling_from(given, f"params.{self.group.name}", stop_ids=self._ends)
        choice = ARRequest("", OmniRequest(), [], params, random=RandomStream(params.seed))
        return Framed(Sound(), asked, choice, [each.begin() for each in self._transformers])

    def end(self, stream: Framed) -> None:
        for each, name in zip(self._transformers, stream.sequences, strict=True):
            each.end(name)

    def next(self, stream: Framed) -> Hashable:
        is_there = (
            stream.pieces < self.count(stream.sound.count)
            if stream.sound.ended
            else stream.sound.count >= self.needed(stream.pieces)
        )
        return min(stream.pieces, 2) + 1 if is_there and not stream.sound.closed else None

    def hear(self, streams: Sequence[Framed]) -> list[list[Token] | Exception]:
        groups: defaultdict[int, list[Framed]] = defaultdict(list)
        for stream in streams:
            if not stream.ahead:
                groups[self._at_once(stream)].append(stream)
        for count, behind in groups.items():
            for stream, made in zip(behind, self.heard(behind, count), strict=True):
                stream.ahead = [*made]
        logits = self.written(streams, [each.ahead.pop(0) for each in streams])
        tokens = self._chosen(streams, logits)
        for stream in streams:
            stream.pieces += 1
        return tokens

    def _at_once(self, stream: Framed) -> int:
        """Return how many pieces of a stream are heard at once: of a recording several, behind the first one."""
        is_more = stream.sound.is_recording and stream.pieces
        return min(AT_ONCE, self.count(stream.sound.count) - stream.pieces) if is_more else 1

    def _chosen(self, streams: Sequence[Framed], logits: Sequence[torch.Tensor]) -> list[list[Token] | Exception]:
        try:
            tokens = sample(torch.stack([*logits]), [each.choice for each in streams])
        except FloatingPointError as error:
            if len(streams) == 1:
                return [error]
            return [self._chosen([stream], [own])[0] for stream, own in zip(streams, logits, strict=True)]
        for stream, token in zip(streams, tokens, strict=True):
            stream.choice.output_ids.append(token)
            if token in stream.choice.sampling.stop_ids:
                stream.sound.close()
        return [[Token(each, 0.0, 0.0)] for each in tokens]
