"""The talker stage: turns the thinker's stream into codes of speech.

Dataflow and row layout follow the reference's ``generate`` (transformers 5.23); see ``docs/decisions/0028-qwen-omni.md``.
"""

from __future__ import annotations

from typing import Any, Self

import torch

from omni_core.api import (
    ARRequest,
    ConfigError,
    ContentSpan,
    FeedbackStrategy,
    ForwardBatch,
    ForwardOutput,
    OmniRequest,
    OutgoingMessage,
    RandomStream,
    SamplingParams,
)
from omni_qwen3.content import digest_of, spans_of
from omni_qwen3.payloads import talker_params
from omni_qwen3.routing import reads_aloud
from omni_qwen25.config import TalkerConfig, read_config
from omni_qwen25.interface import CODE_SECONDS, TALKER_DEFAULTS
from omni_qwen25.networks import Talker, load_talker, read_text_rows
from omni_qwen25.payloads import TalkerResult
from omni_qwen25.voices import load_voices, voice_of
from omni_torch.api import SpokenText, SpokenTextRunner, quantize_for, sampling_from


class TalkerFeedback(FeedbackStrategy):
    """The talker's loop: each input is the embedding of the last code plus the next row of text, projected."""

    model: Talker

    def write_buffers(self, batch: ForwardBatch, requests: list[tuple[ARRequest, int]]) -> None:
        """See :meth:`FeedbackStrategy.write_buffers`."""
        assert batch.input_embeds is not None
        last = torch.tensor([request.output_ids[-1] for request, _ in requests], device=batch.input_embeds.device)
        text = torch.stack([request.state.text_row(len(request.output_ids)) for request, _ in requests])
        rows = [row for _, row in requests]
        batch.input_embeds[rows] = self.model.project(self.model.code_rows(last) + text)

    def extract_output(
        self, batch: ForwardBatch, output: ForwardOutput, requests: list[tuple[ARRequest, int]]
    ) -> dict[str, list[OutgoingMessage]]:
        """Return nothing: token2wav reads all codes at once."""
        return {}


class TalkerRunner(SpokenTextRunner):
    """Starts a request when the thinker has sent the prompt side and the first token."""

    model: Talker
    output_seconds = CODE_SECONDS

    def __init__(
        self,
        model: Talker,
        config: TalkerConfig,
        special: torch.Tensor,
        voices: dict[str, Any],
        feedback: FeedbackStrategy,
        device: str | torch.device = "cpu",
    ) -> None:
        """``special``: the thinker's embeddings of the text's end and padding, then of the token of each voice, ``[2 + v, width]``."""
        super().__init__(model, feedback, device)
        end, padding, *opening = special.to(self.device, model.dtype).unbind(0)
        self.after_text = (end, padding)
        self._voices = voices
        self._opening = dict(zip(voices, opening, strict=True))
        self._config = config
        self.max_context = config.decoder.max_positions

    @classmethod
    def from_checkpoint(
        cls,
        model_path: str,
        feedback: FeedbackStrategy,
        device: str = "cpu",
        dtype: str = "float32",
        quantization: str | None = None,
    ) -> Self:
        """Load the talker.

        Args:
            model_path: the checkpoint's folder.
            dtype: of the weights: float32, bfloat16, float16.
            quantization: as of :func:`omni_torch.quantization.quantized_linear.quantize_for`.

        Raises:
            ConfigError: the checkpoint has no speech, or its voices cannot be read.
        """
        quantize_for(quantization, device)  # errors come before anything is read
        config = read_config(model_path).talker
        if config is None:
            raise ConfigError("config.json.enable_audio_output: false; this checkpoint does not speak: use qwen25-text")
        model = load_talker(model_path, config, dtype=dtype, device=device, quantization=quantization)
        voices = load_voices(model_path)
        tokens = [config.text_end, config.text_pad, *(voice.token for voice in voices.values())]
        return cls(model, config, read_text_rows(model_path, tokens), voices, feedback, device)

    def text_rows(self, chunk: Any) -> torch.Tensor | None:
        return None if "positions" in chunk else chunk["rows"].to(self.device, self.model.dtype)

    def result(self, request: ARRequest) -> TalkerResult:
        codes = request.output_ids
        if codes and codes[-1] in request.sampling.stop_ids:
            codes = codes[:-1]
        return TalkerResult(codes=torch.tensor(codes, dtype=torch.int64), finish_reason=request.finish_reason or "stop")

    def sampling(self, request: OmniRequest) -> SamplingParams:
        config, vocabulary = self._config, self._config.decoder.vocab_size
        ends = {config.codec_pad, config.codec_end}
        # Beyond the reference, which suppresses the start marker only: ids that token2wav cannot read.
        suppressed = ({config.codec_start} | set(range(config.codes, vocabulary))) - ends
        most = config.most_codes if reads_aloud(request) else min(TALKER_DEFAULTS["max_new_tokens"], config.most_codes)
        given = {**TALKER_DEFAULTS, "max_new_tokens": most, **talker_params(request.params)}
        return sampling_from(given, "params.talker", stop_ids=ends, suppressed_ids=suppressed)

    def admit(self, request_id: str, speech: SpokenText) -> ARRequest:
        config, start = self._config, speech.start
        opening = self._opening[voice_of(speech.request, self._voices)]
        markers = torch.tensor([config.codec_pad, config.codec_start], device=self.device)
        rows = torch.cat(
            [
                start["rows"].to(self.device, self.model.dtype),
                torch.stack([opening, speech.text[0]]) + self.model.code_rows(markers),
            ]
        )
        prompt, delta = len(start["rows"]), start["position_delta"]
        after = torch.arange(prompt + delta, prompt + delta + 2).expand(3, -1)
        sampling = self.sampling(speech.request)
        content = spans_of(start["content"])
        if content is not None:  # the voice and the first token are not in the ids
            content.append(ContentSpan(prompt, prompt + 2, digest_of("opening", rows[prompt:].float().cpu())))
        return ARRequest(
            request_id=request_id,
            request=speech.request,
            prompt_ids=[config.codec_mask] * prompt + markers.tolist(),
            sampling=sampling,
            prompt_embeds=self.model.project(rows),
            prompt_positions=torch.cat([start["positions"], after], 1),
            position_delta=delta,
            state=speech,
            random=RandomStream(sampling.seed, stream=1),  # the thinker uses the same seed
            content=content,
        )
