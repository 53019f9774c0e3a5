"""Voxtral Realtime, live: a causal encoder of sound, whose output is added to the tokens that a decoder reads."""

from __future__ import annotations

import omni_transformers.stand_ins.first  # noqa: F401

# isort: split

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import torch

from omni_transformers.checkpoints import Source
from omni_transformers.recognise.live_frames import FrameByFrame, Framed
from omni_transformers.recognise.live_parts import Embedded, Ends, Together
from omni_transformers.recognise.processors import feature_extractor_of
from omni_transformers.recognise.tekken import Tekken


class _Ends(Ends):
    """The ends of convolutions as the cache of convolutions of the encoder."""

    def update(self, states: torch.Tensor, name: Hashable, layer: Any) -> torch.Tensor:
        """Return the input of a convolution behind its last frames."""
        return self.joined(states, name, layer.left_pad, layer.left_pad)


class VoxtralRealtime(FrameByFrame):
    """Voxtral Realtime. Its first piece is the prompt, which ends where the sound that the first token belongs to is heard."""

    def __init__(self, source: Source, device: str, dtype: str, running: int) -> None:
        super().__init__(source, device, dtype)
        self.tokenizer: Any = Tekken(source.folder)
        self._features = feature_extractor_of(source)
        self.rate: int = self._features.sampling_rate
        self._hop, self._half = self._features.hop_length, self._features.n_fft // 2
        self._time = told = self.tokenizer.streaming
        self._frames: int = self.model.config.audio_length_per_tok
        self._prompt = self.tokenizer.prompt
        inner, config = self.model.model, self.model.config
        time = torch.full((1,), float(told.delay), device=self.device, dtype=self.model.dtype)
        with torch.inference_mode():
            waits = inner.time_embedding(time)[None]
        tower, decoder = inner.audio_tower, inner.language_model
        heard = Embedded(tower, lambda given, at: tower(inputs_embeds=given, position_ids=at, use_cache=False)[0])
        written = Embedded(
            decoder,
            lambda given, at: decoder(inputs_embeds=given, position_ids=at, t_cond=waits, use_cache=False)[0],
        )
        self._heard = Together(heard, None, config.audio_config.sliding_window, running)
        self._written = Together(written, self.model.lm_head, config.text_config.sliding_window, running)
        self._transformers = [self._heard, self._written]

    def count(self, samples: int) -> int:
        tokens = self._time.before + -(-samples // self._time.samples) + self._time.behind
        return tokens - len(self._prompt)

    def needed(self, piece: int) -> int:
        return (self._mel_end(piece) - 1) * self._hop + self._half - self._time.before * self._time.samples

    def _mel_end(self, piece: int) -> int:
        return (len(self._prompt) + piece) * self._frames

    def heard(self, streams: Sequence[Framed], count: int) -> torch.Tensor:
        """Return what is added to the next tokens, ``[batch, count, n, hidden]``."""
        inner = self.model.model
        mel = torch.cat([self._mel(each, count) for each in streams]).to(self.device, self.model.dtype)
        states = inner.audio_tower.embedder(mel, _Ends([each.ends for each in streams]))
        given = [{"inputs_embeds": each} for each in states.split(1)]
        states = torch.stack(self._heard.run([each.sequences[0] for each in streams], given)[0])
        width = inner.multi_modal_projector.linear_1.in_features
        made: torch.Tensor = inner.multi_modal_projector(states.reshape(len(states), -1, width))
        return made.unflatten(1, (count, -1))

    def written(self, streams: Sequence[Framed], heard: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        ids = [[each.choice.output_ids[-1]] if each.pieces else self._prompt for each in streams]
        given = self.model.model.get_input_embeddings()(torch.tensor(ids, device=self.device)) + torch.stack([*heard])
        names = [each.sequences[1] for each in streams]
        return self._written.run(names, [{"inputs_embeds": each} for each in given.split(1)])[1]

    def _mel(self, stream: Framed, count: int) -> torch.Tensor:
        """Return the features of the next pieces, ``[1, bins, n]``."""
        first = self._mel_end(stream.pieces - 1) if stream.pieces else 0
        # A frame begins half a window before its place, and the sound behind the silence before it.
        begin, end = (
            each * self._hop - self._half - self._time.before * self._time.samples
            for each in (first, self._mel_end(stream.pieces + count - 1))
        )
        samples = stream.sound.cut(begin, end - self._hop + 2 * self._half, end)
        samples = np.pad(samples, (0, self._hop))  # the last frame is dropped
        told = {"sampling_rate": self.rate, "center": False, "return_tensors": "pt"}
        made: torch.Tensor = self._features(samples, **told).input_features
        return made
