"""Nemotron's streaming transducers, live: a conformer with a limited view ahead, and an LSTM."""

from __future__ import annotations

import omni_transformers.stand_ins.first  # noqa: F401

# isort: split

import inspect
from collections.abc import Hashable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from attrs import define, field, frozen
from transformers import DynamicCache

from omni_transformers.calls.packed import CACHES
from omni_transformers.checkpoints import Source
from omni_transformers.loading import load_model
from omni_transformers.recognise.declaration import group
from omni_transformers.recognise.languages import languages_of
from omni_transformers.recognise.live import Network, Sound, Stream
from omni_transformers.recognise.live_parts import Ends
from omni_transformers.recognise.live_text import Token
from omni_transformers.recognise.processors import processor_of
from omni_transformers.recognise.text import UNSPACED

Kept = tuple[torch.Tensor, torch.Tensor]

AT_ONCE = 8
"""Parts of a recording that are heard in one call; of a live stream it is one."""


@define(eq=False)
class _Heard(Stream):
    """A stream: ``mel`` frames of features and ``seen`` frames of the encoder are computed.

    Attributes:
        ends: what convolutions see again, by their names.
        attended: keys and values of the encoder's layers, within its window.
        state: of the LSTM: its output ``[1, 1, hidden]``, and its two states ``[layers, 1, hidden]``.
        symbols: tokens of the last frame so far.
    """

    language: str | None
    state: tuple[torch.Tensor, ...]
    mel: int = 0
    seen: int = 0
    symbols: int = 0
    ends: dict[Hashable, torch.Tensor] = field(factory=dict)
    attended: list[Kept] = field(factory=list)
    is_over: bool = False


@frozen
class _Piece:
    """The next ``count`` frames of features of a stream that holds keys of ``held`` frames. The last one may be shorter."""

    is_first: bool
    is_last: bool
    count: int
    held: int


class _Ends(Ends):
    """The last piece is padded as the end of a whole sound."""

    def __init__(self, streams: Sequence[_Heard], is_last: bool) -> None:
        super().__init__([each.ends for each in streams])
        self._is_last = is_last

    def update(self, states: torch.Tensor, name: str, layer: Any) -> torch.Tensor:
        """Return the input of a convolution behind its last frames."""
        states = self.joined(states, name, layer.left_pad, getattr(layer, "left_pad_init", layer.left_pad))
        return F.pad(states, (0, 0, 0, layer.time_pad[1])) if self._is_last and states.dim() == 4 else states


