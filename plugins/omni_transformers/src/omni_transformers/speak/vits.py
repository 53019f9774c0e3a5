"""VITS and MMS-TTS: sentences of several requests in one batch, each as the model speaks it alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence
from torch.overrides import TorchFunctionMode

from omni_core.api import ConfigError, InvalidRequestError
from omni_transformers.loading import load_processor
from omni_transformers.speak.decoding import reach_of
from omni_transformers.speak.speaker import Asked, Loading, Said, Together
from omni_transformers.speak.turns import Noise
from omni_transformers.speak.vits_words import places, timed


class Vits(Together):
    """VITS, MMS-TTS."""

    def __init__(self, loading: Loading) -> None:
        self._model, self._tokenizer = loading.model(), load_processor(loading.model_path, "AutoTokenizer")
        config = self._model.config
        self.rate = config.sampling_rate
        self._speakers = [str(number) for number in range(config.num_speakers)]
        self._hop, self._reach = math.prod(config.upsample_rates), reach_of(self._model.decoder)
        if self._tokenizer.phonemize and find_spec("phonemizer") is None:
            raise ConfigError(
                f"{loading.model_path}: its tokenizer needs phonemizer, and the program espeak-ng: pip install phonemizer"
            )

    def say_all(self, asks: Sequence[tuple[str, Asked]], noises: Sequence[Noise]) -> list[Said]:
        rows = [self._ids(sentence) for sentence, _ in asks]
        heard = [number for number, row in enumerate(rows) if len(row)]
        said = [Said(torch.zeros(0))] * len(asks)
        if heard:
            asked = [asks[number][1] for number in heard]
            found = self._spoken([rows[number] for number in heard], asked, [noises[number] for number in heard])
            for number, (wave, counts) in zip(heard, found, strict=True):
                words = timed(
                    places(self._tokenizer, asks[number][0], len(rows[number])), counts, self._hop / self.rate
                )
                said[number] = Said(wave, words)
        return said

    def _ids(self, sentence: str) -> torch.Tensor:
        """Return the tokens ``[n]`` of a sentence; none, if it is punctuation."""
        ids: torch.Tensor = self._tokenizer(sentence, return_tensors="pt")["input_ids"][0].to(self._model.device)
        if not len(ids) and any(map(str.isalnum, sentence)):
            needs = ": its texts are in Roman letters (pip install uroman)" if self._tokenizer.is_uroman else ""
            raise InvalidRequestError(f"messages: {sentence[:40]!r} has no character that this model can speak{needs}")
        return ids

    def _spoken(
        self, rows: list[torch.Tensor], asked: list[Asked], noises: list[Noise]
    ) -> list[tuple[torch.Tensor, list[int]]]:
        """Return the waveforms, and how many frames of each its tokens have: the steps of ``VitsModel.forward``, with noise for each row
        and no sound of the padding.
        """
        model, config = self._model, self._model.config
        ids = pad_sequence(rows, True, model.text_encoder.embed_tokens.padding_idx or 0)
        mask = _mask([len(row) for row in rows], ids)
        speakers = None
        if len(self._speakers) > 1:
            chosen = torch.tensor([int(each.named(self._speakers)) for each in asked], device=ids.device)
            speakers = model.embed_speaker(chosen)[..., None]
        text = model.text_encoder(
            input_ids=ids, padding_mask=mask[..., None].to(model.dtype), attention_mask=mask, return_dict=True
        )
        given = (text.last_hidden_state.mT, mask[:, None].to(model.dtype), speakers)
        if config.use_stochastic_duration_prediction:
            drawn = [noise.like(torch.empty(2, len(row))).mT for row, noise in zip(rows, noises, strict=True)]
            with _Drawn(pad_sequence(drawn, True).mT):
                durations = model.duration_predictor(*given, reverse=True, noise_scale=model.noise_scale_duration)
        else:
            durations = model.duration_predictor(*given)
        rates = [config.speaking_rate * each.given.get("speed", 1.0) for each in asked]
        slowness = 1.0 / torch.tensor(rates, device=ids.device, dtype=model.dtype)
        counts = torch.ceil(torch.exp(durations[:, 0]) * mask * slowness[:, None]).long()
        latents = []
        for row, noise in enumerate(noises):
            mean, deviation = (each[row].repeat_interleave(counts[row], 0) for each in text[1:3])
            if not len(mean):  # nothing is said: a frame of silence
                mean, deviation = mean.new_zeros(1, config.flow_size), mean.new_zeros(1, config.flow_size)
            random = noise.like(mean.mT[None])[0].mT  # the numbers depend on how they lie in memory
            latents.append(mean + random * torch.exp(deviation) * model.noise_scale)
        lengths = [len(each) for each in latents]
        frames = pad_sequence(latents, True).mT
        out_mask = _mask(lengths, frames)[:, None].to(model.dtype)
        frames = model.flow(frames, out_mask, speakers, reverse=True) * out_mask
        waves = model.decoder(frames, speakers)[:, 0]
        ended = [self._ended(waves, frames, speakers, row, length) for row, length in enumerate(lengths)]
        return [*zip(ended, (each[: len(row)] for each, row in zip(counts.tolist(), rows, strict=True)), strict=True)]

    def _ended(self, waves: torch.Tensor, frames: torch.Tensor, speakers: Any, row: int, length: int) -> torch.Tensor:
        """Return the waveform of a row, with its end as it is without padding: the decoder's convolutions hear what follows."""
        if length == frames.shape[-1]:
            return waves[row]
        keep = min(self._reach, length)
        end = frames[row : row + 1, :, max(0, length - 2 * self._reach) : length]
        voice = None if speakers is None else speakers[row : row + 1]
        last = self._model.decoder(end, voice)[0, 0, -keep * self._hop :]
        return torch.cat([waves[row, : (length - keep) * self._hop], last])


def _mask(lengths: list[int], like: torch.Tensor) -> torch.Tensor:
    """Return which places of padded rows hold something, ``[rows, longest]``."""
    places = torch.arange(max(lengths), device=like.device)
    return (places < torch.tensor(lengths, device=like.device)[:, None]).long()


class _Drawn(TorchFunctionMode):
    """Gives numbers that were drawn before to code that draws them with ``torch.randn``."""

    def __init__(self, numbers: torch.Tensor) -> None:
        super().__init__()
        self._numbers = numbers

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._numbers if func is torch.randn else func(*args, **(kwargs or {}))
