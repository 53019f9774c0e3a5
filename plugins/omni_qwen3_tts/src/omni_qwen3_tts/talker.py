"""The talker stage: turns the tokens of a text and a voice into frames of codes.

The prompt's rows are sums of a text side and a codec side. On two tracks the text goes on beside the speech: each further frame
reads one more token, then the end marker once, then padding, and a request waits while its text is behind.
"""

from __future__ import annotations

import math
from typing import Any, Self

import torch
from attrs import define, field

from omni_core.api import ARRequest, FeedbackStrategy, IncomingMessage, OmniRequest, RandomStream, SamplingParams
from omni_qwen3_tts.asking import Residual, sampling_of
from omni_qwen3_tts.config import TTSConfig, generation_defaults, read_config
from omni_qwen3_tts.interface import FRAME_SECONDS
from omni_qwen3_tts.payloads import SpeechResult, SpeechStart
from omni_qwen3_tts.talker_network import Talker, load_talker
from omni_torch.api import FeedbackARModelRunner, pack_decoder, pack_linears

FEWEST = 2
"""Tokens before which speech does not end, as in the reference."""


@define(eq=False)
class Speech:
    """The state of a request, in ``request.state``.

    Attributes:
        sampling, residual: how the first code of a frame is chosen, and the further ones.
        after_text: the rows that follow the text, ``[hidden]`` each: the end marker once, then padding.
        start: the first chunk, what the prompt is made of.
        text: rows of text, ``[hidden]`` each: of the words of a recording, then of what is spoken.
        text_done: no more will come.
        first: the row of the text that the first step behind the prompt reads.
        is_spoken: there is something to speak.
        admitted: it is schedulable.
        context: ``[R, groups]`` int64, frames that the vocoder hears before those of the speech, until they are sent.
        feedback: ``[hidden]``, the embedding of the newest frame; ``frames``: how many were sent.
    """

    request: OmniRequest
    sampling: SamplingParams
    residual: Residual
    after_text: tuple[torch.Tensor, torch.Tensor]
    start: SpeechStart | None = None
    text: list[torch.Tensor] = field(factory=list)
    text_done: bool = False
    first: int = 1
    is_spoken: bool = False
    admitted: bool = False
    context: torch.Tensor | None = None
    feedback: torch.Tensor | None = None
    frames: int = 0

    def text_row(self, index: int) -> torch.Tensor:
        """Return row ``index`` of the text, ``[hidden]``."""
        if index < len(self.text):
            return self.text[index]
        end, padding = self.after_text
        return end if index == len(self.text) else padding

    def next_row(self, steps: int) -> torch.Tensor:
        """Return the row of text that the step behind ``steps`` chosen tokens reads."""
        return self.text_row(self.first + steps - 1)

    @property
    def needed(self) -> int:
        """Rows of text that the prompt reads; all of them, of a request on one track."""
        assert self.start is not None
        if not self.start["dual_track"]:
            return 2**62
        codes = self.start.get("voice", {}).get("codes")
        return 1 if codes is None else len(codes) + 1