class StreamingTransducer(Network[_Heard]):
    """A transducer whose encoder hears parts of ``1 + lookahead`` of its frames, and a limited number before each.

    A stream holds the keys and values of ``sliding_window - 1`` frames, the ends of convolutions, and the sound of one piece. Positions are
    relative: it goes on for ever.

    Raises:
        ConfigError: the checkpoint cannot be loaded.
    """

    def __init__(self, source: Source, device: str, dtype: str, running: int) -> None:
        self._model, self._processor = load_model(str(source.folder), dtype, device), processor_of(source)
        self.group, self._languages = group(source), languages_of(source)
        self.tokenizer, self._features = self._processor.tokenizer, self._processor.feature_extractor
        self.rate: int = self._features.sampling_rate
        self._hop, self._half = self._features.hop_length, self._features.n_fft // 2
        config = self._model.config
        self._blank, self._most = config.blank_token_id, config.max_symbols_per_step
        self._factor: int = config.encoder_config.subsampling_factor
        self._ahead: int = self._processor.default_num_lookahead_tokens
        [self._cache] = {*CACHES} & {*inspect.signature(type(self._model.encoder).forward).parameters}

    def begin(self, asked: dict[str, Any]) -> _Heard:
        language = self._languages.of(asked, self.group)
        decoder, config = self._model.decoder, self._model.config
        zeros = decoder.embedding.weight.new_zeros(config.num_decoder_layers, 1, config.decoder_hidden_size)
        with torch.inference_mode():
            begin = decoder.embedding(torch.tensor([[self._blank]], device=zeros.device))
            output, states = decoder.lstm(begin, (zeros, zeros))
            return _Heard(Sound(), asked, language, (decoder.decoder_projector(output), *states))

    def is_spaced(self, asked: dict[str, Any]) -> bool:
        return str(asked.get("language")).split("-")[0] not in UNSPACED

    def next(self, stream: _Heard) -> _Piece | None:
        parts = AT_ONCE if stream.sound.is_recording else 1
        most = self._factor * (1 + self._ahead) * parts - (0 if stream.mel else self._factor - 1)
        held = stream.attended[0][0].shape[2] if stream.attended else 0
        if not stream.sound.ended:
            needed = (stream.mel + most - 1) * self._hop + self._half
            return _Piece(stream.mel == 0, False, most, held) if stream.sound.count >= needed else None
        left = stream.sound.count // self._hop - stream.mel
        if stream.is_over or (stream.mel and not left):
            return None
        return _Piece(stream.mel == 0, left <= most, min(left, most), held)

    def until(self, stream: _Heard) -> float:
        return stream.mel * self._hop / self.rate

    def hear(self, streams: Sequence[_Heard]) -> list[list[Token] | Exception]:
        piece = self.next(streams[0])
        assert piece is not None
        frames = self._encoded(streams, piece)
        heard = self._decoded(streams, frames)
        for stream in streams:
            stream.mel, stream.seen = stream.mel + piece.count, stream.seen + frames.shape[1]
            stream.is_over = piece.is_last
        return [*heard]

    def _encoded(self, streams: Sequence[_Heard], piece: _Piece) -> torch.Tensor:
        """Return the next frames of the encoder, ``[batch, n, hidden]``."""
        features = self._mel(streams, piece.count, piece.is_last)
        cache = DynamicCache(config=self._model.config.encoder_config)
        if streams[0].attended:
            for layer, rows in zip(cache.layers, zip(*(each.attended for each in streams), strict=True), strict=True):
                layer.update(torch.cat([keys for keys, _ in rows]), torch.cat([values for _, values in rows]))
                layer.cumulative_length = streams[0].seen
        prompts = [self._processor.prompt_dictionary[each.language] for each in streams if each.language is not None]
        given = {"prompt_ids": torch.tensor(prompts, device=features.device)} if prompts else {}
        made = self._model.get_audio_features(
            input_features=features,
            padding_cache=_Ends(streams, piece.is_last),
            num_lookahead_tokens=self._ahead,
            use_cache=True,
            output_attention_mask=False,
            **{self._cache: cache},
            **given,
        )
        for row, stream in enumerate(streams):
            cut = slice(row, row + 1)
            stream.attended = [(each.keys[cut].clone(), each.values[cut].clone()) for each in cache.layers]
        frames: torch.Tensor = made.pooler_output
        return frames

    def _mel(self, streams: Sequence[_Heard], count: int, is_last: bool) -> torch.Tensor:
        """Return the next features, ``[batch, count, bins]``."""
        weight = next(self._model.parameters())
        if not count:
            return weight.new_zeros(len(streams), 0, self._features.feature_size)
        made = []
        for each in streams:
            begin, end = each.mel * self._hop - self._half, (each.mel + count - 1) * self._hop + self._half
            end = min(end, each.sound.count) if is_last else end
            samples = each.sound.cut(begin, end, begin + count * self._hop)
            told = {"sampling_rate": self.rate, "center": False, "is_last_audio_chunk": is_last}
            made.append(self._features(samples, return_tensors="pt", **told).input_features[:, :count])
        return torch.cat(made).to(weight.device, weight.dtype)

    def _decoded(self, streams: Sequence[_Heard], frames: torch.Tensor) -> list[list[Token]]:
        """Return the tokens of frames, which a greedy search finds; a stream without a token at a frame goes to the next one."""
        decoder, count = self._model.decoder, frames.shape[1]
        output, *states = (
            torch.cat([each.state[part] for each in streams], 0 if part == 0 else 1) for part in range(3)
        )
        heard: list[list[Token]] = [[] for _ in streams]
        at = [0] * len(streams)
        seconds = self._hop * self._factor / self.rate
        while rows := [row for row in range(len(streams)) if at[row] < count]:
            places = torch.tensor(rows, device=frames.device)
            seen = frames[places, torch.tensor([at[row] for row in rows], device=frames.device)]
            logits = self._model.joint(
                encoder_hidden_states=seen[:, None, None], decoder_hidden_states=output[places][:, None]
            )
            chosen = logits.reshape(len(rows), -1).argmax(-1)
            written, kept = [], []
            for place, (row, token) in enumerate(zip(rows, chosen.tolist(), strict=True)):
                stream = streams[row]
                start = (stream.seen + at[row]) * seconds
                stream.symbols = 0 if token == self._blank else stream.symbols + 1
                if token != self._blank:
                    heard[row].append(Token(token, start, start + seconds))
                    written.append(row)
                    kept.append(place)
                if not stream.symbols or stream.symbols >= self._most:
                    stream.symbols = 0
                    at[row] += 1
            if written:
                to = torch.tensor(written, device=frames.device)
                given = decoder.embedding(chosen[torch.tensor(kept, device=frames.device)].unsqueeze(1))
                made, new = decoder.lstm(given, tuple(each[:, to] for each in states))
                output[to] = decoder.decoder_projector(made)
                for each, value in zip(states, new, strict=True):
                    each[:, to] = value
        for row, stream in enumerate(streams):
            stream.state = (output[row : row + 1].clone(), *(each[:, row : row + 1].clone() for each in states))
        return heard
