"""Kyutai's speech to text, live: the codes of Mimi, and a decoder that reads them."""

from __future__ import annotations

import omni_transformers.stand_ins.first  # noqa: F401

# isort: split

from collections.abc import Hashable, Sequence
from typing import Any

import torch

from omni_core.api import ConfigError
from omni_transformers.checkpoints import Source
from omni_transformers.loading import load_processor
from omni_transformers.recognise.live_frames import FrameByFrame, Framed
from omni_transformers.recognise.live_parts import Embedded, Ends, Together


class _Mimi(Ends):
    """The ends of convolutions as the cache of convolutions of Mimi."""

    def __init__(self, kept: Sequence[dict[Hashable, torch.Tensor]], layers: dict[int, Any]) -> None:
        super().__init__(kept)
        self._layers = layers

    def update(self, states: torch.Tensor, number: int) -> torch.Tensor:
        """Return what a convolution sees before its input."""
        layer = self._layers[number]
        count = int(layer.padding_total)
        joined = self.joined(states, number, count, count, layer.pad_mode == "replicate")
        return joined[:, :, : joined.shape[2] - states.shape[2]]


class Kyutai(FrameByFrame):
    """Kyutai's speech to text: the codes of each frame of Mimi are read beside the token of the frame before."""

    def __init__(self, source: Source, device: str, dtype: str, running: int) -> None:
        super().__init__(source, device, dtype)
        processor, config = load_processor(str(source.folder)), self.model.config
        self.tokenizer, features = processor.tokenizer, processor.feature_extractor
        if features.chunk_length_s is not None:
            raise ConfigError(f"{source.folder}: its sound is divided (chunk_length_s), which is not supported")
        self.rate: int = features.sampling_rate
        self._before = int(features.audio_silence_prefix_seconds * self.rate)
        self._behind = int((features.audio_delay_seconds + 1.0) * self.rate)
        self._codec, self._frame = self.model.codec_model, config.codec_config.frame_size
        self._begin, self._silence = self.model.generation_config.bos_token_id, config.audio_bos_token_id
        self._books = config.num_codebooks
        encoder = self._codec.encoder
        self._layers = {
            each.layer_idx: each
            for each in encoder.modules()
            if getattr(each, "layer_idx", None) is not None and hasattr(each, "pad_mode")
        }
        inner = encoder.encoder_transformer
        heard = Embedded(inner, lambda given, at: inner(given, position_ids=at, use_cache=False)[0])
        self._heard = Together(heard, None, config.codec_config.sliding_window, running)
        self._written = Together(self.model.model, self.model.lm_head, config.sliding_window, running)
        self._transformers = [self._heard, self._written]

    def count(self, samples: int) -> int:
        return (self._before + samples + self._behind) // self._frame

    def needed(self, piece: int) -> int:
        return piece * self._frame - self._before

    def heard(self, streams: Sequence[Framed], count: int) -> torch.Tensor:
        """Return the codes of the next frames, ``[batch, count, 1, codebooks]``; before the first, those of no sound."""
        if not streams[0].pieces:
            return torch.full((len(streams), 1, 1, self._books), self._silence, device=self.device)
        encoder, ends = self._codec.encoder, _Mimi([each.ends for each in streams], self._layers)
        sound = torch.stack([torch.from_numpy(self._samples(each, count)) for each in streams]).unsqueeze(1)
        states = encoder.encoder_seanet(sound.to(self.device, self._codec.dtype), padding_cache=ends).transpose(1, 2)
        given = [{"inputs_embeds": each} for each in states.split(1)]
        states = torch.stack(self._heard.run([each.sequences[0] for each in streams], given)[0]).transpose(1, 2)
        if encoder.downsample is not None:
            states = encoder.downsample(states, padding_cache=ends)
        codes: torch.Tensor = self._codec.quantizer.encode(states).permute(1, 2, 0)
        return codes.unsqueeze(2)

    def written(self, streams: Sequence[Framed], heard: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        last = [each.choice.output_ids[-1] if each.pieces else self._begin for each in streams]
        ids = torch.cat([torch.tensor(last, device=self.device).view(-1, 1, 1), torch.stack([*heard])], 2)
        names = [each.sequences[1] for each in streams]
        return self._written.run(names, [{"input_ids": each} for each in ids.split(1)])[1]

    def _samples(self, stream: Framed, count: int) -> Any:
        begin = (stream.pieces - 1) * self._frame - self._before
        end = begin + count * self._frame
        return stream.sound.cut(begin, end, end)
