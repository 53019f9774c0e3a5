"""The decode stage: streams token ids as text, in whole characters."""

from __future__ import annotations

from typing import Any

from attrs import define, field
from tokenizers.decoders import DecodeStream

from omni_core.protocol.messages import OmniRequest, StagePayload
from omni_core.protocol.outputs import TextChunk, TextResult
from omni_core.scheduling.streaming import StreamingScheduler
from omni_qwen3.config import read_config
from omni_qwen3.payloads import ThinkerResult
from omni_qwen3.tokenizer import load_tokenizer


@define(eq=False)
class _Text:
    """The detokenised part of a reply."""

    request_id: str
    stream: DecodeStream = field(factory=lambda: DecodeStream(skip_special_tokens=True))
    sent: str = ""
    result: ThinkerResult | None = None


class Detokenizer(StreamingScheduler[_Text]):
    """Streams :class:`TextChunk`; their concatenation is the :class:`TextResult`'s text exactly."""

    def __init__(self, model_path: str) -> None:
        super().__init__()
        self._tokenizer = load_tokenizer(model_path, read_config(model_path))

    def new_state(self, request_id: str, request: OmniRequest | None) -> _Text:
        return _Text(request_id)

    def on_payload(self, state: _Text, payload: StagePayload) -> None:
        state.result = payload.data

    def on_chunk(self, state: _Text, chunk: list[int], metadata: dict[str, Any] | None) -> None:
        piece = "".join(text for token in chunk if (text := state.stream.step(self._tokenizer, token)))
        self._send(state, piece)

    def finish(self, request_id: str, state: _Text) -> TextResult:
        assert state.result is not None
        ids = state.result["token_ids"]
        text = self._tokenizer.decode(ids, skip_special_tokens=True)
        # The rest is an unfinished character, which decoding all at once gives as a replacement mark.
        self._send(state, text[len(state.sent) :])
        usage = {"prompt_tokens": state.result["prompt_tokens"], "completion_tokens": len(ids)}
        return TextResult(text, ids, state.result["finish_reason"], usage, state.result["notices"])

    def _send(self, state: _Text, piece: str) -> None:
        if piece:
            state.sent += piece
            self.emit(state.request_id, TextChunk(piece))


def create_decode(model_path: str) -> Detokenizer:
    """Return the scheduler of the decode stage."""
    return Detokenizer(model_path)
