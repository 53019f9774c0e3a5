"""The decode stage: token ids to text, piece by piece, never a broken character."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attrs import define, field
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from omni_core.protocol.messages import OmniRequest, StagePayload
from omni_core.protocol.outputs import TextChunk, TextResult
from omni_core.scheduling.streaming import StreamingScheduler
from omni_qwen3.payloads import ThinkerResult


@define(eq=False)
class _Text:
    """A reply as far as it was detokenised."""

    request_id: str
    stream: DecodeStream = field(factory=lambda: DecodeStream(skip_special_tokens=True))
    sent: str = ""
    result: ThinkerResult | None = None


class Detokenizer(StreamingScheduler[_Text]):
    """Streams :class:`TextChunk`; their concatenation is the :class:`TextResult`'s text exactly."""

    def __init__(self, model_path: str) -> None:
        super().__init__()
        self._tokenizer = load_tokenizer(model_path)

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
        # What is left is an unfinished character, which the one-shot decode shows as a replacement mark.
        self._send(state, text[len(state.sent) :])
        usage = {"prompt_tokens": state.result["prompt_tokens"], "completion_tokens": len(ids)}
        return TextResult(text, ids, state.result["finish_reason"], usage, state.result["notices"])

    def _send(self, state: _Text, piece: str) -> None:
        if piece:
            state.sent += piece
            self.emit(state.request_id, TextChunk(piece))


def load_tokenizer(model_path: str) -> Tokenizer:
    """The checkpoint's tokenizer. Only where ``tokenizer.json`` is absent is transformers imported, to make it from older files."""
    path = Path(model_path) / "tokenizer.json"
    if path.is_file():
        return Tokenizer.from_file(str(path))
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model_path).backend_tokenizer


def create_decode(model_path: str) -> Detokenizer:
    """The decode stage."""
    return Detokenizer(model_path)
