"""The talker stage: turns the thinker's stream into codec frames.

Dataflow and row layout follow the reference's ``generate`` (transformers 5.23). Edge cases that the reference leaves
undefined are described in ``docs/decisions/0028-qwen-omni.md``.
"""

from __future__ import annotations

from typing import Any, Self

import torch
from attrs import evolve
from tokenizers import Tokenizer

from omni_core.api import (
    WORD_TIMES,
    ARRequest,
    FeedbackStrategy,
    InvalidRequestError,
    OmniRequest,
    RandomStream,
    SamplingParams,
)
from omni_qwen3.config import QwenConfig, read_config
from omni_qwen3.content import spans_of
from omni_qwen3.decode import tokenizer_of
from omni_qwen3.interface import DEFAULT_SPEAKER, FRAME_SECONDS, TALKER_DEFAULTS
from omni_qwen3.payloads import TalkerResult, TalkerStart, talker_params
from omni_qwen3.talker_network import Talker, load_talker, read_special
from omni_torch.api import SpokenText, SpokenTextRunner, pack_decoder, pack_linears, sampling_from

SUPPRESSED_TAIL = 1024
"""The number of markers at the end of the talker's vocabulary; of these only the end-of-speech id may be chosen."""


class TalkerRunner(SpokenTextRunner):
    """Starts a request when the thinker has sent the prompt side and the first token."""

    model: Talker
    output_seconds = FRAME_SECONDS

    def __init__(
        self,
        model: Talker,
        config: QwenConfig,
        special: torch.Tensor,
        feedback: FeedbackStrategy,
        device: str | torch.device = "cpu",
        tokenizer: Tokenizer | None = None,
    ) -> None:
        """Begin.

        Args:
            special: the thinker's embeddings of tts_bos, tts_eos and tts_pad, ``[3, thinker_hidden]``.
            tokenizer: with it, results tell what is said, to requests that ask for the times of words.
        """
        super().__init__(model, feedback, device)
        with torch.inference_mode():
            self._text_bos, text_end, self._text_pad = model.text_projection(special.to(self.device)).unbind(0)
        self.after_text = (text_end, self._text_pad)
        self._config, self._tokenizer = config.talker, tokenizer
        self.max_context = config.talker.text.max_positions

    @classmethod
    def from_checkpoint(
        cls,
        model_path: str,
        feedback: FeedbackStrategy,
        device: str = "cpu",
        dtype: str = "float32",
        quantization: str | None = None,
        tells_text: bool = False,
    ) -> Self:
        """Load the talker.

        Args:
            model_path: the checkpoint's folder.
            dtype: of the weights: float32, bfloat16, float16.
            quantization: as of :func:`omni_torch.quantization.quantized_linear.quantize_for`.
            tells_text: a stage behind the vocoder aligns what is said.
        """
        config = read_config(model_path)
        model = load_talker(model_path, config, dtype=dtype, device=device, quantization=quantization)
        pack_linears(model, pack_decoder)
        special = read_special(model_path, config).to(getattr(torch, dtype))
        return cls(model, config, special, feedback, device, tokenizer_of(model_path) if tells_text else None)

    def text_rows(self, chunk: Any) -> torch.Tensor | None:
        if "user_rows" in chunk:
            return None
        return self.model.text_projection(chunk["embeds"].to(self.model.dtype, copy=False).to(self.device))

    def token_ids(self, chunk: Any) -> list[int]:
        return list(chunk["token_ids"])

    def result(self, request: ARRequest) -> TalkerResult:
        made = TalkerResult(frames=request.state.frames, finish_reason=request.finish_reason or "stop")
        if self._tokenizer is not None and request.request.params.get(WORD_TIMES.name) == "word":
            made["said"] = self._tokenizer.decode(request.state.token_ids, skip_special_tokens=True)
        return made

    def sampling(self, request: OmniRequest) -> SamplingParams:
        vocabulary, eos = self._config.text.vocab_size, self._config.codec_eos
        suppressed = frozenset(range(max(0, vocabulary - SUPPRESSED_TAIL), vocabulary)) - {eos}
        given = {**TALKER_DEFAULTS, **talker_params(request.params)}
        sampling = sampling_from(given, "params.talker", stop_ids=[eos], suppressed_ids=suppressed)
        return evolve(sampling, penalize_prompt=False)

    def _speaker(self, request: OmniRequest) -> int:
        name = request.metadata.get("speaker") or DEFAULT_SPEAKER
        speakers = self._config.speakers
        if not isinstance(name, str) or name.lower() not in speakers:
            raise InvalidRequestError(
                f"metadata.speaker: {name!r} is unknown; known speakers: {', '.join(sorted(speakers))}"
            )
        return speakers[name.lower()]

    def admit(self, request_id: str, speech: SpokenText) -> ARRequest:
        embeds = torch.cat([self._user_rows(speech.start), self._assistant_rows(speech)])
        sampling = self.sampling(speech.request)
        return ARRequest(
            request_id=request_id,
            request=speech.request,
            prompt_ids=[-1] * len(embeds),
            sampling=sampling,
            prompt_embeds=embeds,
            prompt_positions=speech.start["positions"],
            position_delta=speech.start["position_delta"],
            state=speech,
            random=RandomStream(sampling.seed, stream=1),  # the thinker uses the same seed
            # The rows behind them begin this reply: nobody shares those.
            content=spans_of(speech.start["content"]),
        )

    def _user_rows(self, start: TalkerStart) -> torch.Tensor:
        """Return text rows through the text projection, multimodal rows through the hidden projection: ``[U, hidden]``."""
        rows = start["user_rows"].to(self.device, self.model.dtype)
        multimodal = start["multimodal"].to(self.device)
        projected = torch.empty(len(rows), self.model.hidden_size, dtype=rows.dtype, device=self.device)
        projected[~multimodal] = self.model.text_projection(rows[~multimodal])
        projected[multimodal] = self.model.hidden_projection(rows[multimodal])
        return projected

    def _assistant_rows(self, speech: SpokenText) -> torch.Tensor:
        """Return the nine rows that open speech, each the sum of a text side and a codec side: ``[9, hidden]``."""
        config = self._config
        opening = self.model.text_projection(speech.start["assistant_rows"].to(self.device, self.model.dtype))
        text = torch.cat(
            [opening, self._text_pad.expand(4, -1), self._text_bos.unsqueeze(0), speech.text[0].unsqueeze(0)]
        )
        markers = [config.codec_nothink, config.codec_think_bos, config.codec_think_eos]
        markers += [self._speaker(speech.request), config.codec_pad, config.codec_bos]
        codec = self.model.embed(torch.tensor(markers, device=self.device))
        text[3:] += codec
        return text