class TalkerRunner(FeedbackARModelRunner):
    """Starts a request when the text that its prompt reads has come; pauses it while the text is behind.

    A text that ends without a token gives speech of no frames.
    """

    model: Talker
    output_seconds = FRAME_SECONDS

    def __init__(
        self,
        model: Talker,
        config: TTSConfig,
        generation: dict[str, Any],
        feedback: FeedbackStrategy,
        device: str | torch.device = "cpu",
    ) -> None:
        """``generation``: the checkpoint's ``generation_config.json``."""
        super().__init__(model, feedback, device)
        self._config, self._generation = config, generation
        self.max_context = config.talker.max_positions
        self._speeches: dict[str, Speech] = {}
        markers = [config.tts_bos, config.tts_eos, config.tts_pad]
        with torch.inference_mode():
            rows = model.embed_text(torch.tensor(markers, device=self.device))
            self._text_begin, text_end, self._padding = rows.unbind(0)
        self.after_text = text_end, self._padding

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
        """
        config = read_config(model_path)
        model = load_talker(model_path, config, dtype=dtype, device=device, quantization=quantization)
        pack_linears(model, pack_decoder)
        return cls(model, config, generation_defaults(model_path), feedback, device)

    def receive(self, message: IncomingMessage) -> ARRequest | None:
        """See :meth:`ModelRunner.receive`."""
        speech = self._speeches.get(message.request_id)
        if speech is None:
            request = message.request or OmniRequest()
            sampling = sampling_of(request, self._config, self._generation)
            speech = self._speeches[message.request_id] = Speech(request, *sampling, self.after_text)
        if message.type == "stream_done":
            speech.text_done = True
        elif message.type == "stream_chunk":
            if "ids" in message.data:
                speech.text.extend(self._text_rows(message.data["ids"]))
                speech.is_spoken = True
            else:
                self._begin(speech, message.data)
        if speech.admitted or not (speech.text_done or speech.start is not None):
            return None
        if speech.text_done and not (speech.is_spoken and speech.start is not None):
            speech.admitted = True
            nothing = ARRequest(message.request_id, speech.request, [], speech.sampling, state=speech)
            nothing.finish_reason = "stop"
            return nothing
        if not speech.text_done and len(speech.text) < speech.needed:
            return None
        speech.admitted = True
        return self._admit(message.request_id, speech)

    def _begin(self, speech: Speech, start: SpeechStart) -> None:
        speech.start = start
        voice = start.get("voice", {})
        if "codes" in voice:
            speech.context = voice["codes"]
            speech.text[:0] = self._text_rows(voice["words"])

    @torch.inference_mode()
    def _text_rows(self, ids: torch.Tensor) -> list[torch.Tensor]:
        return list(self.model.embed_text(ids.to(self.device)).unbind(0))

    def _admit(self, request_id: str, speech: Speech) -> ARRequest:
        with torch.inference_mode():
            embeds = self._prompt(speech)
        return ARRequest(
            request_id=request_id,
            request=speech.request,
            prompt_ids=[-1] * len(embeds),
            sampling=speech.sampling,
            prompt_embeds=embeds,
            state=speech,
            random=RandomStream(speech.sampling.seed),
        )

    def _prompt(self, speech: Speech) -> torch.Tensor:
        """Return the rows before the first frame, ``[n, hidden]``."""
        config, start = self._config, speech.start
        assert start is not None
        style = [self._rows(self.model.embed_text, start["style"])] if "style" in start else []
        opening = self._rows(self.model.embed_text, start["opening"])
        markers = self._markers(start)
        padding = self._padding.expand(len(markers) - 1, -1)
        head = [*style, opening, torch.cat([padding, self._text_begin.unsqueeze(0)]) + markers]
        codec = self._codes([config.codec_bos])
        if speech.context is not None:
            codec = torch.cat([codec, self._rows(self.model.embed_frames, speech.context)])
        if start["dual_track"]:
            speech.first = len(codec)
            return torch.cat([*head, torch.stack([speech.text_row(index) for index in range(len(codec))]) + codec])
        speech.first = len(speech.text) + 1
        text = torch.stack([*speech.text, self.after_text[0]])
        return torch.cat([*head, text + self._codes([config.codec_pad]), codec + self._padding])

    def _markers(self, start: SpeechStart) -> torch.Tensor:
        """Return the codec side of language and voice, ``[n, hidden]``."""
        config = self._config
        if "language" in start:
            said = [config.codec_think, config.codec_think_bos, start["language"], config.codec_think_eos]
        else:
            said = [config.codec_nothink, config.codec_think_bos, config.codec_think_eos]
        rows = [self._codes(said)]
        if "speaker" in start:
            rows.append(self._codes([start["speaker"]]))
        elif "voice" in start:
            rows.append(start["voice"]["embedding"].to(self.device, self.model.dtype).unsqueeze(0))
        return torch.cat([*rows, self._codes([config.codec_pad])])

    def _codes(self, ids: list[int]) -> torch.Tensor:
        return self.model.embed(torch.tensor(ids, device=self.device))

    def _rows(self, embed: Any, ids: torch.Tensor) -> torch.Tensor:
        rows: torch.Tensor = embed(ids.to(self.device))
        return rows

    def can_step(self, request: ARRequest) -> bool:
        """See :meth:`ModelRunner.can_step`."""
        speech: Speech = request.state
        steps = len(request.output_ids)
        return not steps or speech.text_done or speech.first + steps - 1 < len(speech.text)

    def choose(self, logits: torch.Tensor, requests: list[ARRequest]) -> list[int]:
        """See :meth:`ARModelRunner.choose`; the first tokens do not end the speech."""
        early = [row for row, request in enumerate(requests) if len(request.output_ids) < FEWEST]
        if early:
            logits = logits.clone()
            logits[early, self._config.codec_eos] = -math.inf
        return super().choose(logits, requests)

    def result(self, request: ARRequest) -> SpeechResult:
        return SpeechResult(frames=request.state.frames, finish_reason=request.finish_reason or "stop")

    def release(self, request_id: str) -> None:
        """See :meth:`ModelRunner.release`."""
        self._speeches.pop(request_id, None)
